/// @file
/// Ferry's decisions for a model that llama.cpp runs from a mapped file.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "ferry/any_pipeline.hpp"
#include "gate_scores.hpp"
#include "page_link.hpp"
#include "stacks/configured_stack.hpp"

namespace ferry::llama_cpp {

struct DriverOptions {
  std::string stack = "lru", budget = "25%";
  std::uint32_t max_rows = 128, threads = 4;
  bool releases = true;
};

/// Between a layer's gate and its experts it plans, reads the pages of missing experts in, and releases those of experts that
/// the stack evicts; prefetches follow. llama.cpp computes all experts of a layer at once, so a layer counts as over at the
/// next layer's gate. Experts that get no slot are left to the kernel.
class Driver {
 public:
  /// To be made after the first forward pass. Throws InputError for a stack that needs more of an engine than copies.
  Driver(const GateWatcher& watcher, const Session& session, const DriverOptions& options);

  void begin_step(const PassedStep& step);
  /// From the watcher's `on_gate`.
  void at_gate(std::uint16_t layer, const GateRows& rows);
  void end_step() { finish(); }

  [[nodiscard]] const Counters& counters() const { return pipe_->counters(); }
  [[nodiscard]] std::uint64_t slot_bytes() const { return stack_.config->settings().allotment.bytes(); }
  /// The time that steps waited for copies, and the time that filling the slots took before the first step.
  [[nodiscard]] Nanoseconds waited() const { return waited_; }
  [[nodiscard]] Nanoseconds filled() const { return filled_; }

 private:
  void look_ahead(std::uint16_t layer, const GateRows& rows);
  void finish();

  GateScores scores_;
  ExpertPages pages_;
  engine::ConfiguredStack stack_;
  std::unique_ptr<PageLink> link_;
  std::unique_ptr<AnyPipeline> pipe_;
  PassedStep step_;
  std::vector<std::uint32_t> sequences_;
  Plan plan_;
  std::uint16_t open_ = no_layer;
  Nanoseconds begun_ = 0;  ///< when the layer's computation began
  Nanoseconds waited_ = 0, filled_ = 0;
};

}  // namespace ferry::llama_cpp
