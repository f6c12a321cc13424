/// @file
/// A matrix of a checkpoint in memory, in the type that it was stored in.
#pragma once
#include <cstddef>
#include <cstring>
#include <memory>

#include "checkpoint/safetensors.hpp"
#include "math/matrix.hpp"
#include "math/packed_product.hpp"

namespace ferry::engine {

/// Half of the bytes of floats for the types that models come in, in memory and for each token. Copies share the bytes.
class StoredMatrix {
 public:
  StoredMatrix() = default;
  /// Copies the tensor's bytes, [rows, columns]. Throws InputError, naming it, for a type that holds no weights.
  StoredMatrix(const Tensor& tensor, const std::string& name, std::uint64_t rows, std::uint64_t columns)
      : layout_{static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(columns), float_type(tensor, name)},
        bytes_(new std::byte[tensor.bytes]) {
    std::memcpy(bytes_.get(), tensor.data, tensor.bytes);
  }
  /// The transpose of such a matrix, [rows, columns]: W is [columns, rows].
  static StoredMatrix transposed(const Tensor& tensor, const std::string& name, std::uint64_t rows,
                                 std::uint64_t columns) {
    StoredMatrix m(tensor, name, columns, rows);
    const std::uint64_t each = tensor.bytes / (rows * columns);
    for (std::uint64_t r = 0; r < rows; ++r) {
      for (std::uint64_t c = 0; c < columns; ++c) {
        std::memcpy(m.bytes_.get() + (c * rows + r) * each, tensor.data + (r * columns + c) * each, each);
      }
    }
    return m;
  }

  /// How W lies in memory.
  [[nodiscard]] const PassThroughLayout& layout() const { return layout_; }
  [[nodiscard]] const std::byte* bytes() const { return bytes_.get(); }
  /// y = x W^T. x: [rows, columns of W], y: [rows, rows of W].
  void times(const Matrix& x, PackedProduct& product, Matrix& y) const { product.run(x, {times(y)}); }
  /// The same as a factor, for several matrices at once.
  [[nodiscard]] PackedProduct::Factor times(Matrix& y) const { return {layout_, bytes_.get(), &y}; }
  /// One row of W, [columns].
  void row(std::uint32_t index, float* to) const { unpack_row(layout_, bytes_.get(), index, to); }

 private:
  PassThroughLayout layout_;
  std::shared_ptr<std::byte[]> bytes_;
};

}  // namespace ferry::engine
