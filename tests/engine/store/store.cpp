// Expert stores: the file against its description, packing that is stopped, killed or refused, and disks that fail.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "cpu/cpu_model.hpp"
#include "engine/fixtures/files.hpp"
#include "engine/fixtures/fixed_costs.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/prompts.hpp"
#include "engine/fixtures/shell.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "inference/generate.hpp"
#include "store/checkpoint_store.hpp"
#include "store/disk_store.hpp"
#include "store/pack.hpp"
#include "support/errors.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;
using Path = std::filesystem::path;

constexpr Precision all_precisions[] = {Precision::int2, Precision::int4, Precision::int8, Precision::full};

/// A made-up Mixtral of 2 layers of 4 experts in a folder of its own, and a store of it.
struct Packing {
  TemporaryFolder folder;
  Path model = folder.path() / "model", store = folder.path() / "experts.ferry";

  explicit Packing(const PackOptions& options = {}, const std::string& type = "F32") {
    std::filesystem::create_directory(model);
    TinyCheckpoint().write(model, type);
    pack_store(model, store, options);
  }
  [[nodiscard]] std::unique_ptr<DiskStore> open(std::uint64_t host_bytes = 0, BlockIo io = BlockIo::automatic) const {
    auto disk = std::make_unique<DiskStore>(open_blocks(store, io), store.string(), host_bytes);
    for (const Precision p : disk->facts().stored()) disk->add(p);
    return disk;
  }
};

bool same(View<const std::byte> a, View<const std::byte> b) {
  return a.size == b.size && a.size > 0 && std::memcmp(a.data, b.data, a.size) == 0;
}

std::uint64_t number(const std::string& file, std::size_t at, std::size_t bytes) {
  std::uint64_t n = 0;
  std::memcpy(&n, file.data() + at, bytes);
  return n;
}

/// A disk that treats each read as it is told.
class FaultyFile final : public BlockFile {
 public:
  /// For read number `n`, from 0: how many bytes it may return, or -errno.
  using Fault = std::function<std::int64_t(std::uint64_t n, std::uint64_t at, std::byte* to, std::int64_t good)>;

  FaultyFile(const Path& path, Fault fault) : file_(open_blocks(path)), fault_(std::move(fault)) {}

  std::int64_t read(std::uint64_t at, std::byte* to, std::uint64_t bytes) override {
    const std::int64_t good = file_->read(at, to, bytes);
    return fault_(reads_++, at, to, good);
  }
  void forget(std::uint64_t at, std::uint64_t bytes) override { file_->forget(at, bytes); }
  [[nodiscard]] std::uint64_t size() const override { return file_->size(); }
  [[nodiscard]] std::string how() const override { return "faulty"; }

 private:
  std::unique_ptr<BlockFile> file_;
  Fault fault_;
  std::uint64_t reads_ = 0;
};

/// The lines and the sum of a scrub, or of a comparison with a model.
std::pair<std::vector<std::string>, Scrubbed> scrub(const Path& store, const Path& model = {}) {
  std::vector<std::string> lines;
  const ScrubOptions o = {[](auto, auto) { return true; }, [&](const std::string& line) { lines.push_back(line); }};
  const Scrubbed s = model.empty() ? scrub_store(store, o) : compare_with_store(model, store, o);
  return {lines, s};
}

std::unique_ptr<DiskStore> faulty(const Packing& p, FaultyFile::Fault fault, std::uint64_t host_bytes = 0) {
  auto disk = std::make_unique<DiskStore>(std::make_unique<FaultyFile>(p.store, std::move(fault)), "disk", host_bytes);
  for (const Precision q : disk->facts().stored()) disk->add(q);
  return disk;
}

}  // namespace

TEST_CASE("a store's file is what its description says, byte for byte") {
  PackOptions options;
  options.quantizer = Quantizer::hqq;
  options.group = 32;
  const Packing p(options, "BF16");
  const std::string file = read_file(p.store);
  // Start: magic, version, bytes of the header, checksum.
  REQUIRE(file.substr(0, 8) == "FERRYEXP");
  CHECK(number(file, 8, 4) == 2);
  const std::string header = file.substr(24, number(file, 12, 4));
  const Json j = Json::parse(header);
  CHECK(j["layers"] == 2);
  CHECK(j["experts"] == 4);
  CHECK(j["hidden"] == 8);
  CHECK(j["width"] == 6);
  CHECK(j["type"] == "bf16");
  CHECK(j["group"] == 32);
  CHECK(j["quantizer"] == "hqq");
  CHECK(j["precisions"] == Json({"int2", "int4", "int8", "bf16"}));
  CHECK(j["source"][0]["name"] == "model.safetensors");
  // Then, each from a multiple of 4096 on: a checksum for each block, and one for each expert's source; and the blocks, by
  // precision, layer and expert.
  const std::size_t index_at = (24 + header.size() + 4095) / 4096 * 4096;
  std::size_t block_at = index_at + 4096;  // 32 + 8 checksums
  const std::uint64_t text = XXH3_64bits(header.data(), header.size());
  CHECK(number(file, 16, 8) == (XXH3_64bits(file.data() + index_at, 40 * 8) ^ (text << 1 | text >> 63)));
  MemoryStore memory(Checkpoint(p.model), read_model_config(p.model), {.quantizer = Quantizer::hqq});
  std::size_t block = 0;
  for (const Precision q : all_precisions) {
    if (q != Precision::full) memory.add(q);
    for (std::uint16_t l = 0; l < 2; ++l) {
      for (std::uint16_t e = 0; e < 4; ++e, ++block, block_at += 4096) {
        const View<const std::byte> right = memory.bytes({{l, e}, q}).view;
        // Groups of 32 and 64 are the same for matrices this narrow.
        CHECK(std::memcmp(file.data() + block_at, right.data, right.size) == 0);
        CHECK(number(file, index_at + 8 * block, 8) == XXH3_64bits(right.data, right.size));
        if (q != Precision::full) continue;  // the model's own numbers
        CHECK(number(file, index_at + 8 * (32 + 4 * l + e), 8) == XXH3_64bits(right.data, right.size));
      }
    }
  }
  CHECK(block_at == file.size());
}

TEST_CASE("a store gives out what host memory would, by io_uring and by pread, whatever the cache") {
  for (const char* name : {"tiny-qwen-moe", "tiny-mixtral"}) {
    const TemporaryFolder folder;
    const Path model = test::model_folder(name), file = folder.path() / "s";
    CHECK(pack_store(model, file, {}).done == (name == std::string("tiny-mixtral") ? 64 : 384));
    MemoryStore memory(Checkpoint(model), read_model_config(model));
    for (const Precision p : all_precisions) memory.add(p);
    for (const BlockIo io : {BlockIo::automatic, BlockIo::pread}) {
      for (const std::uint64_t host : {0u, 3'000'000u, 100'000'000u}) {
        DiskStore disk(open_blocks(file, io), file.string(), host);
        for (const Precision p : all_precisions) disk.add(p);
        Random random(host);
        std::uint32_t wrong = 0;
        std::set<std::uint32_t> read;
        for (int i = 0; i < 1000; ++i) {
          const std::uint32_t expert = random.below(8), layer = random.below(8);
          const Precision p = all_precisions[random.below(4)];
          const Variant v{{static_cast<std::uint16_t>(layer), static_cast<std::uint16_t>(expert)}, p};
          read.insert(layer << 16U | expert << 8U | static_cast<unsigned>(p));
          wrong += same(disk.bytes(v).view, memory.bytes(v).view) ? 0 : 1;
        }
        CHECK(wrong == 0);
        const StoreReads r = disk.reads();
        CHECK(r.hits + r.reads == 1000);
        CHECK(r.retries == 0);
        if (host == 0) CHECK(r.hits < 20);                       // only the same expert twice in a row
        if (host == 100'000'000) CHECK(r.reads == read.size());  // each once
      }
    }
  }
}

TEST_CASE("a store of layers that differ holds what they have, where its description says") {
  const TemporaryFolder folder;
  const Path model = test::golden_file("zoo") / "hunyuan_layers", file = folder.path() / "s";
  CHECK(pack_store(model, file, {}).done == 18);
  MemoryStore memory(Checkpoint(model), read_model_config(model));
  DiskStore disk(open_blocks(file), file.string(), 0);
  for (const Precision p : all_precisions) {
    memory.add(p);
    disk.add(p);
  }
  const std::string bytes = read_file(file);
  const Json j = Json::parse(bytes.substr(24, number(bytes, 12, 4)));
  CHECK(j["experts"] == 8);
  CHECK(j["width"] == 48);
  CHECK(j["layer_experts"] == Json({8, 4, 6}));
  CHECK(j["layer_widths"] == Json({32, 48, 16}));
  std::size_t at = 2 * 4096, block = 0;  // behind the header and 72 + 18 checksums
  for (const Precision p : all_precisions) {
    for (std::uint16_t l = 0; l < 3; ++l) {
      for (std::uint16_t e = 0; e < j["layer_experts"][l]; ++e, ++block) {
        const View<const std::byte> right = memory.bytes({{l, e}, p}).view;
        if (p == Precision::full) CHECK(right.size == 3U * 64 * j["layer_widths"][l].get<std::uint32_t>() * 2);
        CHECK(same(disk.bytes({{l, e}, p}).view, right));
        CHECK(std::memcmp(bytes.data() + at, right.data, right.size) == 0);
        CHECK(number(bytes, 4096 + 8 * block, 8) == XXH3_64bits(right.data, right.size));
        at += (right.size + 4095) / 4096 * 4096;
      }
    }
  }
  CHECK(at == bytes.size());
  const ModelFiles files(model, std::make_unique<DiskStore>(open_blocks(file), file.string(), 0));
  CHECK(files.store->layouts().size() == 3);
}

TEST_CASE("a checkpoint's files give out what host memory would, whatever the cache") {
  for (const Path& model : {test::model_folder("tiny-qwen-moe"), test::golden_file("zoo") / "gpt_oss",
                            test::golden_file("zoo") / "qwen2_moe_dense0", test::golden_file("zoo") / "hunyuan_layers",
                            test::golden_file("zoo") / "gemma4"}) {
    CAPTURE(model);
    const ModelConfig c = read_model_config(model);
    const auto checkpoint = std::make_shared<const Checkpoint>(model);
    MemoryStore memory(*checkpoint, c);
    for (const Precision p : all_precisions) memory.add(p);
    for (const std::uint64_t host : {0U, 100'000U, 100'000'000U}) {
      CheckpointStore files(checkpoint, c, model.string(), Quantizer::nearest, host);
      CHECK(files.precisions() == 0);
      CHECK(files.bytes({{0, 0}, Precision::full}).view.size == 0);
      for (const Precision p : all_precisions) files.add(p);
      CHECK(files.precisions() == memory.precisions());
      Random random(host);
      std::uint32_t wrong = 0, loads = 0;
      for (int i = 0; i < 200; ++i) {
        const ExpertId id{static_cast<std::uint16_t>(random.below(c.moe_layer_count())),
                          static_cast<std::uint16_t>(random.below(4))};
        const Variant v{id, all_precisions[random.below(4)]};
        const std::uint64_t before = files.reads().reads;
        wrong += same(files.bytes(v).view, memory.bytes(v).view) ? 0 : 1;
        loads += static_cast<std::uint32_t>(files.reads().reads - before);
      }
      CHECK(wrong == 0);
      CHECK(files.reads().hits + loads == 200);
      if (host == 100'000'000U) CHECK(loads < 200);
      CHECK((files.read_bytes_per_s() == 0) == (host == 100'000'000U));
    }
  }
}

TEST_CASE("the cache over a disk keeps what was used last, within its bytes, and what is held") {
  const Packing p({.precisions = {"f32"}});
  const auto disk = p.open(3 * 3 * 8 * 6 * 4);  // three experts
  auto at = [](std::uint16_t e) { return Variant{{0, e}, Precision::full}; };
  auto reads = [&](std::uint16_t e) {
    const std::uint64_t before = disk->reads().reads;
    static_cast<void>(disk->bytes(at(e)));
    return disk->reads().reads - before;
  };
  const HeldBytes held = disk->bytes(at(0));
  const std::vector<std::byte> copy(held.view.begin(), held.view.end());
  CHECK(reads(1) == 1);
  CHECK(reads(2) == 1);
  CHECK(reads(0) == 0);
  CHECK(reads(3) == 1);  // 1 leaves
  CHECK(reads(0) == 0);
  CHECK(reads(2) == 0);
  CHECK(reads(1) == 1);  // 3 leaves
  CHECK(reads(3) == 1);  // 0 leaves, and its memory must not be used again
  CHECK(reads(2) == 0);
  CHECK(reads(0) == 1);
  CHECK(std::equal(copy.begin(), copy.end(), held.view.begin()));
}

TEST_CASE("threads that read a store at once get the right bytes" * doctest::test_suite("threads")) {
  const Packing p;
  const auto disk = p.open(2000);
  MemoryStore memory(Checkpoint(p.model), read_model_config(p.model));
  for (const Precision q : all_precisions) memory.add(q);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Random random(t);
      for (int i = 0; i < 300; ++i) {
        const std::uint32_t n = random.below(8);
        const Variant v{{static_cast<std::uint16_t>(n / 4), static_cast<std::uint16_t>(n % 4)},
                        all_precisions[random.below(4)]};
        const HeldBytes held = disk->bytes(v);
        if (!same(held.view, memory.bytes(v).view)) ++wrong;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
}

TEST_CASE("reads that come short are continued, reads that fail or differ are tried three times") {
  const Packing p;
  const Variant v{{1, 2}, Precision::int8};
  const std::uint64_t at = p.open()->facts().at(v);
  const std::vector<std::byte> right = [&] {
    const HeldBytes held = p.open()->bytes(v);
    return std::vector<std::byte>(held.view.begin(), held.view.end());
  }();
  auto is_right = [&](const DiskStore& disk) {
    const HeldBytes held = disk.bytes(v);
    return std::equal(right.begin(), right.end(), held.view.begin(), held.view.end());
  };
  SUBCASE("short reads") {
    const auto disk =
        faulty(p, [](auto, auto, auto, std::int64_t good) { return std::min<std::int64_t>(good, 4096 + 17); });
    CHECK(is_right(*disk));
    CHECK(disk->reads().retries == 0);
  }
  for (const int bad : {1, 2, 3}) {
    CAPTURE(bad);
    int left = bad;
    auto once = [&](std::uint64_t place) { return place == at && left > 0 && left-- > 0; };
    auto check = [&](const DiskStore& disk, const char* reason) {
      if (bad < 3) {
        CHECK(is_right(disk));
        CHECK(disk.reads().retries == static_cast<std::uint64_t>(bad));
        return;
      }
      const std::string expected = "disk: expert 2 of layer 1 at int8, 384 bytes at byte " + std::to_string(at) + ": " +
                                   reason + " (tried 3 times)";
      CHECK_THROWS_WITH_AS(static_cast<void>(disk.bytes(v)), expected.c_str(), InputError);
      CHECK(is_right(disk));  // the fourth time, since what was wrong was not kept
    };
    SUBCASE("an error of the disk") {
      check(*faulty(p, [&](auto, std::uint64_t place, auto, std::int64_t good) { return once(place) ? -EIO : good; }),
            "cannot be read: Input/output error");
    }
    SUBCASE("a flipped bit") {
      check(*faulty(p,
                    [&](auto, std::uint64_t place, std::byte* to, std::int64_t good) {
                      if (once(place)) to[380] ^= std::byte{4};
                      return good;
                    }),
            "its checksum differs");
    }
    SUBCASE("the end of the file") {
      const std::string reason = "the file ends at byte " + std::to_string(at + 100);
      check(*faulty(p, [&](auto, std::uint64_t place, auto, std::int64_t good) { return once(place) ? 100 : good; }),
            reason.c_str());
    }
  }
}

TEST_CASE("a store that is truncated at any 4 KiB, or longer, is refused") {
  const Packing p;
  const std::string file = read_file(p.store);
  REQUIRE(file.size() / 4096 == 34);
  for (std::size_t size = 0; size <= file.size() + 4096; size += 4096) {
    if (size == file.size()) continue;
    CAPTURE(size);
    write_file(p.store, file.substr(0, size) + std::string(size > file.size() ? 4096 : 0, 'x'));
    const char* reason = size == 0            ? "not an expert store: 0 bytes"
                         : size > file.size() ? "the file is damaged"
                                              : "truncated";
    CHECK_THROWS_WITH_AS(static_cast<void>(p.open()), doctest::Contains(reason), InputError);
  }
  for (const std::size_t odd : {1UL, 4097UL, file.size() - 1}) {
    write_file(p.store, file.substr(0, odd));
    CHECK_THROWS_AS(static_cast<void>(p.open()), InputError);
  }
}

TEST_CASE("a flipped bit anywhere in a store is found: in the header when it is opened, in an expert when it is read") {
  const Packing p;
  const std::string file = read_file(p.store);
  const StoreFacts facts = p.open()->facts();
  for (std::size_t at = 0; at < 24 + facts.header_bytes; ++at) {
    CAPTURE(at);
    std::string damaged = file;
    damaged[at] = static_cast<char>(damaged[at] ^ 1 << at % 8);
    write_file(p.store, damaged);
    CHECK_THROWS_AS(static_cast<void>(p.open()), InputError);
  }
  for (std::size_t at = facts.index_at(); at < facts.index_at() + 40 * 8; ++at) {
    std::string damaged = file;
    damaged[at] = static_cast<char>(damaged[at] ^ 1 << at % 8);
    write_file(p.store, damaged);
    CHECK_THROWS_WITH_AS(static_cast<void>(p.open()), doctest::Contains("checksum of its header"), InputError);
  }
  Random random(3);
  for (const Precision q : all_precisions) {
    for (std::uint64_t n = 0; n < 8; ++n) {
      const Variant v{facts.numbers.id(n), q};
      std::string damaged = file;
      char& byte = damaged[facts.at(v) + random.below(static_cast<std::uint32_t>(facts.layout.bytes(q)))];
      byte = static_cast<char>(byte ^ 1 << random.below(8));
      write_file(p.store, damaged);
      const auto disk = p.open();
      for (std::uint64_t other = 0; other < 8; ++other) {
        if (other != n) CHECK(disk->bytes({facts.numbers.id(other), q}).view.size == facts.layout.bytes(q));
      }
      CHECK_THROWS_WITH_AS(static_cast<void>(disk->bytes(v)), doctest::Contains("its checksum differs"), InputError);
      const auto [lines, scrubbed] = scrub(p.store);
      REQUIRE(lines.size() == 1);
      CHECK(lines[0].find("its checksum differs") != std::string::npos);
      CHECK(scrubbed.damaged == 1);
    }
  }
}

TEST_CASE("headers of strangers are refused by field") {
  const Packing p;
  const std::string file = read_file(p.store);
  const std::string header = file.substr(24, number(file, 12, 4));
  auto with = [&](const Json& changes) {
    Json j = Json::parse(header);
    j.merge_patch(changes);
    std::string text = j.dump(), made = file.substr(0, 12);
    std::uint32_t n = static_cast<std::uint32_t>(text.size());
    made.append(reinterpret_cast<const char*>(&n), 4).append(8, '\0').append(text);
    made.resize(file.size());
    write_file(p.store, made);
  };
  const std::pair<Json, const char*> cases[] = {
      {{{"layers", 0}}, "\"layers\""},
      {{{"layers", 65535}, {"experts", 65535}}, "\"experts\": expected at most 2^20"},
      {{{"hidden", 1 << 20}, {"width", 1 << 20}}, "\"width\": expected experts of less than 4 GiB"},
      {{{"hidden", -1}}, "\"hidden\""},
      {{{"group", 48}}, "\"group\": expected 32, 64 or 128"},
      {{{"type", "f8"}}, "\"type\""},
      {{{"quantizer", "gptq"}}, "gptq"},
      {{{"precisions", Json::array()}}, "\"precisions\""},
      {{{"precisions", {"int4", "int4"}}}, "\"precisions\""},
      {{{"precisions", {"int4", 8}}}, "\"precisions\""},
      {{{"weights", nullptr}}, "\"weights\""},
      {{{"layers", 60000}}, "truncated"},
      {{{"layer_experts", {4}}}, "\"layer_experts\": expected 2 whole numbers from 1 to 4, one for each layer"},
      {{{"layer_experts", {4, 5}}}, "\"layer_experts\""},
      {{{"layer_experts", {4, 0}}}, "\"layer_experts\""},
      {{{"layer_experts", {4, 3}}}, "damaged"},
      {{{"layer_widths", {6, 7}}}, "\"layer_widths\": expected 2 whole numbers from 1 to 6, one for each layer"},
      {{{"layer_widths", {6, -1}}}, "\"layer_widths\""},
  };
  for (const auto& [changed, part] : cases) {
    const Json& changes = changed;
    CAPTURE(changes.dump());
    with(changes);
    CHECK_THROWS_WITH_AS(static_cast<void>(p.open()), doctest::Contains(part), InputError);
  }
  write_file(p.store, "FERRYEXP" + std::string(5000, '\xff'));
  CHECK_THROWS_WITH_AS(static_cast<void>(p.open()), doctest::Contains("version 4294967295"), InputError);
  CHECK_THROWS_WITH_AS(static_cast<void>(open_blocks("/dev/zero")), doctest::Contains("not a regular file"),
                       InputError);
  CHECK_THROWS_AS(static_cast<void>(open_blocks(p.folder.path())), InputError);
}

TEST_CASE("a pack that is stopped leaves no store, and the next one goes on with it to the same bytes") {
  const Packing whole;
  const std::string right = read_file(whole.store);
  std::filesystem::remove(whole.store);
  const Path part = whole.store.string() + ".part";
  for (std::uint64_t stop_at = 0; stop_at < 8; ++stop_at) {
    PackOptions o;
    o.progress = [&](bool, std::uint64_t done, std::uint64_t all) {
      CHECK(all == 8);
      return done < stop_at;
    };
    const Packed stopped = pack_store(whole.model, whole.store, o);
    CHECK(stopped.done == stop_at);
    CHECK_FALSE(std::filesystem::exists(whole.store));
    CHECK_THROWS_WITH_AS(static_cast<void>(DiskStore(open_blocks(part), "part", 0)), doctest::Contains("not finished"),
                         InputError);
    const Packed rest = pack_store(whole.model, whole.store, {});
    CHECK(rest.resumed == stop_at);
    CHECK(rest.done == 8);
    CHECK(read_file(whole.store) == right);
    CHECK_FALSE(std::filesystem::exists(part));
    std::filesystem::remove(whole.store);
  }
}

TEST_CASE("a pack that goes on trusts no block that differs from its checksum, nor a part of something else") {
  const Packing p;
  const std::string right = read_file(p.store);
  const StoreFacts facts = p.open()->facts();
  std::filesystem::remove(p.store);
  const Path part = p.store.string() + ".part";
  auto stop_after = [&](std::uint64_t experts, PackOptions o = {}) {
    o.progress = [=](bool, std::uint64_t done, std::uint64_t) { return done < experts; };
    static_cast<void>(pack_store(p.model, p.store, o));
  };
  SUBCASE("a damaged block") {
    stop_after(6);
    std::string there = read_file(part);
    char& byte = there[facts.at({{0, 3}, Precision::int4}) + 9];
    byte = static_cast<char>(byte ^ 1);
    write_file(part, there);
    CHECK(pack_store(p.model, p.store, {}).resumed == 3);
  }
  SUBCASE("other precisions") {
    stop_after(6, {.precisions = {"int4", "f32"}});
    CHECK(pack_store(p.model, p.store, {}).resumed == 0);
  }
  SUBCASE("weights that have changed since") {
    stop_after(6);
    std::filesystem::last_write_time(p.model / "model.safetensors",
                                     std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
    CHECK(pack_store(p.model, p.store, {}).resumed == 0);
    CHECK(p.open()->facts().file_bytes() == right.size());
    return;  // the packed store differs in the time in its header
  }
  SUBCASE("weights that were edited behind the first 4096 bytes of a matrix, with the time put back") {
    // The model has to be large, because the header already tells a change in the first 4096 bytes.
    const Path model = p.folder.path() / "large", file = model / "model.safetensors", store = p.folder.path() / "l";
    std::filesystem::create_directory(model);
    for (const char* name : {"config.json", "model.safetensors"}) {
      std::filesystem::copy_file(test::model_folder("tiny-mixtral") / name, model / name);
    }
    const auto time = std::filesystem::last_write_time(file);
    PackOptions o{.precisions = {"int4"}};
    o.progress = [](bool, std::uint64_t done, std::uint64_t) { return done < 20; };
    REQUIRE(pack_store(model, store, o).done == 20);
    const std::string name = "model.layers.1.block_sparse_moe.experts.3.w2.weight";  // of expert 11 of 64
    const auto [begin, end] = [&] {
      const std::string text = read_file(file);
      const std::uint64_t header = number(text, 0, 8);
      const Json offsets = Json::parse(text.substr(8, header))[name]["data_offsets"];
      return std::pair(8 + header + offsets[0].get<std::uint64_t>(), 8 + header + offsets[1].get<std::uint64_t>());
    }();
    REQUIRE(end - begin > 5000);
    std::fstream edit(file, std::ios::binary | std::ios::in | std::ios::out);
    edit.seekg(static_cast<std::streamoff>(end - 2));
    const int low = edit.get();  // of the last weight
    edit.seekp(static_cast<std::streamoff>(end - 2));
    edit.put(static_cast<char>(low ^ 1));
    edit.close();
    std::filesystem::last_write_time(file, time);
    o.progress = nullptr;
    CHECK(pack_store(model, store, o).resumed == 11);
    // The same edit after a whole store was packed: opening the store does too little to notice it, but comparing does.
    CHECK(scrub(store, model).first.empty());
    CHECK_THROWS_WITH_AS(scrub(store, p.model), doctest::Contains("was packed from another model"), InputError);
    const auto [lines, compared] = scrub(store, test::model_folder("tiny-mixtral"));
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].find("expert 3 of layer 1 is not what") != std::string::npos);
    CHECK(compared.done == 64);
    return;
  }
  SUBCASE("one that ended before its first byte") {
    write_file(part, std::string(right.size(), '\0'));
    CHECK(pack_store(p.model, p.store, {}).resumed == 0);
  }
  SUBCASE("no part of a store") {
    for (const std::string& other :
         {std::string("notes"), read_file(p.model / "model.safetensors"), right.substr(0, 8), std::string(6, '\0'),
          std::string(64, '\0') + "data of somebody else", std::string(right.size() - 1, '\0')}) {
      write_file(part, other);
      CHECK_THROWS_WITH_AS(static_cast<void>(pack_store(p.model, p.store, {})),
                           doctest::Contains("is there, and no unfinished store"), InputError);
      CHECK(read_file(part) == other);
    }
    return;
  }
  SUBCASE("weights that change while they are packed") {
    PackOptions o;
    o.progress = [&](bool, std::uint64_t done, std::uint64_t) {
      if (done == 3) {
        std::filesystem::last_write_time(p.model / "model.safetensors",
                                         std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
      }
      return true;
    };
    CHECK_THROWS_WITH_AS(static_cast<void>(pack_store(p.model, p.store, o)),
                         doctest::Contains("the file has changed since it was opened"), InputError);
    CHECK_FALSE(std::filesystem::exists(p.store));
    return;
  }
  SUBCASE("one that ended just before its name was changed") {
    stop_after(8);
    write_file(part, right);
    CHECK(pack_store(p.model, p.store, {}).resumed == 8);
  }
  CHECK(read_file(p.store) == right);
}

TEST_CASE("packing replaces stores and nothing else") {
  const Packing p;
  const std::string right = read_file(p.store);
  write_file(p.store, right.substr(0, 5000));  // also damaged ones
  CHECK(pack_store(p.model, p.store, {}).done == 8);
  write_file(p.store, "");
  CHECK(pack_store(p.model, p.store, {}).done == 8);
  CHECK(read_file(p.store) == right);
  write_file(p.store, "my notes");
  CHECK_THROWS_WITH_AS(static_cast<void>(pack_store(p.model, p.store, {})),
                       doctest::Contains("is there, and is not an expert store"), InputError);
  CHECK(read_file(p.store) == "my notes");
  CHECK_FALSE(std::filesystem::exists(p.store.string() + ".part"));
}

TEST_CASE("a checkpoint whose files change while it is read is refused, and gives out nothing of the new") {
  const Packing p;
  const Path file = p.model / "model.safetensors";
  const auto checkpoint = std::make_shared<const Checkpoint>(p.model);
  CheckpointStore files(checkpoint, read_model_config(p.model), "model", Quantizer::nearest, 0);
  files.add(Precision::full);
  CHECK(files.bytes({{1, 2}, Precision::full}).view.size > 0);
  CHECK_NOTHROW(checkpoint->check_unchanged());
  std::filesystem::last_write_time(file, std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  CHECK_THROWS_WITH_AS(static_cast<void>(files.bytes({{1, 3}, Precision::full})),
                       doctest::Contains("cannot be used: the file has changed since it was opened"), InputError);
  CHECK_THROWS_WITH_AS(checkpoint->check_unchanged(), doctest::Contains("model.safetensors: has changed"), InputError);
}

TEST_CASE("packing refuses what it cannot do in one line, and leaves nothing behind") {
  const Packing p;
  std::filesystem::remove(p.store);
  auto refused = [&](const PackOptions& o, const char* part) {
    CHECK_THROWS_WITH_AS(static_cast<void>(pack_store(p.model, p.store, o)), doctest::Contains(part), InputError);
  };
  refused({.precisions = {"int3"}}, "--precisions int3: expected full");
  refused({.precisions = {"bf16", "full"}}, "--precisions full: stands twice");
  refused({.precisions = {}}, "at least one");
  CHECK_FALSE(std::filesystem::exists(p.store.string() + ".part"));
  CHECK_THROWS_WITH_AS(static_cast<void>(pack_store(p.model, "/dev/null", {})), doctest::Contains("not a regular file"),
                       InputError);
  CHECK_THROWS_AS(static_cast<void>(pack_store(p.model, p.folder.path() / "no" / "s", {})), InputError);

  TinyCheckpoint damaged;
  const std::string name = "model.layers.1.block_sparse_moe.experts.2.w2.weight";  // [8, 6]
  damaged.values[name][5 * 6 + 3] = std::numeric_limits<float>::infinity();
  damaged.write(p.model);
  for (const char* precision : {"int8", "f32", "bf16"}) {
    refused({.precisions = {precision}}, ("tensor \"" + name + "\": the weight at [5, 3] is inf, which ").c_str());
  }
  damaged.values[name][5 * 6 + 3] = 65520;  // halfway to 2^16: rounds to infinity
  damaged.write(p.model);
  refused({.precisions = {"f16"}}, ("tensor \"" + name + "\": the weight at [5, 3] is 65520, which f16").c_str());
}

TEST_CASE("full precision may be stored in another type: each weight as the nearest of it") {
  const Packing p({.precisions = {"bf16"}});
  const auto disk = p.open();
  CHECK(disk->layout().dtype == DType::bf16);
  const TinyCheckpoint checkpoint;
  const std::vector<float>& weights = checkpoint.values.at("model.layers.1.block_sparse_moe.experts.3.w3.weight");
  const HeldBytes held = disk->bytes({{1, 3}, Precision::full});
  for (std::size_t i = 0; i < weights.size(); ++i) {
    Eigen::bfloat16 stored;
    std::memcpy(&stored, held.view.data + (48 + i) * 2, 2);  // behind the gate matrix
    CHECK(stored == Eigen::bfloat16(weights[i]));
  }
  // The store also says so, since the result is not what the model computes.
  CHECK(disk->reads().rounded);
  CHECK(Packing({.precisions = {"f16", "int4"}}).open()->reads().rounded);
  for (const std::vector<std::string>& exact : {std::vector<std::string>{"full"}, {"f32"}, {"int8", "int4"}}) {
    CHECK_FALSE(Packing({.precisions = exact}).open()->reads().rounded);
  }
}

TEST_CASE("from a store, output is bit-identical to that from memory, whatever the host's share" *
          doctest::test_suite("threads")) {
  for (const char* name : {"tiny-qwen-moe", "tiny-mixtral"}) {
    const TemporaryFolder folder;
    const Path model = test::model_folder(name), file = folder.path() / "s";
    pack_store(model, file, {});
    CpuModel memory(model);
    CpuModel disk(model, std::make_unique<DiskStore>(open_blocks(file), file.string(), 1'000'000));
    for (const char* stack : {"lru", "fate", "hobbit-cooperative", "importance-driven"}) {
      CAPTURE(stack);
      auto run = [&](CpuModel& m, bool virtual_clock) {
        RunnerOptions o;
        o.stack = stack;
        m.add_precisions(precisions_for(o));
        o.budget_bytes = model_shape(m.config(), m.store(), 128).all_bytes() / 4;
        if (virtual_clock) o.virtual_costs = fixed_costs(60'000, 20'000, 50'000, 1'000'000'000);
        const auto runner = make_runner(m, o);
        GenerateOptions g;
        g.prompts = {prompts()[0], prompts()[1]};
        g.batch = 2;
        g.max_new_tokens = 12;
        return generate(m, *runner, g).last_logits;
      };
      CHECK(run(disk, true) == run(memory, true));
      if (stack == std::string("lru")) CHECK(run(disk, false) == run(memory, false));  // with real threads
    }
    CHECK(disk.store().reads().reads > 100);
    CHECK(disk.store().reads().hits > 0);
  }
}

TEST_CASE("a store has what experts are computed with beside their matrices: biases, scales, and by which function") {
  for (const char* family : {"gpt_oss", "llama4", "gemma4"}) {
    CAPTURE(family);
    const TemporaryFolder folder;
    const Path model = test::golden_file("zoo") / family, file = folder.path() / "s";
    pack_store(model, file, {});
    CpuModel memory(model), disk(model, std::make_unique<DiskStore>(open_blocks(file), file.string(), 0));
    for (const char* stack : {"lru", "lru-int4"}) {
      CAPTURE(stack);
      const auto run = [&](CpuModel& m) {
        RunnerOptions o;
        o.stack = stack;
        m.add_precisions(precisions_for(o));
        o.budget_bytes = model_shape(m.config(), m.store(), 128).all_bytes() / 2;
        const auto runner = make_runner(m, o);
        GenerateOptions g;
        g.prompts = {prompts()[0]};
        g.max_new_tokens = 4;
        return generate(m, *runner, g).last_logits;
      };
      CHECK(run(disk) == run(memory));
    }
  }
}

TEST_CASE("a disk that fails in the middle of a run ends it with the expert's name, on either link and on the host" *
          doctest::test_suite("threads")) {
  const TemporaryFolder folder;
  const Path model = test::model_folder("tiny-mixtral"), file = folder.path() / "s";
  pack_store(model, file, {});
  for (const char* stack : {"lru", "hobbit-cooperative"}) {
    for (const bool virtual_clock : {true, false}) {
      CAPTURE(stack);
      CAPTURE(virtual_clock);
      auto broken = [](std::uint64_t n, auto, auto, std::int64_t good) { return n < 150 ? good : -EIO; };
      CpuModel m(model, std::make_unique<DiskStore>(std::make_unique<FaultyFile>(file, broken), "disk", 0));
      RunnerOptions o;
      o.stack = stack;
      m.add_precisions(precisions_for(o));
      o.budget_bytes = model_shape(m.config(), m.store(), 128).all_bytes() / 4;
      if (virtual_clock) o.virtual_costs = fixed_costs(60'000, 20'000, 50'000, 1'000'000'000);
      const auto runner = make_runner(m, o);
      GenerateOptions g;
      g.prompts = {prompts()[2]};
      std::string error;
      try {
        static_cast<void>(generate(m, *runner, g));
      } catch (const std::exception& e) {
        error = e.what();
      }
      CAPTURE(error);
      CHECK(error.find("disk: expert ") != std::string::npos);
      CHECK(error.find("cannot be read: Input/output error (tried 3 times)") != std::string::npos);
    }
  }
}

TEST_CASE("a store of another model is refused, and a precision that it lacks") {
  const Packing p({.precisions = {"int4"}});
  const TemporaryFolder other;
  for (const char* changed : {"gate", "experts.3.w2"}) {
    TinyCheckpoint checkpoint;
    checkpoint.values["model.layers.1.block_sparse_moe." + std::string(changed) + ".weight"][3] += 1;
    checkpoint.write(other.path());
    CHECK_THROWS_WITH_AS(CpuModel(other.path(), p.open()), doctest::Contains("was packed from another model (model)"),
                         InputError);
  }
  CpuModel m(p.model, std::make_unique<DiskStore>(open_blocks(p.store), "s", 0));
  CHECK_THROWS_WITH_AS(m.add_precisions(Precision::full | Precision::int4),
                       "s: has its experts at int4 only, and f32 is needed: ferry pack --precisions int4,f32",
                       InputError);
  CHECK_NOTHROW(m.add_precisions(Precision::int4));
}

TEST_CASE("ferry pack, killed again and again, ends with the right bytes") {
  const TemporaryFolder folder;
  const std::string at = "'" + (folder.path() / "s").string() + "'";
  const std::string pack = test::ferry_program() + " pack --threads 1 --quantizer hqq --out ";
  REQUIRE(shell(pack + at + ".right").status == 0);
  int killed = 0;
  for (const char* seconds : {"0.03", "0.06", "0.1", "0.15"}) {
    killed += shell("timeout -s KILL " + std::string(seconds) + " " + pack + at).status == 137 ? 1 : 0;
  }
  CHECK(killed > 0);
  const Shell rest = shell(pack + at);
  CHECK(rest.status == 0);
  CHECK(read_file(folder.path() / "s") == read_file(folder.path() / "s.right"));
  CHECK_FALSE(std::filesystem::exists(folder.path() / "s.part"));
}

TEST_CASE("ferry pack on a disk that is too small says so in one line, and leaves nothing behind") {
  const TemporaryFolder folder;
  const std::string at = "'" + (folder.path() / "s").string() + "'";
  // Files may have 10 MiB, and the store takes 20.
  const Shell r = shell("ulimit -f 20480; " + test::ferry_program() + " pack --model tiny-mixtral --out " + at);
  CHECK(r.status == 2);
  CHECK(r.out.find("cannot be written: File too large (the store takes 19931136 bytes)") != std::string::npos);
  CHECK(std::count(r.out.begin(), r.out.end(), '\n') == 1);
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("ferry run, eval and inspect read a store, and refuse a damaged one in one line") {
  const TemporaryFolder folder;
  const Path file = folder.path() / "s";
  const std::string ferry = test::ferry_program() + " ", store = " --store '" + file.string() + "'";
  REQUIRE(shell(ferry + "pack --model tiny-mixtral --out '" + file.string() + "'").status == 0);
  const std::string run = "run --model tiny-mixtral --stack fate --max-new-tokens 8 --prompt 'The sea'";
  auto text = [](const Shell& r) { return r.out.substr(0, r.out.find('\n')); };
  const Shell plain = shell(ferry + run), stored = shell(ferry + run + store + " --host-memory 10%");
  CHECK(stored.status == 0);
  CHECK(text(stored) == text(plain));
  CHECK(stored.out.find("read from disk") != std::string::npos);
  CHECK(plain.out.find("read from disk") == std::string::npos);
  // The same without a store, from the checkpoint's own files.
  for (const char* stack : {"fate", "resident-int4"}) {
    const std::string own =
        std::string("run --model tiny-mixtral --max-new-tokens 8 --prompt 'The sea' --stack ") + stack;
    const Shell all = shell(ferry + own), some = shell(ferry + own + " --host-memory 10%");
    CHECK(some.status == 0);
    CHECK(text(some) == text(all));
    CHECK(some.out.find("read from disk") != std::string::npos);
  }
  const Shell whole = shell(ferry + "inspect" + store);
  CHECK(whole.status == 0);
  CHECK(whole.out.find("every expert is as it was written") != std::string::npos);

  std::string damaged = read_file(file);
  damaged[damaged.size() - 5000] = static_cast<char>(damaged[damaged.size() - 5000] ^ 1);  // the last expert
  write_file(file, damaged);
  write_file(folder.path() / "t", "The sea");
  for (const std::string& command :
       {"inspect" + store, "run --model tiny-mixtral --stack resident --prompt a" + store,
        "run --model tiny-mixtral --stack resident --host-memory 0 --prompt a" + store,
        "eval --model tiny-mixtral --text '" + (folder.path() / "t").string() + "'" + store}) {
    CAPTURE(command);
    const Shell r = shell("{ " + ferry + command + " >/dev/null; }");
    CAPTURE(r.out);
    CHECK(r.status == 2);
    CHECK(r.out.find("expert 7 of layer 7 at bf16") != std::string::npos);
    const std::size_t error = std::min(r.out.find("ferry: "), r.out.size());  // after a note
    const bool scrubs = command.starts_with("inspect");  // one line for the damage, and one for the whole
    CHECK(std::count(r.out.begin() + static_cast<std::ptrdiff_t>(error), r.out.end(), '\n') == (scrubs ? 2 : 1));
    if (scrubs) CHECK(r.out.find("s: 1 of 256 blocks are damaged") != std::string::npos);
  }
  const Path model = folder.path() / "model";
  std::filesystem::create_directory(model);
  TinyCheckpoint().write(model);
  const std::pair<std::string, const char*> mistakes[] = {
      {"run --host-memory much", "--host-memory much: expected a share"},
      {run + store + " --host-memory much", "--host-memory much: expected a share"},
      {run + store + " --quantizer hqq", "--quantizer"},
      {"run --store /no/such", "/no/such: cannot open"},
      {"run --model tiny-mixtral --store '" + (folder.path() / "t").string() + "'", "not an expert store"},
      {"run" + store, "was packed from another model"},
      {run + store + " --json '" + file.string() + "'", "is read by this run"},
      {"pack --out ''", "--out"},
      {"pack --model '" + model.string() + "' --out '" + (model / "model.safetensors").string() + "'",
       "is read by this run"},
      {"pack --group 48 --out x", "--group"},
  };
  for (const auto& [mistake, part] : mistakes) {
    const std::string& command = mistake;
    CAPTURE(command);
    const Shell r = shell(ferry + command);
    CAPTURE(r.out);
    CHECK(r.status == 2);
    CHECK(r.out.find(part) != std::string::npos);
    CHECK(std::count(r.out.begin(), r.out.end(), '\n') == 1);
  }
}
