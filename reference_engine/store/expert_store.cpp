#include "store/expert_store.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "ferry/codec/hqq.hpp"
#include "ferry/codec/round_to_nearest.hpp"
#include "support/errors.hpp"

namespace ferry::engine {
namespace {

std::string tensor_name(Architecture architecture, ExpertId id, int part) {
  static constexpr const char* ours[] = {"gate_proj", "up_proj", "down_proj"};
  static constexpr const char* theirs[] = {"w1", "w3", "w2"};
  return architecture == Architecture::mixtral
             ? fmt::format("model.layers.{}.block_sparse_moe.experts.{}.{}.weight", id.layer, id.expert, theirs[part])
             : fmt::format("model.layers.{}.mlp.experts.{}.{}.weight", id.layer, id.expert, ours[part]);
}

std::vector<std::uint64_t> shape(const ExpertLayout& l, int part) {
  return part == 2 ? std::vector<std::uint64_t>{l.hidden, l.width} : std::vector<std::uint64_t>{l.width, l.hidden};
}

ExpertId id_of(std::uint64_t number, std::uint32_t experts) {
  return {static_cast<std::uint16_t>(number / experts), static_cast<std::uint16_t>(number % experts)};
}

}  // namespace

const Tensor& expert_tensor(const Checkpoint& checkpoint, const ModelConfig& c, std::uint32_t layer,
                            std::uint32_t expert, int part) {
  const ExpertId id{static_cast<std::uint16_t>(layer), static_cast<std::uint16_t>(expert)};
  return checkpoint.at(tensor_name(c.architecture, id, part), shape({c.hidden, c.expert_width}, part));
}

ExpertReader::ExpertReader(const Checkpoint& checkpoint, const ModelConfig& c) : checkpoint_(checkpoint), config_(c) {
  const std::string first = tensor_name(c.architecture, {}, 0);
  layout_ = {c.hidden, c.expert_width};
  layout_.dtype = checkpoint.at(first, shape(layout_, 0)).dtype;
  // Dimensions are at most 2^20: what passes here has less than 4 GiB at low precision, too.
  if (layout_.bytes() > 0xffffffffULL) {
    throw InputError(fmt::format("tensor \"{}\": experts of 4 GiB and more are not supported", first));
  }
  for (std::uint64_t n = 0; n < std::uint64_t{c.layers} * c.experts; ++n) {
    for (int part = 0; part < 3; ++part) {
      const std::string name = tensor_name(c.architecture, id_of(n, c.experts), part);
      const Tensor& t = checkpoint.at(name, shape(layout_, part));
      if (t.dtype != layout_.dtype) {
        throw InputError(fmt::format("tensor \"{}\" is {}, expected the type of the first expert", name, t.dtype_name));
      }
    }
  }
}

void ExpertReader::read(ExpertId id, std::byte* to) const {
  for (int part = 0; part < 3; ++part) {
    checkpoint_.read(tensor_name(config_.architecture, id, part), shape(layout_, part),
                     to + layout_.part_at(part, Precision::full));
  }
}

void ExpertPacker::pack(const std::byte* expert, Variant what, int part, std::byte* out) const {
  out += to.part_at(part, what.precision);
  const PackedLayout packed = to.packed(part, what.precision);  // rows and columns are the same at `full`
  const Tensor stored{
      from.dtype, "", {packed.rows, packed.columns}, expert + from.part_at(part, Precision::full), from.bytes() / 3};
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
                               tensor_name(architecture, what.id, part), bad / packed.columns, bad % packed.columns,
                               weights[bad], to.name(what.precision)));
}

MemoryStore::MemoryStore(const Checkpoint& checkpoint, const ModelConfig& c, Quantizer quantizer)
    : layers_(c.layers), experts_(c.experts) {
  const ExpertReader reader(checkpoint, c);
  packer_ = {reader.layout(), reader.layout(), quantizer, c.architecture};
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
