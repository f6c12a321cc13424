/// @file
/// Small models and calls, for tests.
#pragma once
#include <algorithm>
#include <vector>

#include "ferry/allotment.hpp"
#include "ferry/model.hpp"

namespace ferry::test {

inline ModelShape model(std::uint16_t layers, std::uint16_t experts, std::uint16_t top_k, std::uint32_t max_rows = 1,
                        std::uint64_t bytes = 64, std::uint64_t low_bytes = 0) {
  ModelShape m;
  m.layers = layers;
  m.experts = experts;
  m.top_k = top_k;
  m.renormalise = Renormalise::no;
  m.max_rows = max_rows;
  m.expert_bytes = {ExpertBytes{0, 0, low_bytes, 0, bytes}};
  return m;
}

/// The bytes of one expert at its best precision.
inline std::uint64_t largest_bytes(const ModelShape& model) {
  std::uint64_t most = 0;
  for (const ExpertBytes& b : model.expert_bytes) most = std::max(most, *std::max_element(b.begin(), b.end()));
  return most;
}

inline Scores scores(std::uint16_t layer, const std::vector<float>& s) {
  const View<const float> v{s.data(), static_cast<std::uint32_t>(s.size())};
  return {layer, v, v};
}

/// Scores of one row in which exactly these experts win, in this order.
inline std::vector<float> favour(std::uint16_t experts, const std::vector<std::uint16_t>& best) {
  std::vector<float> s(experts, 0.0F);
  for (std::size_t i = 0; i < best.size(); ++i) s[best[i]] = 1.0F - 0.01F * static_cast<float>(i);
  return s;
}

inline Variant full(std::uint16_t layer, std::uint16_t expert) {
  return {{layer, expert}, Precision::full};
}

/// A step with one row for each of `rows` sequences.
class StepOf {
 public:
  StepOf(Phase phase, std::uint32_t rows) : sequence_(rows) {
    for (std::uint32_t i = 0; i < rows; ++i) sequence_[i] = phase == Phase::decode ? i : 0;
    step_ = {phase, {sequence_.data(), rows}};
  }
  operator const Step&() const { return step_; }

 private:
  std::vector<std::uint32_t> sequence_;
  Step step_;
};

}  // namespace ferry::test
