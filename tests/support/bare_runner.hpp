/// @file
/// An ExpertRunner that only computes: no policy, no link, nothing to report.
#pragma once
#include "inference/expert_runner.hpp"

namespace ferry::test {

/// Derived classes implement `plan` and `run`.
class BareRunner : public engine::ExpertRunner {
 public:
  void begin_step(Phase /*phase*/, const std::vector<std::uint32_t>& /*sequences*/) override {}
  void run_resident(std::uint16_t /*layer*/, const engine::Matrix& /*input*/) override {}
  [[nodiscard]] bool wants_partial(std::uint16_t /*layer*/) const override { return false; }
  void partial(engine::Matrix& /*out*/) const override {}
  void look_ahead(std::uint16_t /*layer*/, const engine::GateScores& /*scores*/) override {}
  [[nodiscard]] bool waits() const override { return false; }
  void finish(std::uint16_t /*layer*/) override {}
  void end_sequence(std::uint32_t /*sequence*/) override {}
  void abandon() override {}
  [[nodiscard]] engine::RunnerStatistics statistics() const override { return {}; }
  [[nodiscard]] std::vector<Span> link_spans() const override { return {}; }
};

}  // namespace ferry::test
