#include "store/store_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ferry/macros.hpp"
#include "support/errors.hpp"
#include "support/output_file.hpp"
#include "support/reads.hpp"

namespace ferry::engine {
namespace {

// docs/store.md defines the format byte for byte.
constexpr char store_magic[] = "FERRYEXP", part_magic[] = "FERRYPRT";
constexpr std::uint32_t version = 2;  // 1 had no checksums of what experts were made from
constexpr std::uint64_t header_at = 24, largest_header = 1U << 20U;

constexpr FileKind store_file = {"an expert store", store_magic, ""};

constexpr Precision storable[] = {Precision::int2, Precision::int4, Precision::int8, Precision::full};

struct Start {
  char magic[8];
  std::uint32_t version, header_bytes;
  std::uint64_t sum;
};
static_assert(sizeof(Start) == header_at);

/// Checksum of the header's text and the index.
std::uint64_t sum_of(const std::string& header, const std::vector<std::uint64_t>& checksums) {
  const std::uint64_t text = checksum(header.data(), header.size());
  return checksum(checksums.data(), checksums.size() * sizeof(std::uint64_t)) ^ (text << 1U | text >> 63U);
}

StoreFacts facts_of(const Json& json, const std::string& name) {
  const Fields f(json, name + ": header");
  constexpr std::uint32_t largest = 1U << 20U;
  StoreFacts s;
  s.model = printable(f.text("model")).substr(0, 200);  // goes to terminals
  const std::uint32_t layers = f.whole("layers", 1, 65535), experts = f.whole("experts", 1, 65535);
  // One number for each layer, if layers differ.
  const auto by_layer = [&](const char* field, std::uint32_t most) {
    std::vector<std::uint32_t> all;
    if (!f.has(field)) return all;
    const Json& list = f.at(field);
    const auto good = [&](const Json& n) { return n.is_number_unsigned() && n >= 1U && n <= most; };
    if (!list.is_array() || list.size() != layers || !std::all_of(list.begin(), list.end(), good)) {
      f.refuse(field, fmt::format("{} whole numbers from 1 to {}, one for each layer", layers, most));
    }
    for (const Json& n : list) all.push_back(n.get<std::uint32_t>());
    return all;
  };
  const std::vector<std::uint32_t> counts = by_layer("layer_experts", experts);
  s.numbers = ExpertNumbers(counts.empty() ? std::vector(layers, experts) : counts);
  if (s.numbers.all() > StoreFacts::most_experts) f.refuse("experts", "at most 2^20 experts in all");
  s.layout.hidden = f.whole("hidden", 1, largest);
  s.layout.width = f.whole("width", 1, largest);
  s.widths = by_layer("layer_widths", s.layout.width);
  if (!s.widths.empty()) s.layout.width = s.widths[0];
  s.layout.group = f.whole("group", 32, 128);
  if ((s.layout.group & (s.layout.group - 1)) != 0) f.refuse("group", "32, 64 or 128");
  s.layout.biased = f.flag("biases", false);
  s.layout.scaled = f.flag("scales", false);
  s.rounded = f.flag("rounded", false);
  if (f.has("glu")) {
    const Fields glu(f.at("glu"), name + ": header: glu");
    s.layout.glu.clamped = true;
    s.layout.glu.alpha = static_cast<float>(glu.number("alpha", 0));
    s.layout.glu.limit = static_cast<float>(glu.number("limit", 0));
  }
  s.layout.glu.weighs_input = f.flag("weighs_input", false);
  s.layout.glu.gelu = f.flag("gelu", false);
  s.quantizer = quantizer_of(f.text("quantizer"), name + ": header");
  s.weights = f.text("weights");
  s.source = f.at("source");
  const Json& list = f.at("precisions");
  if (!list.is_array() || list.empty()) f.refuse("precisions", "a list of bf16, f16 or f32, int8, int4, int2");
  const std::string type = f.text("type");
  for (const DType t : {DType::bf16, DType::f16, DType::f32}) {
    if (type != s.layout.name(Precision::full)) s.layout.dtype = t;
  }
  if (type != s.layout.name(Precision::full)) f.refuse("type", "bf16, f16 or f32");
  for (const Json& item : list) {
    const auto found = std::find_if(std::begin(storable), std::end(storable), [&](Precision p) {
      return item.is_string() && item.get<std::string>() == s.layout.name(p);
    });
    if (found == std::end(storable) || s.has(*found))
      f.refuse("precisions", "each of " + type + ", int8, int4, int2 once");
    s.precisions = static_cast<std::uint8_t>(s.precisions | 1U << static_cast<unsigned>(*found));
  }
  for (const Precision p : s.stored()) {
    if (s.most_bytes(p) > 0xffffffffULL) f.refuse("width", "experts of less than 4 GiB");
  }
  return s;
}

}  // namespace

Quantizer quantizer_of(const std::string& name, const std::string& where) {
  if (name == "nearest") return Quantizer::nearest;
  if (name == "hqq") return Quantizer::hqq;
  throw InputError(fmt::format("{}: quantizer is \"{}\", expected nearest or hqq", where, name));
}

std::string weights_checksum(const Checkpoint& checkpoint, const ModelConfig& c) {
  constexpr std::size_t some = 4096;
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  const ExpertReader reader(checkpoint, c);
  for (std::uint32_t l = 0; l < c.moe_layer_count(); ++l) {
    const std::uint32_t experts = c.moe(l).experts;
    const Tensor& t = checkpoint.at(c.gate_name(l), {experts, c.hidden});
    XXH3_64bits_update(&state, t.data, t.bytes);
    for (std::uint32_t e = 0; e < experts; ++e) {
      const ExpertId id{static_cast<std::uint16_t>(l), static_cast<std::uint16_t>(e)};
      for (int part = 0; part < 3; ++part) {
        for (const std::span<const std::byte> bytes : reader.stored(id, part)) {
          XXH3_64bits_update(&state, bytes.data(), std::min(some, bytes.size()));
        }
      }
      const std::vector<float> behind = reader.behind(id);
      if (!behind.empty()) XXH3_64bits_update(&state, behind.data(), behind.size() * sizeof(float));
    }
  }
  return fmt::format("{:016x}", XXH3_64bits_digest(&state));
}

void check_same_model(const StoreFacts& s, const std::string& name, const Checkpoint& checkpoint,
                      const ModelConfig& config, const std::filesystem::path& folder) {
  const std::vector<std::uint32_t> widths = config.of_moe_layers(&LayerConfig::expert_width);
  const std::uint32_t layers = config.moe_layer_count();
  bool same = s.numbers.layers() == layers && s.layout.hidden == config.hidden;
  for (std::uint32_t l = 0; same && l < layers; ++l) {
    same = s.numbers.of_layer(l) == config.moe(l).experts && s.layout_of(l).width == widths[l];
  }
  if (!same || s.weights != weights_checksum(checkpoint, config)) {
    throw InputError(
        fmt::format("{}: was packed from another model ({}), not from {}", name, s.model, folder.string()));
  }
  if (!(s.layout.glu == config.glu) || s.layout.biased != config.expert_bias ||
      s.layout.scaled == config.names.expert_scale.empty()) {
    throw InputError(
        fmt::format("{}: was packed with other activations, biases or scales of experts than {} has: pack it again",
                    name, folder.string()));
  }
}

std::vector<Precision> StoreFacts::stored() const {
  std::vector<Precision> all;
  for (const Precision p : storable) {
    if (has(p)) all.push_back(p);
  }
  return all;
}

std::uint64_t StoreFacts::block(Variant v) const {
  std::uint64_t before = 0;
  for (const Precision p : stored()) before += p < v.precision ? 1 : 0;
  return before * numbers.all() + numbers.number(v.id);
}

std::uint64_t StoreFacts::blocks() const {
  return static_cast<std::uint64_t>(std::popcount(precisions)) * numbers.all();
}

std::uint32_t StoreFacts::most_of_layer() const {
  std::uint32_t most = 0;
  for (std::uint32_t l = 0; l < numbers.layers(); ++l) most = std::max(most, numbers.of_layer(l));
  return most;
}

std::vector<ExpertLayout> StoreFacts::layouts() const {
  std::vector<ExpertLayout> all{layout};
  for (std::uint32_t l = 1; l < widths.size(); ++l) all.push_back(layout_of(l));
  return all;
}

std::uint64_t StoreFacts::most_bytes(Precision p) const {
  ExpertLayout widest = layout;
  if (!widths.empty()) widest.width = *std::max_element(widths.begin(), widths.end());
  return widest.bytes(p);
}

std::uint64_t StoreFacts::bytes_of_first(std::uint64_t count, Precision p) const {
  if (widths.empty()) return count * whole_blocks(layout.bytes(p));
  std::uint64_t bytes = 0;
  for (std::uint32_t l = 0; l < numbers.layers() && count > 0; ++l) {
    const std::uint64_t here = std::min<std::uint64_t>(count, numbers.of_layer(l));
    bytes += here * whole_blocks(layout_of(l).bytes(p));
    count -= here;
  }
  return bytes;
}

std::uint64_t StoreFacts::index_at() const {
  return whole_blocks(header_at + header_bytes);
}

std::uint64_t StoreFacts::blocks_at() const {
  return index_at() + whole_blocks(sums() * sizeof(std::uint64_t));
}

std::uint64_t StoreFacts::at(Variant v) const {
  std::uint64_t at = blocks_at();
  for (const Precision p : stored()) {
    if (p < v.precision) at += bytes_of_first(numbers.all(), p);
  }
  return at + bytes_of_first(numbers.number(v.id), v.precision);
}

std::uint64_t StoreFacts::file_bytes() const {
  std::uint64_t bytes = blocks_at();
  for (const Precision p : stored()) bytes += bytes_of_first(numbers.all(), p);
  return bytes;
}

Json StoreFacts::to_json() const {
  Json names = Json::array();
  for (const Precision p : stored()) names.push_back(layout.name(p));
  Json json = {{"ferry", FERRY_VERSION},
               {"model", model},
               {"layers", numbers.layers()},
               {"experts", most_of_layer()},
               {"hidden", layout.hidden},
               {"width", widths.empty() ? layout.width : *std::max_element(widths.begin(), widths.end())},
               {"type", layout.name(Precision::full)},
               {"group", layout.group},
               {"quantizer", quantizer == Quantizer::hqq ? "hqq" : "nearest"},
               {"precisions", names},
               {"weights", weights},
               {"source", source}};
  if (numbers.all() != std::uint64_t{numbers.layers()} * most_of_layer()) {
    for (std::uint32_t l = 0; l < numbers.layers(); ++l) json["layer_experts"].push_back(numbers.of_layer(l));
  }
  if (!widths.empty()) json["layer_widths"] = widths;
  if (layout.biased) json["biases"] = true;
  if (layout.scaled) json["scales"] = true;
  if (rounded) json["rounded"] = true;
  if (layout.glu.clamped) json["glu"] = {{"alpha", layout.glu.alpha}, {"limit", layout.glu.limit}};
  if (layout.glu.weighs_input) json["weighs_input"] = true;
  if (layout.glu.gelu) json["gelu"] = true;
  return json;
}

StoreIndex read_store(BlockFile& file, const std::string& name) {
  auto refuse = [&](const std::string& what) { throw InputError(fmt::format("{}: {}", name, what)); };
  auto read = [&](std::uint64_t at, std::uint64_t bytes) {
    BlockMemory memory(bytes);
    for (std::uint64_t got = 0; got < bytes;) {
      const std::int64_t n = file.read(at + got, memory.data() + got, bytes - got);
      if (n < 0) refuse(fmt::format("cannot be read: {}", std::strerror(static_cast<int>(-n))));
      const std::uint64_t whole = static_cast<std::uint64_t>(n) / block_alignment * block_alignment;
      if (whole == 0) refuse(fmt::format("the file ends at byte {} of {}: it is truncated", at + got, file.size()));
      got += whole;
    }
    return memory;
  };
  if (file.size() < block_alignment) {
    refuse(fmt::format("not an expert store: {} bytes, expected at least {}", file.size(), block_alignment));
  }
  Start start{};
  std::memcpy(&start, read(0, block_alignment).data(), sizeof(start));
  if (std::memcmp(start.magic, part_magic, 8) == 0) {
    refuse("an expert store that is not finished: run its ferry pack again, which goes on where it ended");
  }
  if (std::memcmp(start.magic, store_magic, 8) != 0) refuse("not an expert store: ferry pack makes one");
  if (start.version != version)
    refuse(fmt::format("version {} of the format, expected {}: pack it again", start.version, version));
  if (start.header_bytes > largest_header || header_at + start.header_bytes > file.size()) {
    refuse(fmt::format("the header takes {} bytes: the file is damaged or truncated", start.header_bytes));
  }
  const BlockMemory first = read(0, whole_blocks(header_at + start.header_bytes));
  const std::string header(reinterpret_cast<const char*>(first.data()) + header_at, start.header_bytes);
  StoreIndex index;
  index.facts = facts_of(parse_json(header, name + ": header"), name);
  index.facts.header_bytes = header.size();
  if (index.facts.file_bytes() != file.size()) {
    refuse(fmt::format("{} bytes, expected {} by its header: the file is {}", file.size(), index.facts.file_bytes(),
                       file.size() < index.facts.file_bytes() ? "truncated" : "damaged"));
  }
  const BlockMemory sums = read(index.facts.index_at(), index.facts.blocks_at() - index.facts.index_at());
  index.checksums.resize(index.facts.sums());
  std::memcpy(index.checksums.data(), sums.data(), index.checksums.size() * sizeof(std::uint64_t));
  if (sum_of(header, index.checksums) != start.sum) refuse("the checksum of its header differs: the file is damaged");
  index.sources.assign(index.checksums.begin() + static_cast<std::ptrdiff_t>(index.facts.blocks()),
                       index.checksums.end());
  index.checksums.resize(index.facts.blocks());
  return index;
}

StoreWriter::StoreWriter(const std::filesystem::path& path, const StoreFacts& facts,
                         const std::function<std::uint64_t(ExpertId)>& source,
                         const std::function<bool(std::uint64_t, std::uint64_t)>& progress)
    : path_(file_behind(path)), part_(path_.string() + ".part"), facts_(facts), header_(json_text(facts.to_json())) {
  std::error_code none;
  if (std::filesystem::exists(path_, none) && !std::filesystem::is_regular_file(path_, none)) {
    throw InputError(fmt::format("{}: cannot be written: it exists and is not a regular file", path.string()));
  }
  check_replaceable(path_, store_file);
  if (header_.size() > largest_header) throw InputError(fmt::format("{}: its header is too long", path.string()));
  facts_.header_bytes = header_.size();
  fd_ = ::open(part_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666);
  if (fd_ < 0) refuse(errno);
  try {
    struct stat info {
    }, now{};
    const bool locked_by_another = ::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;  // some know no locks
    if (::fstat(fd_, &info) != 0) refuse(errno);
    // Another pack may have renamed the file since it was opened: then it is no part file any more.
    if (locked_by_another || ::lstat(part_.c_str(), &now) != 0 || info.st_ino != now.st_ino ||
        info.st_dev != now.st_dev) {
      throw InputError(fmt::format("{}: another ferry pack is writing it", path_.string()));
    }
    if (!S_ISREG(info.st_mode)) throw InputError(fmt::format("{}: not a regular file", part_.string()));
    std::string there(header_at + header_.size(), '\0');
    const Start start = {{}, version, static_cast<std::uint32_t>(header_.size()), 0};
    std::string wanted(reinterpret_cast<const char*>(&start), header_at);
    wanted.replace(0, 8, part_magic);
    wanted += header_;
    const bool same = static_cast<std::uint64_t>(info.st_size) == facts_.file_bytes();
    std::string magic(8, '\0');
    if (info.st_size >= 8) get(0, magic.data(), 8);
    if (same) {
      get(0, there.data(), there.size());
      there.replace(0, header_at, wanted, 0, header_at);  // a pack that ended in `commit` left a store's start
    }
    const bool going_on = same && there == wanted && (magic == part_magic || magic == store_magic);
    // All zeros: the power failed before the first bytes reached the disk.
    const bool zeros =
        same && there.find_first_not_of('\0', header_at) == std::string::npos && magic == std::string(8, '\0');
    if (!going_on && info.st_size > 0 && magic != part_magic && !zeros) {
      throw InputError(fmt::format("{}: is there, and no unfinished store: move it away", part_.string()));
    }
    if (going_on) {
      put(0, wanted.data(), header_at);
      check(source, progress);
    } else {
      reserve();
      put(0, wanted.data(), wanted.size());
    }
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

StoreWriter::~StoreWriter() {
  ::close(fd_);
}

void StoreWriter::reserve() {
  const auto bytes = static_cast<off_t>(facts_.file_bytes());
  int error = ::ftruncate(fd_, 0) == 0 ? 0 : errno;
  // A pack that ends from here on leaves a file that says what it is.
  if (error == 0) {
    errno = ENOSPC;
    if (::pwrite(fd_, part_magic, 8, 0) != 8) error = errno;
  }
  if (error == 0 && ::fallocate(fd_, 0, 0, bytes) != 0) {
    // Not every file system can reserve; there a full disk shows later.
    error = errno == EOPNOTSUPP && ::ftruncate(fd_, bytes) == 0 ? 0 : errno;
  }
  if (error == 0) return;
  ::unlink(part_.c_str());
  refuse(error);
}

void StoreWriter::check(const std::function<std::uint64_t(ExpertId)>& source,
                        const std::function<bool(std::uint64_t, std::uint64_t)>& progress) {
  ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);  // reads what is on the disk, not the page cache
  const std::vector<std::uint64_t> sums = index();
  BlockMemory memory(whole_blocks(facts_.most_bytes(Precision::full)));
  for (; done_ < facts_.numbers.all(); ++done_) {
    if (!progress(done_, facts_.numbers.all())) return;
    const ExpertId id = facts_.numbers.id(done_);
    const ExpertLayout layout = facts_.layout_of(id.layer);
    for (const Precision p : facts_.stored()) {
      get(facts_.at({id, p}), memory.data(), layout.bytes(p));
      if (checksum(memory.data(), layout.bytes(p)) != sums[facts_.block({id, p})]) return;
    }
    if (source(id) != sums[facts_.blocks() + done_]) return;
  }
}

void StoreWriter::write(Variant what, const std::byte* bytes) {
  const std::uint64_t size = facts_.layout_of(what.id.layer).bytes(what.precision), sum = checksum(bytes, size);
  put(facts_.at(what), bytes, size);
  put(facts_.index_at() + facts_.block(what) * sizeof(sum), &sum, sizeof(sum));
}

void StoreWriter::write_source(ExpertId id, std::uint64_t sum) {
  put(facts_.index_at() + (facts_.blocks() + facts_.numbers.number(id)) * sizeof(sum), &sum, sizeof(sum));
}

std::vector<std::uint64_t> StoreWriter::index() const {
  std::vector<std::uint64_t> sums(facts_.sums());
  get(facts_.index_at(), sums.data(), sums.size() * sizeof(std::uint64_t));
  return sums;
}

void StoreWriter::commit() {
  Start start{{}, version, static_cast<std::uint32_t>(header_.size()), sum_of(header_, index())};
  if (::fsync(fd_) != 0) refuse(errno);  // blocks reach the disk before the magic that vouches for them
  std::memcpy(start.magic, store_magic, 8);
  put(0, &start, sizeof(start));
  if (::fsync(fd_) != 0 || ::rename(part_.c_str(), path_.c_str()) != 0) refuse(errno);
  const int folder = ::open(path_.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    static_cast<void>(::fsync(folder));
    ::close(folder);
  }
}

void StoreWriter::discard() {
  ::unlink(part_.c_str());
}

void StoreWriter::get(std::uint64_t at, void* data, std::uint64_t bytes) const {
  for (auto* to = static_cast<std::byte*>(data); bytes > 0;) {
    const ReadUnderWay watched;
    const ssize_t n = ::pread(fd_, to, bytes, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw InputError(fmt::format("{}: cannot be read: {}", part_.string(), std::strerror(n == 0 ? EIO : errno)));
    }
    to += n;
    at += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::uint64_t>(n);
  }
}

void StoreWriter::put(std::uint64_t at, const void* data, std::uint64_t bytes) {
  for (const auto* from = static_cast<const std::byte*>(data); bytes > 0;) {
    const ssize_t n = ::pwrite(fd_, from, bytes, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) refuse(n == 0 ? EIO : errno);
    from += n;
    at += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::uint64_t>(n);
  }
}

void StoreWriter::refuse(int error) const {
  const bool room = error == ENOSPC || error == EFBIG || error == EDQUOT;
  throw InputError(fmt::format("{}: cannot be written: {}{}", part_.string(), std::strerror(error),
                               room ? fmt::format(" (the store takes {} bytes)", facts_.file_bytes()) : ""));
}

}  // namespace ferry::engine
