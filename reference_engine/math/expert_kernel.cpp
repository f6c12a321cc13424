#include "math/expert_kernel.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "math/host_math.hpp"
#include "math/share_work.hpp"

namespace ferry::engine {
namespace {

/// Enough rows to keep all threads busy in little memory: with 4,096 and 14,336 columns, 256 rows take about 40 MB.
constexpr std::uint32_t rows_together = 256;

void activate(const Glu& glu, float* gate, const float* up, Eigen::Index width, Eigen::RowVectorXf& scratch) {
  Eigen::Map<Eigen::RowVectorXf> g(gate, width);
  const Eigen::Map<const Eigen::RowVectorXf> u(up, width);
  // Into a vector of its own: where the row lies must not decide which elements share a vector register.
  if (glu.clamped) {
    scratch = g.array().min(glu.limit);
    scratch = scratch.array() / (1.0F + (-glu.alpha * scratch.array()).exp());
    scratch.array() *= u.array().min(glu.limit).max(-glu.limit) + 1.0F;
  } else if (glu.gelu) {
    scratch = gelu(g.array()) * u.array();
  } else {
    scratch = g.array() / (1.0F + (-g.array()).exp()) * u.array();
  }
  g = scratch;
}

/// Biases follow an expert's matrices and may be unaligned.
void add_bias(float* y, const std::byte* bias, std::uint32_t size) {
  for (std::uint32_t i = 0; i < size; ++i, bias += sizeof(float)) {
    float b;
    std::memcpy(&b, bias, sizeof(b));
    y[i] += b;
  }
}

float* row_of(std::vector<float>& m, std::uint32_t row, std::uint32_t columns) {
  return m.data() + std::size_t{row} * columns;
}

}  // namespace

void ExpertKernel::run(View<const Work> experts, std::uint32_t top_k, const Matrix& x, float* results) {
  for (std::uint32_t first = 0, end; first < experts.size; first = end) {
    std::uint32_t rows = experts[first].selected.size;
    for (end = first + 1; end < experts.size && rows + experts[end].selected.size <= rows_together; ++end) {
      rows += experts[end].selected.size;
    }
    run_together({experts.data + first, end - first}, top_k, x, results);
  }
}

void ExpertKernel::run_together(View<const Work> experts, std::uint32_t top_k, const Matrix& x, float* results) {
  const std::uint32_t hidden = layouts_[0].hidden, width = layout(experts[0]).width;
  gather(experts, top_k, x);
  const std::size_t rows = places_.size();
  for (std::vector<float>* m : {&gate_, &up_}) m->resize(std::max(m->size(), rows * width));
  out_.resize(std::max(out_.size(), rows * hidden));

  product_.prepare(inputs_);
  products_.clear();
  add_products(experts, 0, &Scratch::wide, gate_, width);
  add_products(experts, 1, &Scratch::wide, up_, width);
  product_.multiply(products_);
  activate_all(experts, width);

  inputs_.resize(experts.size);
  for (std::uint32_t e = 0; e < experts.size; ++e) {
    inputs_[e] = {.w = layout(experts[e]).stored(2, experts[e].precision),
                  .x = row_of(gate_, scratch_[e].first_row, width),
                  .rows = experts[e].selected.size,
                  .to = &scratch_[e].narrow};
  }
  product_.prepare(inputs_);
  products_.clear();
  add_products(experts, 2, &Scratch::narrow, out_, hidden);
  product_.multiply(products_);
  finish(experts, width, results);
}

/// Collects the rows of all experts, and the inputs of gate and up.
void ExpertKernel::gather(View<const Work> experts, std::uint32_t top_k, const Matrix& x) {
  if (scratch_.size() < experts.size) scratch_.resize(experts.size);
  places_.clear();
  inputs_.clear();
  for (std::uint32_t e = 0; e < experts.size; ++e) {
    const Work& work = experts[e];
    scratch_[e].first_row = static_cast<std::uint32_t>(places_.size());
    places_.insert(places_.end(), work.selected.begin(), work.selected.end());
    const StoredLayout gate = layout(work).stored(0, work.precision), up = layout(work).stored(1, work.precision);
    inputs_.push_back({.w = gate,
                       .x = x.data(),
                       .rows = work.selected.size,
                       .which = work.selected.data,
                       .divisor = top_k,
                       .to = &scratch_[e].wide});
    if (product_.is_int8(gate) == product_.is_int8(up)) continue;
    inputs_.push_back(inputs_.back());
    inputs_.back().w = up;
  }
}

/// Adds the products of one matrix of each expert with the expert's prepared rows, which go to its rows of `y`.
void ExpertKernel::add_products(View<const Work> experts, int part, part::Rows Scratch::*with, std::vector<float>& y,
                                std::uint32_t columns) {
  for (std::uint32_t e = 0; e < experts.size; ++e) {
    const Precision p = experts[e].precision;
    const ExpertLayout& l = layout(experts[e]);
    products_.push_back({l.stored(part, p), experts[e].expert + l.part_at(part, p), &(scratch_[e].*with),
                         row_of(y, scratch_[e].first_row, columns)});
  }
}

/// Turns the outputs of gate and up into the input of down, in `gate_`.
void ExpertKernel::activate_all(View<const Work> experts, std::uint32_t width) {
  if (layouts_[0].biased) {
    each_row(experts, [&](const Work& work, std::uint32_t row) {
      add_bias(row_of(gate_, row, width), biases(work), width);
      add_bias(row_of(up_, row, width), biases(work) + width * sizeof(float), width);
    });
  }
  if (layouts_[0].glu.weighs_input) {  // gate and up are linear: scaling outputs is the same
    each_row(experts, [&](const Work& work, std::uint32_t row) {
      const float weight = work.routes[places_[row]].weight;
      for (std::vector<float>* m : {&gate_, &up_}) {
        Eigen::Map<Eigen::RowVectorXf>(row_of(*m, row, width), width) *= weight;
      }
    });
  }
  constexpr std::uint64_t products_of_silu = 40;  // products that take as long as one SiLU
  const auto rows = static_cast<std::uint32_t>(places_.size());
  share_work(workers_, rows, products_of_silu * rows * width, [&](std::uint32_t first, std::uint32_t end) {
    Eigen::RowVectorXf scratch(width);
    for (std::uint32_t row = first; row < end; ++row) {
      activate(layouts_[0].glu, row_of(gate_, row, width), row_of(up_, row, width), width, scratch);
    }
  });
}

/// Copies the outputs of down to their places in `results`.
void ExpertKernel::finish(View<const Work> experts, std::uint32_t width, float* results) {
  const std::uint32_t hidden = layouts_[0].hidden;
  each_row(experts, [&](const Work& work, std::uint32_t row) {
    float* const y = row_of(out_, row, hidden);
    if (layouts_[0].biased) add_bias(y, biases(work) + 2 * std::size_t{width} * sizeof(float), hidden);
    if (layouts_[0].scaled) {
      float scale;
      std::memcpy(&scale, work.expert + layout(work).bytes(work.precision) - sizeof(scale), sizeof(scale));
      Eigen::Map<Eigen::RowVectorXf>(y, hidden) *= scale;
    }
    std::copy_n(y, hidden, results + std::size_t{places_[row]} * hidden);
  });
}

const std::byte* ExpertKernel::biases(const Work& work) const {
  return work.expert + layout(work).part_at(3, work.precision);
}

template <class Call>
void ExpertKernel::each_row(View<const Work> experts, const Call& call) const {
  for (std::uint32_t e = 0; e < experts.size; ++e) {
    for (std::uint32_t i = 0; i < experts[e].selected.size; ++i) call(experts[e], scratch_[e].first_row + i);
  }
}

void ExpertKernel::run(const std::byte* expert, Precision p, const Matrix& x, Matrix& y) {
  resize(y, x.rows(), layouts_[0].hidden);
  all_.resize(static_cast<std::size_t>(x.rows()));
  std::iota(all_.begin(), all_.end(), 0U);
  const Work work{expert, p, all_};
  run({&work, 1}, 1, x, y.data());
}

}  // namespace ferry::engine
