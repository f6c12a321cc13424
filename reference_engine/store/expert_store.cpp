#include "store/expert_store.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "ferry/codec/hqq.hpp"
#include "ferry/codec/round_to_nearest.hpp"
#include "support/errors.hpp"

namespace ferry::engine {
namespace {

/// Of one expert's matrix.
std::vector<std::uint64_t> shape_of(const ExpertLayout& l, int part) {
  return part == 2 ? std::vector<std::uint64_t>{l.hidden, l.width} : std::vector<std::uint64_t>{l.width, l.hidden};
}

ExpertId id_of(std::uint64_t number, std::uint32_t experts) {
  return {static_cast<std::uint16_t>(number / experts), static_cast<std::uint16_t>(number % experts)};
}

/// [rows, columns] to [count, rows]: every `step`th column from `first` on; `each` bytes an element.
void transpose(const std::byte* from, std::uint64_t rows, std::uint64_t columns, std::uint64_t first,
               std::uint64_t step, std::uint64_t count, std::uint64_t each, std::byte* to) {
  for (std::uint64_t c = first; c < first + count * step; c += step) {
    for (std::uint64_t r = 0; r < rows; ++r, to += each) std::memcpy(to, from + (r * columns + c) * each, each);
  }
}

}  // namespace

std::string expert_tensor_name(const ModelConfig& c, ExpertStorage storage, ExpertId id, int part) {
  const std::uint32_t layer = c.moe_layers[id.layer];
  if (storage != ExpertStorage::separate) return c.tensor(layer, c.names.fused[part == 2 ? 1 : 0]);
  return c.tensor(
      layer, fmt::format("{}{}.{}.weight", c.names.experts, id.expert, c.names.parts[static_cast<std::size_t>(part)]));
}

ExpertReader::ExpertReader(const Checkpoint& checkpoint, const ModelConfig& c)
    : checkpoint_(checkpoint), config_(c), storage_(c.storage) {
  // Newer files of families that have always had a tensor an expert have one for all experts of a layer.
  if (storage_ == ExpertStorage::separate && checkpoint.find(expert_tensor_name(c, storage_, {}, 0)) == nullptr &&
      checkpoint.find(expert_tensor_name(c, ExpertStorage::fused_rows, {}, 0)) != nullptr) {
    storage_ = ExpertStorage::fused_rows;
  }
  layout_ = {c.hidden, c.expert_width};
  layout_.biased = c.expert_bias;
  layout_.glu = c.glu;
  const Piece first = piece({}, 0);
  layout_.dtype = checkpoint.at(first.name, first.shape).dtype;
  // Dimensions are at most 2^20: what passes here has less than 4 GiB at low precision, too.
  if (layout_.bytes() > 0xffffffffULL) {
    throw InputError(fmt::format("tensor \"{}\": experts of 4 GiB and more are not supported", first.name));
  }
  const std::uint32_t each = storage_ == ExpertStorage::separate ? 1 : c.experts;
  for (std::uint64_t n = 0; n < c.routed_experts(); n += each) {
    for (int part = 0; part < 3; ++part) {
      const Piece p = piece(id_of(n, c.experts), part);
      check(p.name, p.shape);
    }
    if (!layout_.biased) continue;
    const std::uint32_t layer = c.moe_layers[id_of(n, c.experts).layer];
    static_cast<void>(checkpoint.at(c.tensor(layer, c.names.fused[0] + "_bias"), {c.experts, 2ULL * c.expert_width}));
    static_cast<void>(checkpoint.at(c.tensor(layer, c.names.fused[1] + "_bias"), {c.experts, c.hidden}));
  }
}

void ExpertReader::check(const std::string& name, const std::vector<std::uint64_t>& shape) const {
  const Tensor& t = checkpoint_.at(name, shape);
  if (t.dtype == layout_.dtype) return;
  throw InputError(fmt::format("tensor \"{}\" is {}, expected the type of the first expert", name, t.dtype_name));
}

ExpertReader::Piece ExpertReader::piece(ExpertId id, int part) const {
  Piece p{expert_tensor_name(config_, storage_, id, part), shape_of(layout_, part)};
  const std::uint64_t hidden = layout_.hidden, width = layout_.width, experts = config_.experts;
  const std::uint64_t one = layout_.part_bytes(part, Precision::full);
  p.bytes = one;
  if (storage_ == ExpertStorage::fused_rows) {
    p.shape = part == 2 ? std::vector{experts, hidden, width} : std::vector{experts, 2 * width, hidden};
    p.first = part == 2 ? id.expert * one : (2ULL * id.expert + static_cast<unsigned>(part)) * one;
  } else if (storage_ != ExpertStorage::separate) {
    p.shape = part == 2 ? std::vector{experts, width, hidden} : std::vector{experts, hidden, 2 * width};
    p.bytes = part == 2 ? one : 2 * one;
    p.first = id.expert * p.bytes;
  }
  return p;
}

View<const std::byte> ExpertReader::stored(ExpertId id, int part) const {
  const Piece p = piece(id, part);
  return {checkpoint_.at(p.name, p.shape).data + p.first, static_cast<std::uint32_t>(p.bytes)};
}

void ExpertReader::read(const Piece& p, std::byte* to) const {
  checkpoint_.read(p.name, p.shape, p.first, p.bytes, to);
}

void ExpertReader::read(ExpertId id, std::byte* to) const {
  if (storage_ == ExpertStorage::fused_columns || storage_ == ExpertStorage::interleaved_columns) {
    read_columns(id, to);
  } else {
    for (int part = 0; part < 3; ++part) read(piece(id, part), to + layout_.part_at(part, Precision::full));
  }
  if (layout_.biased) read_biases(id, to + layout_.part_at(3, Precision::full));
}

void ExpertReader::read_columns(ExpertId id, std::byte* to) const {
  const std::uint64_t hidden = layout_.hidden, width = layout_.width, each = layout_.dtype == DType::f32 ? 4 : 2;
  std::vector<std::byte> stored(2 * hidden * width * each);
  read(piece(id, 0), stored.data());
  for (int part = 0; part < 2; ++part) {
    const bool in_turn = storage_ == ExpertStorage::interleaved_columns;
    const std::uint64_t first = static_cast<unsigned>(part) * (in_turn ? 1 : width);
    transpose(stored.data(), hidden, 2 * width, first, in_turn ? 2 : 1, width, each,
              to + layout_.part_at(part, Precision::full));
  }
  read(piece(id, 2), stored.data());
  transpose(stored.data(), width, hidden, 0, 1, hidden, each, to + layout_.part_at(2, Precision::full));
}

void ExpertReader::read_biases(ExpertId id, std::byte* to) const {
  const std::uint32_t layer = config_.moe_layers[id.layer];
  std::vector<float> biases(2 * std::size_t{layout_.width} + layout_.hidden);
  const auto of = [&](const std::string& name, std::uint64_t size) {
    Tensor t = checkpoint_.at(config_.tensor(layer, name + "_bias"), {config_.experts, size});
    t.bytes /= config_.experts;
    t.data += id.expert * t.bytes;
    t.shape = {size};
    return t.to_floats();
  };
  const std::vector<float> both = of(config_.names.fused[0], 2ULL * layout_.width);
  const std::vector<float> down = of(config_.names.fused[1], layout_.hidden);
  for (std::size_t i = 0; i < layout_.width; ++i) {
    biases[i] = both[2 * i];
    biases[layout_.width + i] = both[2 * i + 1];
  }
  std::copy(down.begin(), down.end(), biases.begin() + 2 * static_cast<std::ptrdiff_t>(layout_.width));
  std::memcpy(to, biases.data(), layout_.bias_bytes());
}

void ExpertPacker::pack(const std::byte* expert, Variant what, int part, std::byte* out) const {
  if (part == 2 && to.biased) {
    std::memcpy(out + to.part_at(3, what.precision), expert + from.part_at(3, Precision::full), to.bias_bytes());
  }
  out += to.part_at(part, what.precision);
  const PackedLayout packed = to.packed(part, what.precision);  // rows and columns are the same at `full`
  const Tensor stored{from.dtype,
                      "",
                      {packed.rows, packed.columns},
                      expert + from.part_at(part, Precision::full),
                      from.part_bytes(part, Precision::full)};
  const std::vector<float> weights = stored.to_floats();
  std::size_t bad = no_weight;
  if (what.precision == Precision::full) {
    bad = ferry::pack(to.plain(part), weights.data(), out);
  } else if (quantizer == Quantizer::hqq) {
    bad = ferry::pack(packed, weights.data(), out, Hqq{});
  } else {
    bad = ferry::pack(packed, weights.data(), out, RoundToNearest{});
  }
  if (bad == no_weight) return;
  throw InputError(fmt::format("tensor \"{}\": the weight at [{}, {}] is {}, which {} cannot hold",
                               expert_tensor_name(config, config.storage, what.id, part), bad / packed.columns,
                               bad % packed.columns, weights[bad], to.name(what.precision)));
}

MemoryStore::MemoryStore(const Checkpoint& checkpoint, const ModelConfig& c, Quantizer quantizer)
    : layers_(c.moe_layer_count()), experts_(c.experts) {
  const ExpertReader reader(checkpoint, c);
  packer_ = {reader.layout(), reader.layout(), quantizer, c};
  auto& all = bytes_[static_cast<unsigned>(Precision::full)];
  all.resize(std::size_t{layers_} * experts_ * layout().bytes());
  for (std::uint64_t n = 0; n < std::uint64_t{layers_} * experts_; ++n) {
    reader.read(id_of(n, experts_), all.data() + n * layout().bytes());
  }
}

void MemoryStore::add(Precision p) {
  if (p == Precision::skip || !bytes_[static_cast<unsigned>(p)].empty()) return;
  const std::uint64_t experts = std::uint64_t{layers_} * experts_;
  std::vector<std::byte> all(experts * layout().bytes(p));
  for (std::uint64_t n = 0; n < experts; ++n) {
    const Variant what{id_of(n, experts_), p};
    const std::byte* full = bytes({what.id, Precision::full}).view.data;
    for (int part = 0; part < 3; ++part) packer_.pack(full, what, part, all.data() + n * layout().bytes(p));
  }
  bytes_[static_cast<unsigned>(p)] = std::move(all);
}

std::uint8_t MemoryStore::precisions() const {
  unsigned stored = 0;
  for (std::uint32_t p = 0; p < precision_count; ++p) stored |= bytes_[p].empty() ? 0U : 1U << p;
  return static_cast<std::uint8_t>(stored);
}

HeldBytes MemoryStore::bytes(Variant v) const {
  const std::vector<std::byte>& all = bytes_[static_cast<unsigned>(v.precision)];
  if (all.empty()) return {};
  const std::uint64_t each = layout().bytes(v.precision);
  return View<const std::byte>{all.data() + (std::size_t{v.id.layer} * experts_ + v.id.expert) * each,
                               static_cast<std::uint32_t>(each)};
}

}  // namespace ferry::engine
