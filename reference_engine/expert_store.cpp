#include "expert_store.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "errors.hpp"
#include "ferry/codec/round_to_nearest.hpp"
#include "host_math.hpp"

namespace ferry::engine {
namespace {

template <class T>
const std::byte* widen(const std::byte* from, Eigen::Index rows, Eigen::Index columns, Matrix& to) {
  using Stored = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  to = Eigen::Map<const Stored>(reinterpret_cast<const T*>(from), rows, columns).template cast<float>();
  return from + static_cast<std::size_t>(rows * columns) * sizeof(T);
}

const std::byte* widen(DType type, const std::byte* from, Eigen::Index rows, Eigen::Index columns, Matrix& to) {
  switch (type) {
    case DType::bf16:
      return widen<Eigen::bfloat16>(from, rows, columns, to);
    case DType::f16:
      return widen<Eigen::half>(from, rows, columns, to);
    default:
      return widen<float>(from, rows, columns, to);
  }
}

std::string tensor_name(Architecture architecture, std::uint64_t layer, std::uint64_t expert, int part) {
  static constexpr const char* ours[] = {"gate_proj", "up_proj", "down_proj"};
  static constexpr const char* theirs[] = {"w1", "w3", "w2"};
  return architecture == Architecture::mixtral
             ? fmt::format("model.layers.{}.block_sparse_moe.experts.{}.{}.weight", layer, expert, theirs[part])
             : fmt::format("model.layers.{}.mlp.experts.{}.{}.weight", layer, expert, ours[part]);
}

}  // namespace

ExpertStore::ExpertStore(const Checkpoint& checkpoint, const ModelConfig& c)
    : architecture_(c.architecture), experts_(c.experts) {
  auto name = [&](std::uint32_t layer, std::uint32_t expert, int part) {
    return tensor_name(architecture_, layer, expert, part);
  };
  const std::vector<std::uint64_t> wide{c.expert_width, c.hidden}, narrow{c.hidden, c.expert_width};
  layout_ = {c.hidden, c.expert_width, checkpoint.at(name(0, 0, 0), wide).dtype};
  // Dimensions are at most 2^20: what passes here has less than 4 GiB at low precision, too.
  if (layout_.bytes() > 0xffffffffULL)
    throw InputError(fmt::format("tensor \"{}\": experts of 4 GiB and more are not supported", name(0, 0, 0)));
  auto& all = bytes_[static_cast<unsigned>(Precision::full)];
  all.resize(std::size_t{c.layers} * c.experts * layout_.bytes());
  std::byte* to = all.data();
  for (std::uint32_t l = 0; l < c.layers; ++l) {
    for (std::uint32_t e = 0; e < c.experts; ++e) {
      for (int part = 0; part < 3; ++part) {
        const Tensor& t = checkpoint.at(name(l, e, part), part == 2 ? narrow : wide);
        if (t.dtype != layout_.dtype) {
          throw InputError(fmt::format("tensor \"{}\" is {}, expected the type of the first expert", name(l, e, part),
                                       t.dtype_name));
        }
        std::memcpy(to, t.data, t.bytes);
        to += t.bytes;
      }
    }
  }
}

void ExpertStore::add(Precision p) {
  if (p == Precision::skip || !bytes_[static_cast<unsigned>(p)].empty()) return;
  const auto& full = bytes_[static_cast<unsigned>(Precision::full)];
  const std::uint64_t experts = full.size() / layout_.bytes();
  std::vector<std::byte> all(experts * layout_.bytes(p));
  const std::byte* from = full.data();
  std::byte* to = all.data();
  Matrix weights;
  for (std::uint64_t e = 0; e < experts; ++e) {
    for (int part = 0; part < 3; ++part) {
      const PackedLayout packed = layout_.packed(part, p);
      from = widen(layout_.dtype, from, packed.rows, packed.columns, weights);
      const std::size_t bad = pack(packed, weights.data(), to, RoundToNearest{});
      if (bad != no_weight) {
        throw InputError(fmt::format("tensor \"{}\": the weight at [{}, {}] is {}, INT{} holds finite weights only",
                                     tensor_name(architecture_, e / experts_, e % experts_, part), bad / packed.columns,
                                     bad % packed.columns, weights.data()[bad], packed.bits));
      }
      to += packed.bytes();
    }
  }
  bytes_[static_cast<unsigned>(p)] = std::move(all);
}

std::uint8_t ExpertStore::precisions() const {
  unsigned stored = 0;
  for (std::uint32_t p = 0; p < precision_count; ++p) stored |= bytes_[p].empty() ? 0U : 1U << p;
  return static_cast<std::uint8_t>(stored);
}

}  // namespace ferry::engine
