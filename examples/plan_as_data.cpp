// Decisions as data: no link, no bytes of experts, no callback. `Core` is what decides behind a pipeline; what it wants
// done is written to a log, which somebody else carries out: another thread, a process beside the GPU, or a later run.
// Core checks none of its arguments: a pipeline does, so develop with one.
#include <cstdio>
#include <cstring>
#include <random>

#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"

namespace {

constexpr std::uint32_t layers = 4, experts = 16, top_k = 2;
constexpr std::size_t expert_bytes = 512;

/// Lists of plain structs, each behind its length: all words of model.hpp may be copied byte by byte.
class Log {
 public:
  template <class T>
  void write(ferry::View<const T> list) {
    const auto* bytes = reinterpret_cast<const std::byte*>(list.data);
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof list.size + list.size * sizeof(T));
    std::memcpy(&bytes_[at], &list.size, sizeof list.size);
    if (list.size > 0) std::memcpy(&bytes_[at + sizeof list.size], bytes, list.size * sizeof(T));
  }
  template <class T>
  std::vector<T> read() {
    std::uint32_t size = 0;
    std::memcpy(&size, &bytes_[at_], sizeof size);
    std::vector<T> list(size);
    if (size > 0) std::memcpy(list.data(), &bytes_[at_ + sizeof size], size * sizeof(T));
    at_ += sizeof size + size * sizeof(T);
    return list;
  }
  bool ended() const { return at_ == bytes_.size(); }
  std::size_t bytes() const { return bytes_.size(); }

 private:
  std::vector<std::byte> bytes_;
  std::size_t at_ = 0;
};

/// The side that decides. It writes pairs: copies, then the tasks that may run behind them.
class Decider {
  using Stack = ferry::stacks::CrossLayerLru;

 public:
  explicit Decider(const ferry::CoreConfig<Stack>& config) : core_(config) {}

  /// `scores_of(layer)`: the gate's; a real engine has them from the side that computes, layer by layer.
  template <class ScoresOf>
  void step(const ferry::Step& step, const ScoresOf& scores_of, Log& log) {
    core_->begin_step(step);
    for (std::uint16_t l = 0; l < layers; ++l) {
      const ferry::Plan plan = core_->plan(scores_of(l), seen_);
      copies(log);
      log.write(plan.resident);
      core_->done(plan.resident);
      for (std::uint16_t distance = 1;; ++distance) {
        const std::uint16_t next = core_->layer_ahead(ferry::RowSource::gate_input, distance);
        if (next == ferry::no_layer) break;
        core_->look_ahead(scores_of(next), seen_);
        copies(log);
        log.write(ferry::View<const ferry::Task>());
      }
      for (const ferry::Task& task : plan.arriving) {
        log.write(ferry::View<const ferry::Copy>());
        log.write(ferry::View<const ferry::Task>(&task, 1));
        core_->done({&task, 1});  // frees its slot, if others wait for it: their copies are commands of this call
        copies(log);
        log.write(ferry::View<const ferry::Task>());
      }
      core_->finish(l, {}, seen_);
      copies(log);
      log.write(ferry::View<const ferry::Task>());
    }
  }
  const ferry::Outcomes& outcomes() const { return core_->counters().of(ferry::Phase::decode); }

 private:
  /// The log is carried out in order: at the next call all of these have landed, and no prefetch is ever taken back. One
  /// who starts copies and goes on reports what has landed by then, and gets `drop` commands, too.
  void copies(Log& log) {
    const ferry::Commands commands = core_->commands();
    log.write(commands.submit);
    for (const ferry::Copy& c : commands.submit) {
      (c.demand ? seen_.demand_landed : seen_.prefetch_landed) = c.ticket;
      seen_.prefetch_begun = seen_.prefetch_landed;
    }
  }

  ferry::OwnedCore<Stack> core_;
  ferry::Seen seen_;
};

std::byte content(ferry::ExpertId id) {
  return static_cast<std::byte>(id.layer * experts + id.expert);
}

}  // namespace

int main() {
  ferry::CoreConfig<ferry::stacks::CrossLayerLru> config;
  config.model = {{layers, experts, top_k, 1, ferry::Renormalise::yes}, {{0, 0, 0, 0, expert_bytes}}};
  ferry::stacks::CrossLayerLru::set_up(config, config.model.all_bytes() / 4);
  Decider decider(config);
  Log log;
  std::mt19937 random(1);
  std::vector<float> scores(layers * experts);
  const std::uint32_t sequence = 0;
  for (int token = 0; token < 50; ++token) {
    for (float& s : scores) s = 0.8F * s + 0.2F * static_cast<float>(random() % 1000) / 1000;
    auto scores_of = [&](std::uint16_t layer) {
      const ferry::View<const float> row(&scores[layer * experts], experts);
      return ferry::Scores{layer, row, row};
    };
    decider.step({ferry::Phase::decode, {&sequence, 1}}, scores_of, log);
  }

  // The side that carries out: it knows slots and bytes, and nothing of policies.
  std::vector<std::byte> device(config.allotment.slots() * expert_bytes);
  std::uint64_t copied = 0, ran = 0;
  while (!log.ended()) {
    for (const ferry::Copy& c : log.read<ferry::Copy>()) {
      std::memset(&device[c.slot * expert_bytes], static_cast<int>(content(c.what.id)), expert_bytes);
      ++copied;
    }
    for (const ferry::Task& task : log.read<ferry::Task>()) {
      for (std::size_t i = 0; i < expert_bytes; ++i) {
        if (device[task.slot * expert_bytes + i] != content(task.what.id)) return std::puts("wrong bytes!"), 1;
      }
      ++ran;
    }
  }
  const ferry::Outcomes& o = decider.outcomes();
  std::printf("a log of %zu bytes: %llu tasks, %llu copies\n", log.bytes(), static_cast<unsigned long long>(ran),
              static_cast<unsigned long long>(copied));
  return ran == o.requests && copied * expert_bytes == o.bytes ? 0 : 1;
}
