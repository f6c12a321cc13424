#include "expert.hpp"

#include <fmt/format.h>

#include <cstring>

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
  if (layout_.bytes() > 0xffffffffULL)
    throw InputError(fmt::format("tensor \"{}\": experts of 4 GiB and more are not supported", name(0, 0, 0)));
  bytes_.resize(std::size_t{c.layers} * c.experts * layout_.bytes());
  std::byte* to = bytes_.data();
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

void ExpertKernel::run(const std::byte* expert, const Matrix& x, Matrix& y) {
  const Eigen::Index hidden = layout_.hidden, width = layout_.width;
  expert = widen(layout_.dtype, expert, width, hidden, weights_gate_);
  expert = widen(layout_.dtype, expert, width, hidden, weights_up_);
  widen(layout_.dtype, expert, hidden, width, weights_down_);
  linear(x, weights_gate_, gate_);
  linear(x, weights_up_, up_);
  swiglu(gate_, up_);
  linear(gate_, weights_down_, y);
}

}  // namespace ferry::engine
