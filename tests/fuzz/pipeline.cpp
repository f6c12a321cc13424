// A pipeline under an engine that makes mistakes, over a link that does anything that links may do. The input decides what the
// model and the stack are, and what engine and link do.
#include "ferry/pipeline.hpp"

#include <functional>

#include "ferry/stacks.hpp"
#include "fuzz/fuzz.hpp"
#include "fuzz/mistaken_engine.hpp"

namespace ferry::fuzz {
namespace {

/// The host computes residents, and misses are loaded, so that some of a layer's own experts must stay and leave at once.
struct HostComputesResidents {
  static std::uint32_t split(Phase /*phase*/, View<const Request> misses) noexcept { return misses.size; }
  static Split split(Phase phase, View<const Request> resident, View<const Request> misses,
                     View<const Request> /*arriving*/, const LayerCosts& /*costs*/) noexcept {
    return {misses.size, phase == Phase::decode ? resident.size : 0, true};
  }
};
using Swapping =
    Stack<NoPrediction, FifoCache, FixedPrecision, Schedule<NoLimit, ArrivalOrder, HostComputesResidents>, TopK>;

/// Compositions that no named stack has: prefetches beside promotions, or beside a cache that keeps nothing, and promotions into
/// pools by precision.
using Unhurried = Schedule<NoLimit, BatchSizeOrder, EarliestFinish>;
using PrefetchesAndPromotes = Stack<EveryExpert, ExpectedSavings, FixedPrecision, Unhurried, TopK>;
using PrefetchesAndKeepsNothing = Stack<EveryExpert, LoadOnDemand, FixedPrecision, stacks::LoadEverything, TopK>;
using PromotesTwoPrecisions = Stack<CrossLayerGate, ExpectedSavings, ImportanceThresholds, Unhurried, ExpertSkipping>;

ModelShape draw_model(Choices& choices) {
  static const std::vector<std::uint16_t> experts{1, 2, 3, 4, 6, 8, 12, 65};
  ModelShape m;
  m.layers = static_cast<std::uint16_t>(choices.between(1, 4));
  m.experts = choices.of(experts);
  m.top_k = static_cast<std::uint16_t>(choices.between(1, std::min<std::uint32_t>(m.experts, 4)));
  m.max_rows = choices.between(1, 4);
  m.renormalise = renormalise_if(choices.rarely(128));
  if (choices.rarely(32)) m.scale = 2.5F;
  const std::uint32_t sizes = choices.rarely(64) ? m.layers : 1;
  for (std::uint32_t i = 0; i < sizes; ++i) {
    const std::uint64_t full = std::uint64_t{64} * choices.between(1, 4);
    m.expert_bytes.push_back({0, full / 8, full / 4, full / 2, full});
  }
  if (choices.rarely(64)) {
    for (std::uint16_t l = 0; l < m.layers; ++l) {
      m.layer_experts.push_back(static_cast<std::uint16_t>(choices.between(1, m.experts)));
      m.layer_top_k.push_back(
          static_cast<std::uint16_t>(choices.between(1, std::min(m.top_k, m.layer_experts.back()))));
    }
  }
  return m;
}

template <class S>
void set_up(CoreConfig<S>& c, Budget budget) {
  if constexpr (requires { S::set_up(c, budget); }) {
    S::set_up(c, budget);
  } else if constexpr (std::is_same_v<typename S::precision, test::MixedPrecision>) {
    c.allotment = high_low_pools(c.model, budget, Precision::full, Precision::int4, 30);
  } else if constexpr (requires { c.precision.high, c.precision.low; }) {
    c.allotment = high_low_pools(c.model, budget, c.precision.high, c.precision.low, 30);
  } else if constexpr (!part::caches<typename S::cache>()) {
    c.allotment = stream_only(c.model, budget);
  } else {
    c.allotment = one_pool(c.model, budget);
  }
}

template <class S>
void run(Choices& choices) {
  static const std::vector<Nanoseconds> times{0, 1, 90, 4000, detail::longest / 3, detail::longest};
  CoreConfig<S> c;
  c.model = draw_model(choices);
  for (Nanoseconds& ns : c.copy_ns) ns = choices.of(times);
  if (choices.rarely(128)) {
    const Nanoseconds device = choices.of(times), host = choices.of(times);
    for (Nanoseconds& ns : c.costs.device_ns) ns = device;
    for (Nanoseconds& ns : c.costs.host_ns) ns = host;
    c.costs.host_row_ns = choices.of(times);
    c.costs.host_start_ns = choices.of(times);
    c.costs.link_beside_host = choices.below(1200);
    c.costs.host_beside_copies = choices.below(1200);
  }
  if (choices.rarely(64)) c.transient_prefill_rows = choices.below(4);
  if (choices.rarely(64)) c.top_score_alpha = static_cast<float>(choices.byte()) / 64.0F;
  const std::uint64_t all = c.model.all_bytes() + 64;
  Budget budget{all * choices.byte() / 128, choices.between(2, 4)};
  set_up(c, budget);
  if (c.allotment.stream_slots >= 2 && choices.rarely(64)) {  // fewer slots than fit, or none
    for (Pool& pool : c.allotment.pools) pool.slots = std::min(pool.slots, choices.below(3));
  }
  MistakenEngine<S>(c, choices).run();
}

using Run = std::function<void(Choices&)>;
const std::vector<Run>& runs() {
  static const std::vector<Run> all{run<stacks::OnDemand>,
                                    run<stacks::LruCache>,
                                    run<stacks::LayerStream>,
                                    run<stacks::CrossLayerLru>,
                                    run<stacks::MoeInfinity>,
                                    run<stacks::ActivationPathStack>,
                                    run<stacks::StaticHost>,
                                    run<stacks::HybriMoe>,
                                    run<stacks::Ferry>,
                                    run<stacks::FerryLossy>,
                                    run<stacks::FerryDevice>,
                                    run<stacks::Fate>,
                                    run<stacks::Hobbit>,
                                    run<stacks::HobbitCooperative>,
                                    run<stacks::ImportanceDriven>,
                                    run<stacks::ImportanceBalanced>,
                                    run<test::LossyStack>,
                                    run<Swapping>,
                                    run<PrefetchesAndPromotes>,
                                    run<PrefetchesAndKeepsNothing>,
                                    run<PromotesTwoPrecisions>};
  return all;
}

}  // namespace

void read(const std::string& input) {
  Choices choices(input);
  runs()[choices.below(static_cast<std::uint32_t>(runs().size()))](choices);
}

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  test::Random random(1);
  for (std::size_t stack = 0; stack < runs().size(); ++stack) {
    for (int i = 0; i < 4; ++i) {
      std::string input(1, static_cast<char>(stack));
      for (int n = 0; n < 400; ++n) input += static_cast<char>(random.below(i % 2 == 0 ? 256 : 128));
      all.push_back(input);
    }
  }
  return all;
}

std::string mutate(const std::string& input, std::size_t most, std::uint64_t /*seed*/) {
  return mutate_bytes(input, most);
}

}  // namespace ferry::fuzz
