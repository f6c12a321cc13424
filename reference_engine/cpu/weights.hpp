/// @file
/// What every token needs, out of a checkpoint.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/safetensors.hpp"
#include "math/matrix.hpp"
#include "math/stored_matrix.hpp"

namespace ferry::engine {

/// Reads matrices and vectors by name. Throws InputError, naming what is missing or misshapen.
class Weights {
 public:
  using Find = std::function<const Tensor&(const std::string& name, const std::vector<std::uint64_t>& shape)>;
  explicit Weights(Find find) : find_(std::move(find)) {}

  /// [rows, columns], in its own type.
  [[nodiscard]] StoredMatrix matrix(const std::string& name, std::uint64_t rows, std::uint64_t columns) const {
    return StoredMatrix(find_(name, {rows, columns}), name, rows, columns);
  }
  /// Rows of a tensor [all, columns], from `first` on.
  [[nodiscard]] StoredMatrix rows_of(const std::string& name, std::uint64_t all, std::uint64_t columns,
                                     std::uint64_t first, std::uint64_t rows) const {
    return StoredMatrix(part(name, all, columns, first, rows), name, rows, columns);
  }
  /// The transpose of such rows, [columns, rows].
  [[nodiscard]] StoredMatrix columns_of(const std::string& name, std::uint64_t all, std::uint64_t columns,
                                        std::uint64_t first, std::uint64_t rows) const {
    return StoredMatrix::transposed(part(name, all, columns, first, rows), name, rows, columns);
  }
  struct Rows {
    std::uint64_t first, count;
  };
  /// Some rows of a tensor [all, columns], one behind the other.
  [[nodiscard]] StoredMatrix gathered(const std::string& name, std::uint64_t all, std::uint64_t columns,
                                      const std::vector<Rows>& rows) const {
    Tensor t = find_(name, {all, columns});
    const std::uint64_t row = t.bytes / all;
    std::vector<std::byte> bytes;
    for (const Rows& r : rows) bytes.insert(bytes.end(), t.data + r.first * row, t.data + (r.first + r.count) * row);
    t.shape = {bytes.size() / row, columns};
    t.data = bytes.data();
    t.bytes = bytes.size();
    return StoredMatrix(t, name, t.shape[0], columns);
  }
  [[nodiscard]] Vector vector(const std::string& name, std::uint64_t size) const { return floats(name, {size}, size); }
  /// The same of a tensor of another shape.
  [[nodiscard]] Vector floats(const std::string& name, const std::vector<std::uint64_t>& shape,
                              std::uint64_t size) const {
    const std::vector<float> values = find_(name, shape).to_floats();
    return Eigen::Map<const Vector>(values.data(), static_cast<Eigen::Index>(size));
  }

 private:
  [[nodiscard]] Tensor part(const std::string& name, std::uint64_t all, std::uint64_t columns, std::uint64_t first,
                            std::uint64_t rows) const {
    Tensor t = find_(name, {all, columns});
    const std::uint64_t row = t.bytes / all;
    t.shape = {rows, columns};
    t.data += first * row;
    t.bytes = rows * row;
    return t;
  }

  Find find_;
};

}  // namespace ferry::engine
