/// @file
/// What every token needs, out of a checkpoint.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/tensor.hpp"
#include "math/matrix.hpp"
#include "math/stored_matrix.hpp"

namespace ferry::engine {

/// Reads matrices and vectors by name. Throws InputError, naming what is missing or misshapen.
class Weights {
 public:
  using Find = std::function<const Tensor&(const std::string& name, const std::vector<std::uint64_t>& shape)>;
  using Has = std::function<bool(const std::string& name)>;
  Weights(Find find, Has has) : find_(std::move(find)), has_(std::move(has)) {}

  [[nodiscard]] bool has(const std::string& name) const { return has_(name); }

  /// [rows, columns], in its own type.
  [[nodiscard]] StoredMatrix matrix(const std::string& name, std::uint64_t rows, std::uint64_t columns) const {
    return StoredMatrix(find_(name, {rows, columns}), rows, columns);
  }
  /// Rows of a tensor [all, columns], from `first` on.
  [[nodiscard]] StoredMatrix rows_of(const std::string& name, std::uint64_t all, std::uint64_t columns,
                                     std::uint64_t first, std::uint64_t rows) const {
    const Stored& whole = stored(name, {all, columns});
    return StoredMatrix(whole.part(all, columns, first, rows), rows, columns);
  }
  /// One of a tensor's matrices [count, rows, columns].
  [[nodiscard]] StoredMatrix matrix_of(const std::string& name, std::uint64_t count, std::uint64_t rows,
                                       std::uint64_t columns, std::uint64_t index) const {
    const Stored& whole = stored(name, {count, rows, columns});
    return StoredMatrix(whole.part(count * rows, columns, index * rows, rows), rows, columns);
  }
  /// The transpose of such rows, [columns, rows].
  [[nodiscard]] StoredMatrix columns_of(const std::string& name, std::uint64_t all, std::uint64_t columns,
                                        std::uint64_t first, std::uint64_t rows) const {
    const Stored& whole = stored(name, {all, columns});
    return StoredMatrix::transposed(whole.part(all, columns, first, rows), rows, columns);
  }
  struct Rows {
    std::uint64_t first, count;
  };
  /// Some rows of a tensor [all, columns], one behind the other.
  [[nodiscard]] StoredMatrix gathered(const std::string& name, std::uint64_t all, std::uint64_t columns,
                                      const std::vector<Rows>& rows) const {
    const Stored& whole = stored(name, {all, columns});
    Tensor t = whole.tensor;
    const std::uint64_t row = t.bytes / all;
    std::vector<std::byte> bytes;
    for (const Rows& r : rows) bytes.insert(bytes.end(), t.data + r.first * row, t.data + (r.first + r.count) * row);
    t.shape = {bytes.size() / row, columns};
    t.data = bytes.data();
    t.bytes = bytes.size();
    return StoredMatrix(t, t.shape[0], columns);
  }
  [[nodiscard]] Vector vector(const std::string& name, std::uint64_t size) const { return floats(name, {size}, size); }
  /// The same of a tensor of another shape.
  [[nodiscard]] Vector floats(const std::string& name, const std::vector<std::uint64_t>& shape,
                              std::uint64_t size) const {
    const std::vector<float> values = find_(name, shape).to_floats();
    return Eigen::Map<const Vector>(values.data(), static_cast<Eigen::Index>(size));
  }

 private:
  /// A tensor as it lies in memory, where rows are one behind the other.
  struct Stored {
    std::vector<std::byte> bytes;
    Tensor tensor;

    explicit Stored(const Tensor& from) : tensor(from) {
      if (from.stored() == from.dtype) return;
      bytes.resize(from.stored_bytes());
      from.copy_stored(bytes.data());
      tensor.dtype = from.stored();
      tensor.data = bytes.data();
      tensor.bytes = bytes.size();
    }
    [[nodiscard]] Tensor part(std::uint64_t all, std::uint64_t columns, std::uint64_t first, std::uint64_t rows) const {
      Tensor t = tensor;
      const std::uint64_t row = t.bytes / all;
      t.shape = {rows, columns};
      t.data += first * row;
      t.bytes = rows * row;
      return t;
    }
  };

  /// Parts of the same tensor are taken one after another: it is brought into its form in memory once.
  [[nodiscard]] const Stored& stored(const std::string& name, const std::vector<std::uint64_t>& shape) const {
    if (name != last_name_) {
      last_.emplace(find_(name, shape));
      last_name_ = name;
    }
    return *last_;
  }

  mutable std::string last_name_;
  mutable std::optional<Stored> last_;
  Find find_;
  Has has_;
};

}  // namespace ferry::engine
