/// @file
/// What the host takes for experts, learned from what it took.
#pragma once
#include "ferry/model.hpp"

namespace ferry::inline FERRY_ABI::detail {

/// An expert with n rows takes a + b n on the host: a to read its weights, b to compute each row. Both are fitted to the times
/// of layers, each with its numbers of experts and of rows, by least squares of the relative error. So a layer in which
/// something else had the processor counts for little; one that took less than a quarter of what was expected counts as if it
/// had taken that quarter. A layer's weight halves in 177 others. While the rows per expert stay the same, as with one
/// sequence in decode, b stays as it was; until they first differ, all of a layer's time counts as taken by its rows.
///
/// Both shrink by 1/1024 with each layer of which the host computes nothing, to 1/64 at least, until the host is tried again:
/// otherwise a first layer that was slow because of cold caches would keep the host out for ever.
///
/// Nothing is learned where one of the host's times for experts or rows was given (`CoreSettings::costs`). All precisions
/// count as equally long. A placement weighs the larger of a + b and b n; where the two are equal, that is less than a + b n,
/// by up to half. All calls O(1), but for what `note` is given. State: 72 bytes.
class HostCosts {
 public:
  explicit HostCosts(const LayerCosts& told) : told_(told.host_row_ns > 0) {
    for (const Nanoseconds ns : told.host_ns) told_ = told_ || ns > 0;
  }

  /// A layer whose share of the host was these tasks: `row_ns` is what it took, over their rows.
  FERRY_HD void note(View<const Task> tasks, Nanoseconds row_ns) noexcept {
    if (told_) return;
    if (tasks.size == 0 && shrunk_ > 1.0 / 64) shrunk_ *= 1 - 1.0 / 1024;
    double rows = 0;
    for (const Task& t : tasks) rows += t.rows;
    if (rows == 0 || row_ns <= 0) return;
    shrunk_ = 1;
    double took = static_cast<double>(row_ns);  // a row
    const double experts = tasks.size / rows, expected = row_ < 0 ? one() * experts : expert_ * experts + row_;
    if (took < expected / 4) took = expected / 4;
    const double y = 1 / took, x = y * experts;
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
    const double a = (x_ - each_row() * xy_) / xx_;
    expert_ = row_ < 0 || a < 0 ? 0 : a;
  }

  /// What is known by now.
  FERRY_HD void tell(LayerCosts& costs) const noexcept {
    if (xx_ == 0) return;
    for (std::uint32_t p = 1; p < precision_count; ++p) costs.host_ns[p] = whole(one() * shrunk_);
    costs.host_row_ns = whole(each_row() * shrunk_);
  }

 private:
  /// An expert with one row.
  FERRY_HD double one() const noexcept { return row_ >= 0 ? expert_ + row_ : xx_ > 0 ? x_ / xx_ : 0; }
  /// b, or while it is unknown what a row took in all.
  FERRY_HD double each_row() const noexcept { return row_ >= 0 ? row_ : yy_ > 0 ? y_ / yy_ : 0; }

  static constexpr double most = 1e15;  ///< what a time may be: 11 days
  FERRY_HD static Nanoseconds whole(double ns) noexcept {
    return static_cast<Nanoseconds>(ns < 1 ? 1 : ns < most ? ns + 0.5 : most);
  }

  double xx_ = 0, xy_ = 0, yy_ = 0, x_ = 0, y_ = 0;  ///< over layers: experts and rows a nanosecond, and their products
  double expert_ = 0, row_ = -1;                     ///< a and b, -1 while unknown
  double shrunk_ = 1;                                ///< factor of both, 1 when the host was last measured
  bool told_ = false;
};

}  // namespace ferry::inline FERRY_ABI::detail
