// An engine that chooses its stack at run time: a table of three, one of them by name.
#include <cstdio>
#include <exception>
#include <random>
#include <vector>

#include "ferry/any_pipeline.hpp"
#include "ferry/link/virtual_clock.hpp"
#include "ferry/stacks.hpp"

int main(int argc, char** argv) try {
  ferry::ModelShape model;
  model.layers = 6;
  model.experts = 16;
  model.top_k = 2;
  model.max_rows = 1;
  model.renormalise = ferry::Renormalise::yes;
  model.expert_bytes = {{0, 0, 1 << 18, 0, 1 << 20}};  // stored in INT4 and at full precision

  ferry::StackTable table;
  table.add<ferry::stacks::LruCache>("lru");
  table.add<ferry::stacks::CrossLayerLru>("cross-layer-lru");
  table.add<ferry::stacks::Hobbit>("hobbit", [](auto& stack, ferry::Budget budget) {
    stack.predictor.depth = 2;  // two layers ahead instead of the paper's three
    ferry::stacks::Hobbit::set_up(stack, budget);
  });

  const char* name = argc > 1 ? argv[1] : "hobbit";
  const auto config = table.configure(name, model, model.all_bytes() / 4);  // an unknown name is refused
  ferry::VirtualClock link(config->settings().model, {.bytes_per_s = 16'000'000'000});
  const auto pipe = config->start(link);
  const ferry::StackTraits stack = pipe->traits();
  if (stack.preloads) pipe->preload();
  ferry::Costs costs;  // of the host, for stacks that leave experts to it
  costs.host = {0, 5'000'000'000, 0};
  costs.work = {{0, 0, 2'000'000}};

  std::mt19937 random(1);
  std::vector<float> all(std::size_t{6} * 16, 0.05F);  // [layers, experts], drifting from token to token
  auto scores = [&](std::uint16_t layer) {
    const ferry::View<const float> row{&all[layer * std::size_t{16}], 16};
    return ferry::Scores{layer, row, row};
  };
  const std::uint32_t sequence = 0;
  for (int token = 0; token < 100; ++token) {
    for (float& s : all) s = 0.9F * s + 0.1F * static_cast<float>(random() % 1000) / 1000.0F;
    pipe->begin_step({ferry::Phase::decode, {&sequence, 1}});
    for (std::uint16_t layer = 0; layer < model.layers; ++layer) {
      link.device(100'000);  // in place of attention and gate, which the host then reads
      link.sync();
      const ferry::Plan plan = pipe->plan(scores(layer));
      link.host(plan.host, costs, 1);  // beside the device, from the host's copy
      pipe->look_ahead(ferry::RowSource::gate_input, [&](std::uint16_t ahead, std::uint16_t) { return scores(ahead); });
      pipe->look_ahead();                        // for those that predict from counts
      link.device(20'000 * plan.resident.size);  // in place of the experts
      // A stack that reads partial hidden states gets their scores here: resident experts have run, others have not.
      if (stack.rows[1] == ferry::RowSource::partial_hidden && layer + 1 < model.layers) {
        pipe->look_ahead(ferry::RowSource::partial_hidden,
                         [&](std::uint16_t ahead, std::uint16_t) { return scores(ahead); });
      }
      for (const ferry::Task& task : plan.arriving) pipe->wait(task);
      link.device(20'000 * plan.arriving.size);
      pipe->finish(layer);
    }
  }
  pipe->end_sequence(sequence);
  const ferry::Outcomes& o = pipe->counters().of(ferry::Phase::decode);
  std::printf("%s: %.1f%% hits\n", name, 100 * o.hit_rate());
  return o.requests == 100 * 6 * 2 ? 0 : 1;
} catch (const std::exception& error) {
  return std::fprintf(stderr, "%s\n", error.what()), 1;
}
