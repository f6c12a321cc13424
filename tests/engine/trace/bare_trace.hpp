/// @file
/// Routing as other programs record it: chosen experts and their weights, and nothing predicted.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "support/random.hpp"
#include "trace/trace_file.hpp"

namespace ferry::test {

/// 4 layers of 32 experts, top-4, 1000000 bytes each. Sequences of 20 tokens, of which the first 4 are prompt. A longer trace
/// begins with the same tokens.
inline std::unique_ptr<engine::TraceFile> bare_trace(std::uint32_t tokens) {
  constexpr std::uint16_t layers = 4, experts = 32, top_k = 4;
  Random random(5);
  auto f = std::make_unique<engine::TraceFile>();
  f->trace.name = "made-up";
  f->trace.model.layers = layers;
  f->trace.model.experts = experts;
  f->trace.model.top_k = top_k;
  f->trace.model.renormalise = Renormalise::yes;
  f->trace.model.expert_bytes = {{0, 250'000, 400'000, 700'000, 1'000'000}};
  f->work = {{1'000'000, 500'000, 400'000}};
  std::vector<std::uint16_t> all(experts);
  for (std::uint16_t e = 0; e < experts; ++e) all[e] = e;
  for (std::uint32_t t = 0; t < tokens; ++t) {
    if (t % 20 == 0) f->sequence_start.push_back(t);
    f->phase.push_back(t % 20 < 4 ? 0 : 1);
    for (std::uint16_t l = 0; l < layers; ++l) {
      for (std::uint16_t i = 0; i < top_k; ++i) {
        std::swap(all[i], all[random.between(i, experts - 1)]);
        f->experts.push_back(all[i]);
      }
      f->weights.insert(f->weights.end(), {0.5F, 0.25F, 0.125F, 0.0625F});
    }
  }
  f->view();
  return f;
}

}  // namespace ferry::test
