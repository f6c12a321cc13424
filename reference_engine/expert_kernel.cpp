#include "expert_kernel.hpp"

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

/// Matrix `part` of an expert as floats. Returns where the next one begins.
const std::byte* to_floats(const ExpertLayout& layout, int part, Precision p, const std::byte* from, Matrix& to) {
  const PackedLayout packed = layout.packed(part, p);  // rows and columns are the same at `full`
  if (p == Precision::full) return widen(layout.dtype, from, packed.rows, packed.columns, to);
  to.resize(packed.rows, packed.columns);
  for (std::uint32_t row = 0; row < packed.rows; ++row) unpack_row(packed, from, row, to.row(row).data());
  return from + packed.bytes();
}

}  // namespace

void ExpertKernel::run(const std::byte* expert, Precision p, const Matrix& x, Matrix& y) {
  expert = to_floats(layout_, 0, p, expert, weights_gate_);
  expert = to_floats(layout_, 1, p, expert, weights_up_);
  to_floats(layout_, 2, p, expert, weights_down_);
  linear(x, weights_gate_, gate_);
  linear(x, weights_up_, up_);
  swiglu(gate_, up_);
  linear(gate_, weights_down_, y);
}

}  // namespace ferry::engine
