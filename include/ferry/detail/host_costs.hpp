/// @file
/// What the host takes for experts, learned from what it took.
#pragma once
#include "ferry/model.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// An expert on the host takes a + b rows: to read its weights, and to compute each row. Both are fitted to what layers took,
/// a layer being so many experts with so many rows in all, by least squares of the relative error; a layer counts half as
/// much 177 layers later. Where the rows an expert never differ, as with one sequence in decode, b stays as it was; before it
/// ever differed each row counts as what the first one took.
///
/// Nothing is learned where the host's times were told (`CoreSettings::costs`). All precisions count as equally long.
/// All calls O(1), but for what `note` is given. State: 64 bytes.
class HostCosts {
 public:
  explicit HostCosts(const LayerCosts& told) {
    for (const Nanoseconds ns : told.host_ns) told_ = told_ || ns > 0;
  }

  /// A layer whose share of the host was these tasks: `row_ns` is what it took, over their rows.
  FERRY_HD void note(View<const Task> tasks, Nanoseconds row_ns) noexcept {
    if (told_ || row_ns <= 0 || tasks.size == 0) return;
    double rows = 0;
    for (const Task& t : tasks) rows += t.rows;
    if (rows == 0) return;
    const double y = 1 / static_cast<double>(row_ns), x = y * tasks.size / rows;
    constexpr double keep = 1 - 1.0 / 256;
    xx_ = xx_ * keep + x * x;
    xy_ = xy_ * keep + x * y;
    yy_ = yy_ * keep + y * y;
    x_ = x_ * keep + x;
    y_ = y_ * keep + y;
    const double differ = xx_ * yy_ - xy_ * xy_;
    if (differ > 0.01 * xx_ * yy_) {
      const double b = (xx_ * y_ - xy_ * x_) / differ;
      const double all = y_ / yy_;  // as if nothing but rows took time
      row_ = b < 0 ? 0 : b < all ? b : all;
    }
    const double a = (x_ - (row_ < 0 ? 0 : row_) * xy_) / xx_;
    expert_ = a > 0 ? a : 0;
  }

  /// What is known by now.
  FERRY_HD void tell(LayerCosts& costs) const noexcept {
    if (xx_ == 0) return;
    const double one = expert_ + (row_ < 0 ? 0 : row_);
    for (std::uint32_t p = 1; p < precision_count; ++p) costs.host_ns[p] = whole(one);
    costs.host_row_ns = whole(row_ < 0 ? x_ / xy_ : row_);
  }

 private:
  static constexpr double most = 1e15;  ///< what a time may be: 11 days
  FERRY_HD static Nanoseconds whole(double ns) noexcept {
    return static_cast<Nanoseconds>(ns < 1 ? 1 : ns < most ? ns : most);
  }

  double xx_ = 0, xy_ = 0, yy_ = 0, x_ = 0, y_ = 0;  ///< over layers: experts and rows a nanosecond, and their products
  double expert_ = 0, row_ = -1;                     ///< a and b, -1 while unknown
  bool told_ = false;
};

}  // namespace ferry::inline FERRY_ABI::detail
