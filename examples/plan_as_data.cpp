// Decisions as data, for an engine in which another side moves the experts' bytes: a process beside the GPU, another thread,
// a later run. A CommandBuffer stands for the link. It calls nobody: what it collects goes, with the tasks, to the side that
// carries them out. Here that is a log of bytes, read after everything has been decided.
#include <cstdio>
#include <cstring>
#include <random>

#include "ferry/link/command_buffer.hpp"
#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"

namespace {

constexpr std::uint32_t layers = 4, experts = 16, top_k = 2, tokens = 50;
constexpr std::size_t expert_bytes = 512;

/// Lists of plain structs, each behind its length: all words of model.hpp may be copied byte by byte.
class Log {
 public:
  template <class T>
  void write(ferry::View<const T> list) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof list.size + list.size * sizeof(T));
    std::memcpy(&bytes_[at], &list.size, sizeof list.size);
    if (list.size > 0) std::memcpy(&bytes_[at + sizeof list.size], list.data, list.size * sizeof(T));
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

std::byte content(ferry::ExpertId id) {
  return static_cast<std::byte>(id.layer * experts + id.expert);
}

/// The side that carries out copies, and then the tasks that read them, in order. It knows slots and bytes, but no policies.
/// Returns how many tasks found their expert, and counts the bytes that it copied.
std::uint64_t carry_out(Log& log, std::uint32_t slots, std::uint64_t& copied) {
  std::vector<std::byte> device(slots * expert_bytes);
  std::uint64_t good = 0;
  while (!log.ended()) {
    for (const ferry::Command& c : log.read<ferry::Command>()) {
      if (c.kind != ferry::Command::Kind::copy) continue;  // the others matter where copies run beside the computation
      std::memset(&device[c.copy.slot * expert_bytes], static_cast<int>(content(c.copy.what.id)), expert_bytes);
      copied += expert_bytes;
    }
    for (const ferry::Task& task : log.read<ferry::Task>()) {
      bool right = true;
      for (std::size_t i = 0; i < expert_bytes; ++i) {
        right = right && device[task.slot * expert_bytes + i] == content(task.what.id);
      }
      good += right ? 1U : 0U;
    }
  }
  return good;
}

}  // namespace

int main() {
  using Stack = ferry::stacks::CrossLayerLru;
  ferry::CoreConfig<Stack> config;
  config.model = {{layers, experts, top_k, 1, ferry::Renormalise::yes}, {{0, 0, 0, 0, expert_bytes}}};
  Stack::set_up(config, config.model.all_bytes() / 4);
  ferry::CommandBuffer buffer;  // carried out in order; with Progress::reported, landed copies are reported
  ferry::OffloadPipeline<Stack, ferry::CommandBuffer> pipe(config, buffer);

  Log log;
  auto pass_on = [&](ferry::View<const ferry::Task> tasks) {
    log.write(buffer.commands());
    log.write(tasks);
    buffer.clear();
    pipe.done(tasks);
  };
  std::mt19937 random(1);
  std::vector<float> scores(layers * experts);  // the gates' scores: all that comes back in a real engine
  const std::uint32_t sequence = 0;
  for (std::uint32_t token = 0; token < tokens; ++token) {
    for (float& s : scores) s = 0.8F * s + 0.2F * static_cast<float>(random() % 1000) / 1000;
    auto of = [&](std::uint16_t layer) {
      const ferry::View<const float> row(&scores[layer * experts], experts);
      return ferry::Scores{layer, row, row};
    };
    pipe.begin_step({ferry::Phase::decode, {&sequence, 1}});
    for (std::uint16_t l = 0; l < layers; ++l) {
      const ferry::Plan plan = pipe.plan(of(l));
      pipe.look_ahead(ferry::RowSource::gate_input, [&](auto next, auto /*distance*/) { return of(next); });
      pass_on(plan.resident);
      for (const ferry::Task& task : plan.arriving) pass_on({&task, 1});
      pipe.finish(l);
    }
  }
  log.write(buffer.commands());
  log.write(ferry::View<const ferry::Task>());

  std::uint64_t copied = 0;
  const std::uint64_t good = carry_out(log, config.allotment.slots(), copied);
  const ferry::Outcomes& o = pipe.counters().of(ferry::Phase::decode);
  std::printf("a log of %zu bytes for %.1f kB of copies, %.1f%% hits\n", log.bytes(), static_cast<double>(copied) / 1e3,
              100 * o.hit_rate());
  return good == std::uint64_t{tokens} * layers * top_k && copied == o.bytes ? 0 : 1;
}
