/// @file
/// The computation of one expert from its bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "math/expert.hpp"
#include "math/matrix.hpp"
#include "math/packed_product.hpp"

namespace ferry::engine {

/// Runs experts straight from their stored form. Owns the scratch memory for it.
class ExpertKernel {
 public:
  /// `workers` share what is computed at once, and `activations` are as PackedProduct has them.
  explicit ExpertKernel(const ExpertLayout& layout, ProductPath path = best_path(), WorkerPool* workers = nullptr,
                        Activations activations = Activations::floats)
      : ExpertKernel(std::vector<ExpertLayout>{layout}, path, workers, activations) {}
  /// One for all layers, or where they differ one a layer.
  explicit ExpertKernel(std::vector<ExpertLayout> layouts, ProductPath path = best_path(),
                        WorkerPool* workers = nullptr, Activations activations = Activations::floats)
      : layouts_(std::move(layouts)), workers_(workers), product_(path, workers, activations) {}

  /// One expert and the rows that it computes.
  struct Work {
    const std::byte* expert;             ///< one block as ExpertLayout describes, at any address
    Precision precision;                 ///< not `skip`
    View<const std::uint32_t> selected;  ///< rows of results; row a belongs to row a / top_k of x
    const Route* routes = nullptr;       ///< of all rows of results: where what experts read is weighed
    std::uint16_t layer = 0;
  };
  /// results = down (silu(gate x) * up x) for the selected rows of each expert, with biases, with a scale and by another
  /// function if the layout says so. x: [rows, hidden], results: [rows * top_k, hidden]. Experts of one layer are computed
  /// together, up to some hundred rows at a time. A row's result does not depend on how many rows and experts there are, nor on
  /// its place.
  void run(View<const Work> experts, std::uint32_t top_k, const Matrix& x, float* results);

  /// The same for all rows and one expert. y: [rows, hidden].
  void run(const std::byte* expert, Precision p, const Matrix& x, Matrix& y);

 private:
  struct Scratch {
    part::Rows wide, narrow;  // what gate and up, and what down are multiplied with
    std::uint32_t first_row = 0;
  };

  /// call(work, row) for each row of the scratch memory.
  template <class Call>
  void each_row(View<const Work> experts, const Call& call) const;
  void run_together(View<const Work> experts, std::uint32_t top_k, const Matrix& x, float* results);
  void gather(View<const Work> experts, std::uint32_t top_k, const Matrix& x);
  void add_products(View<const Work> experts, int part, part::Rows Scratch::*with, std::vector<float>& y,
                    std::uint32_t columns);
  void activate_all(View<const Work> experts, std::uint32_t width);
  void finish(View<const Work> experts, std::uint32_t width, float* results);
  [[nodiscard]] const std::byte* biases(const Work& work) const;
  [[nodiscard]] const ExpertLayout& layout(const Work& work) const {
    return layouts_[layouts_.size() == 1 ? 0 : work.layer];
  }

  std::vector<ExpertLayout> layouts_;
  WorkerPool* workers_;
  PackedProduct product_;
  std::vector<Scratch> scratch_;             // an expert each
  std::vector<float> gate_, up_, out_;       // rows of all of them, one behind the other; never shrink
  std::vector<std::uint32_t> places_, all_;  // of the rows among results; 0, 1, 2, ...
  std::vector<PackedProduct::Input> inputs_;
  std::vector<PackedProduct::Product> products_;
};

/// A task of a plan, for ExpertKernel.
inline ExpertKernel::Work work_of(const Plan& plan, const Task& task, const std::byte* expert) {
  return {expert,
          task.what.precision,
          {plan.assignments.data + task.first, task.rows},
          plan.routes.data,
          task.what.id.layer};
}

}  // namespace ferry::engine
