/// @file
/// An ExpertRunner that only computes: no policy, no link, nothing to report.
#pragma once
#include "inference/expert_runner.hpp"

namespace ferry::test {

/// What derives from it has `plan` and `run`.
class BareRunner : public engine::ExpertRunner {
 public:
  void begin_step(Phase /*phase*/, const std::vector<std::uint32_t>& /*sequences*/) override {}
  void run_resident(std::uint16_t /*layer*/, const engine::Matrix& /*input*/) override {}
  [[nodiscard]] bool wants_partial(std::uint16_t /*layer*/) const override { return false; }
  void partial(engine::Matrix& /*out*/) const override {}
  void look_ahead(std::uint16_t /*layer*/, const engine::Matrix& /*scores*/) override {}
  [[nodiscard]] bool waits() const override { return false; }
  void finish(std::uint16_t /*layer*/) override {}
  void end_sequence(std::uint32_t /*sequence*/) override {}
  void abandon() override {}
  [[nodiscard]] const Counters& counters() const override { return counters_; }
  [[nodiscard]] double link_peak_bytes_per_s() const override { return 0; }
  [[nodiscard]] std::vector<Span> link_spans() const override { return {}; }
  [[nodiscard]] std::uint64_t arena_bytes() const override { return 0; }
  [[nodiscard]] std::uint64_t slots(Precision /*p*/) const override { return 0; }
  [[nodiscard]] std::uint64_t copy_bytes(Precision /*p*/) const override { return 0; }
  [[nodiscard]] std::uint16_t look_ahead_depth() const override { return 0; }
  [[nodiscard]] Accuracy prediction_accuracy(std::uint16_t /*distance*/, std::uint16_t /*layer*/) const override {
    return {};
  }
  [[nodiscard]] std::pair<Nanoseconds, Nanoseconds> gate_worker() const override { return {}; }

 private:
  Counters counters_;
};

}  // namespace ferry::test
