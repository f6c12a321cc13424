/// @file
/// What one of two units does with its version of the library.
#pragma once
#include <string>
#include <typeinfo>

#include "ferry/link/virtual_clock.hpp"
#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"

/// Decodes a token; returns the mangled name of what it counted in, and how much.
static std::string decode(std::uint16_t experts) {
  ferry::CoreConfig<ferry::stacks::LruCache> config;
  config.model.layers = 2;
  config.model.experts = experts;
  config.model.top_k = 1;
  config.model.max_rows = 1;
  config.model.renormalise = ferry::Renormalise::no;
  config.model.expert_bytes = {{0, 0, 0, 0, 64}};
  config.allotment = ferry::everything(config.model);
  ferry::VirtualClock clock(config.model, {1'000'000'000, 0, false});
  ferry::OffloadPipeline<ferry::stacks::LruCache, ferry::VirtualClock> pipe(config, clock);
  const std::uint32_t sequence = 0;
  const std::string scores_of_zero(experts * sizeof(float), '\0');
  pipe.begin_step({ferry::Phase::decode, {&sequence, 1}});
  for (std::uint16_t l = 0; l < 2; ++l) {
    const ferry::View<const float> row{reinterpret_cast<const float*>(scores_of_zero.data()), experts};
    for (const ferry::Task& t : pipe.plan({l, row, row}).arriving) pipe.wait(t);
    pipe.finish(l);
  }
  return typeid(pipe.counters()).name() + std::to_string(pipe.counters().of(ferry::Phase::decode).misses);
}
