#include "store/pack.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "store/disk_store.hpp"
#include "support/errors.hpp"
#include "support/threads.hpp"

namespace ferry::engine {
namespace {

/// Adds the named precisions.
void set_precisions(StoreFacts& facts, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    Precision p = Precision::full;
    if (name == "bf16")
      facts.layout.dtype = DType::bf16;
    else if (name == "f16")
      facts.layout.dtype = DType::f16;
    else if (name == "f32")
      facts.layout.dtype = DType::f32;
    else if (name == "int8")
      p = Precision::int8;
    else if (name == "int4")
      p = Precision::int4;
    else if (name == "int2")
      p = Precision::int2;
    else if (name != "full")
      throw InputError(fmt::format("--precisions {}: expected full, bf16, f16 or f32, and int8, int4, int2", name));
    if (facts.has(p)) {
      throw InputError(fmt::format("--precisions {}: stands twice, or beside another type for full precision", name));
    }
    facts.precisions = static_cast<std::uint8_t>(facts.precisions | 1U << static_cast<unsigned>(p));
  }
  if (facts.precisions == 0) throw InputError("--precisions: expected at least one");
}

/// The weight files with names, sizes and times, which tell whether a pack may be continued with them.
Json source_files(const Checkpoint& checkpoint) {
  Json list = Json::array();
  for (const auto& [file, was] : checkpoint.files()) {
    list.push_back(
        {{"name", printable(file.filename().string())}, {"bytes", was.bytes}, {"modified_ns", was.modified_ns}});
  }
  return list;
}

}  // namespace

Packed pack_store(const std::filesystem::path& folder, const std::filesystem::path& out, const PackOptions& o) {
  ModelConfig config = read_model_config(folder);
  const Checkpoint checkpoint(folder);
  take_names(checkpoint, config);
  if (o.check) o.check(checkpoint);
  const ExpertReader reader(checkpoint, config);
  Packed result;
  StoreFacts& facts = result.facts;
  const std::filesystem::path name = std::filesystem::weakly_canonical(folder).filename();
  facts.model = printable(name.string());
  facts.numbers = ExpertNumbers(config.of_moe_layers(&LayerConfig::experts));
  facts.layout = reader.layout();
  const std::vector<std::uint32_t> widths = config.of_moe_layers(&LayerConfig::expert_width);
  if (std::any_of(widths.begin(), widths.end(), [&](std::uint32_t w) { return w != widths[0]; })) facts.widths = widths;
  facts.layout.group = o.group;
  facts.quantizer = o.quantizer;
  const bool blocks = std::any_of(reader.layouts().begin(), reader.layouts().end(), [&](const ExpertLayout& l) {
    return !l.plain_numbers() || l.dtype != reader.layout().dtype;
  });
  if (blocks) {  // stores cannot hold a checkpoint's blocks
    facts.layout.dtype = DType::bf16;
    facts.layout.up_type = facts.layout.down_type = DType::other;
    for (const std::string& name : o.precisions) {
      if (name != "full") continue;
      throw InputError(
          fmt::format("--precisions full: the experts are {}, which a store does not hold; expected bf16, f16, "
                      "f32, int8, int4 or int2",
                      reader.layout().name(Precision::full)));
    }
  }
  set_precisions(facts, o.precisions);
  const DType own = reader.layout().dtype, kept = facts.layout.dtype;
  facts.rounded = facts.has(Precision::full) && kept != DType::f32 && (blocks || kept != own);
  facts.weights = weights_checksum(checkpoint, config);
  facts.source = source_files(checkpoint);
  const std::uint64_t all = facts.numbers.all();
  if (all > StoreFacts::most_experts) {
    throw InputError(
        fmt::format("{}: {} experts, a store holds at most {}", folder.string(), all, StoreFacts::most_experts));
  }
  for (const Precision p : facts.stored()) {
    if (facts.most_bytes(p) > 0xffffffffULL) {
      throw InputError(fmt::format("{}: experts of 4 GiB and more are not supported", folder.string()));
    }
  }

  bool stopped = false;
  auto goes_on = [&](bool checking, std::uint64_t done) {
    stopped = o.progress && !o.progress(checking, done, all);
    return !stopped;
  };
  std::vector<std::byte> expert;
  const auto read = [&](ExpertId id) {
    expert.resize(reader.layout(id.layer).bytes());
    reader.read(id, expert.data());
    return checksum(expert.data(), expert.size());
  };
  StoreWriter writer(out, facts, read, [&](std::uint64_t done, std::uint64_t) { return goes_on(true, done); });
  result.resumed = result.done = writer.done();
  const ExpertPacker packer{reader.layouts(), facts.layout, o.quantizer, config};
  const std::uint32_t threads = o.threads > 0 ? o.threads : all_threads();
  std::vector<std::vector<std::byte>> variants;
  std::vector<ExpertPacker::Made> made;
  for (const Precision p : facts.stored()) {
    made.push_back({p, variants.emplace_back(facts.most_bytes(p)).data()});
  }
  for (; !stopped && result.done < all && goes_on(false, result.done); ++result.done) {
    const ExpertId id = facts.numbers.id(result.done);
    const std::uint64_t sum = read(id);
    try {
      packer.pack(expert.data(), id, made, threads);
    } catch (const InputError&) {  // weights that cannot be packed another time, either
      writer.discard();
      throw;
    }
    for (const ExpertPacker::Made& m : made) writer.write({id, m.precision}, m.out);
    writer.write_source(id, sum);
  }
  if (result.done == all) {
    goes_on(false, result.done);
    checkpoint.check_unchanged();
    writer.commit();
  }
  return result;
}

Scrubbed scrub_store(const std::filesystem::path& store, const ScrubOptions& o) {
  DiskStore disk(open_blocks(store), store.string(), 0);
  for (const Precision p : disk.facts().stored()) disk.add(p);
  Scrubbed s;
  const std::uint64_t all = disk.added_bytes();
  for (const Precision p : disk.facts().stored()) {
    for (std::uint64_t n = 0; n < disk.facts().numbers.all(); ++n) {
      if (!o.progress(s.done, all)) return s;
      const ExpertId id = disk.facts().numbers.id(n);
      try {
        static_cast<void>(disk.bytes({id, p}));
      } catch (const InputError& e) {
        ++s.damaged;
        o.damage(e.what());
      }
      s.done += disk.facts().layout_of(id.layer).bytes(p);
    }
  }
  o.progress(s.done, all);
  return s;
}

Scrubbed compare_with_store(const std::filesystem::path& folder, const std::filesystem::path& store,
                            const ScrubOptions& o) {
  ModelConfig config = read_model_config(folder);
  const Checkpoint checkpoint(folder);
  take_names(checkpoint, config);
  const auto blocks = open_blocks(store);
  const StoreIndex index = read_store(*blocks, store.string());
  check_same_model(index.facts, store.string(), checkpoint, config, folder);
  const ExpertReader reader(checkpoint, config);
  std::vector<std::byte> expert;
  Scrubbed s;
  const std::uint64_t all = index.facts.numbers.all();
  for (; s.done < all; ++s.done) {
    if (!o.progress(s.done, all)) return s;
    const ExpertId id = index.facts.numbers.id(s.done);
    expert.resize(reader.layout(id.layer).bytes());
    reader.read(id, expert.data());
    if (checksum(expert.data(), expert.size()) == index.sources[s.done]) continue;
    ++s.damaged;
    o.damage(fmt::format("{}: expert {} of layer {} is not what {} was made from", folder.string(), id.expert, id.layer,
                         store.string()));
  }
  checkpoint.check_unchanged();
  o.progress(s.done, all);
  return s;
}

}  // namespace ferry::engine
