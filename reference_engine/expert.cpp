#include "expert.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "errors.hpp"

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

/// One matrix of an expert as floats. Returns where the next one begins.
const std::byte* to_floats(DType full, Precision p, const std::byte* from, std::uint32_t rows, std::uint32_t columns,
                           Matrix& to) {
  if (p == Precision::full) return widen(full, from, rows, columns, to);
  const QuantizedLayout quantized{rows, columns, code_bits(p)};
  to.resize(rows, columns);
  dequantize(quantized, from, to.data());
  return from + quantized.bytes();
}

}  // namespace

ExpertStore::ExpertStore(const Checkpoint& checkpoint, const ModelConfig& c) : experts_(c.experts) {
  const bool mixtral = c.architecture == Architecture::mixtral;
  auto name = [&](std::uint32_t layer, std::uint32_t expert, int part) {
    static constexpr const char* ours[] = {"gate_proj", "up_proj", "down_proj"};
    static constexpr const char* theirs[] = {"w1", "w3", "w2"};
    return mixtral ? fmt::format("model.layers.{}.block_sparse_moe.experts.{}.{}.weight", layer, expert, theirs[part])
                   : fmt::format("model.layers.{}.mlp.experts.{}.{}.weight", layer, expert, ours[part]);
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
  auto& all = bytes_[static_cast<unsigned>(p)];
  if (p == Precision::skip || !all.empty()) return;
  const auto& full = bytes_[static_cast<unsigned>(Precision::full)];
  const std::uint64_t experts = full.size() / layout_.bytes();
  all.resize(experts * layout_.bytes(p));
  const std::byte* from = full.data();
  std::byte* to = all.data();
  Matrix weights;
  for (std::uint64_t e = 0; e < experts; ++e) {
    for (int part = 0; part < 3; ++part) {
      QuantizedLayout quantized{layout_.width, layout_.hidden, code_bits(p)};
      if (part == 2) std::swap(quantized.rows, quantized.columns);
      from = widen(layout_.dtype, from, quantized.rows, quantized.columns, weights);
      quantize(quantized, weights.data(), to);
      to += quantized.bytes();
    }
  }
}

std::uint8_t ExpertStore::precisions() const {
  unsigned stored = 0;
  for (std::uint32_t p = 0; p < precision_count; ++p) stored |= bytes_[p].empty() ? 0U : 1U << p;
  return static_cast<std::uint8_t>(stored);
}

void ExpertKernel::run(const std::byte* expert, Precision p, const Matrix& x, Matrix& y) {
  const std::uint32_t hidden = layout_.hidden, width = layout_.width;
  expert = to_floats(layout_.dtype, p, expert, width, hidden, weights_gate_);
  expert = to_floats(layout_.dtype, p, expert, width, hidden, weights_up_);
  to_floats(layout_.dtype, p, expert, hidden, width, weights_down_);
  linear(x, weights_gate_, gate_);
  linear(x, weights_up_, up_);
  swiglu(gate_, up_);
  linear(gate_, weights_down_, y);
}

}  // namespace ferry::engine
