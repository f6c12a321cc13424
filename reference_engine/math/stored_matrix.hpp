/// @file
/// A matrix of a checkpoint in memory, in the type that it was stored in.
#pragma once
#include <cstddef>
#include <cstring>
#include <memory>
#include <variant>
#include <vector>

#include "checkpoint/tensor.hpp"
#include "math/matrix.hpp"
#include "math/packed_product.hpp"

namespace ferry::engine {

/// Takes half the bytes of floats in the types that models come in, in memory and for each token. Copies share the bytes.
class StoredMatrix {
 public:
  StoredMatrix() = default;
  /// Copies the tensor, [rows, columns], whose type holds weights.
  StoredMatrix(const Tensor& tensor, std::uint64_t rows, std::uint64_t columns)
      : layout_(plain_layout(tensor.stored(), static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(columns))),
        bytes_(new std::byte[tensor.stored_bytes()]) {
    tensor.copy_stored(bytes_.get());
  }
  /// The transpose of such a matrix, [rows, columns]: W is [columns, rows].
  static StoredMatrix transposed(const Tensor& tensor, std::uint64_t rows, std::uint64_t columns) {
    // Blocks are of columns: what is in them becomes floats.
    const bool blocks = std::holds_alternative<BlockLayout>(plain_layout(tensor.stored(), 1, 1));
    std::vector<float> floats;
    Tensor from = tensor;
    if (blocks) {
      floats = tensor.to_floats();
      from.dtype = DType::f32;
      from.data = reinterpret_cast<const std::byte*>(floats.data());
      from.bytes = floats.size() * sizeof(float);
    }
    StoredMatrix m(from, columns, rows);
    const std::uint64_t each = from.bytes / (rows * columns);
    for (std::uint64_t r = 0; r < rows; ++r) {
      for (std::uint64_t c = 0; c < columns; ++c) {
        std::memcpy(m.bytes_.get() + (c * rows + r) * each, from.data + (r * columns + c) * each, each);
      }
    }
    return m;
  }

  /// How W lies in memory.
  [[nodiscard]] StoredLayout layout() const {
    return std::visit([](const auto& l) -> StoredLayout { return l; }, layout_);
  }
  [[nodiscard]] std::uint32_t rows() const {
    return std::visit([](const auto& l) { return l.rows; }, layout_);
  }
  [[nodiscard]] const std::byte* bytes() const { return bytes_.get(); }
  /// y = x W^T. x: [rows, columns of W], y: [rows, rows of W].
  void times(const Matrix& x, PackedProduct& product, Matrix& y) const { product.run(x, {times(y)}); }
  /// The same as a factor, for several matrices at once.
  [[nodiscard]] PackedProduct::Factor times(Matrix& y) const { return {layout(), bytes_.get(), &y}; }
  /// One row of W, [columns].
  void row(std::uint32_t index, float* to) const {
    std::visit([&](const auto& l) { unpack_row(l, bytes_.get(), index, to); }, layout_);
  }

 private:
  PlainLayout layout_;
  std::shared_ptr<std::byte[]> bytes_;
};

}  // namespace ferry::engine
