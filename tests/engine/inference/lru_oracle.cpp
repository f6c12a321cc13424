// LRU and ARC on the routing of a fixed text, against oracles that share nothing with the library.
#include <doctest/doctest.h>

#include <algorithm>
#include <list>
#include <set>

#include "cpu/cpu_model.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/prompts.hpp"
#include "ferry/cache/arc.hpp"
#include "inference/generate.hpp"
#include "support/arc_oracle.hpp"
#include "support/cache_simulator.hpp"
#include "support/quick.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;

using Layer = std::set<std::uint32_t>;            // experts that one layer of one step asks for
using Routing = std::vector<std::vector<Layer>>;  // [steps][layers]

/// What each layer asks for, read off the gate scores with a sort.
Routing record(CpuModel& model, const std::vector<std::uint32_t>& tokens) {
  RunnerOptions o;
  o.stack = "resident";
  const auto runner = make_runner(model, o);
  std::vector<KvCache> caches;
  caches.push_back(model.make_cache(static_cast<std::uint32_t>(tokens.size())));
  Routing routing;
  for (std::uint32_t at = 0; at < tokens.size(); ++at) {
    auto& step = routing.emplace_back();
    model.forward(Phase::decode, {{0, tokens[at], at}}, caches, *runner, 1,
                  [&](std::uint32_t, const Matrix&, const GateScores& said) {
                    const Matrix& scores = said.weight;
                    std::vector<std::pair<float, std::uint32_t>> sorted;
                    for (Eigen::Index e = 0; e < scores.cols(); ++e) sorted.emplace_back(-scores(0, e), e);
                    std::sort(sorted.begin(), sorted.end());
                    Layer asked;
                    for (std::uint32_t i = 0; i < model.config().top_k; ++i) asked.insert(sorted[i].second);
                    step.push_back(asked);
                  });
  }
  return routing;
}

/// Least recently used, as a list. The pipeline's semantics: what is there is touched first, in ascending
/// order, then each miss enters, in ascending order, and evicts the least recent that this layer does not need.
class Oracle {
 public:
  explicit Oracle(std::size_t slots) : slots_(slots) {}

  std::uint64_t serve(std::uint32_t layer, const Layer& asked) {
    std::uint64_t hits = 0;
    std::vector<std::uint32_t> misses;
    for (const std::uint32_t e : asked) {
      const auto at = std::find(list_.begin(), list_.end(), std::pair{layer, e});
      if (at == list_.end()) {
        misses.push_back(e);
        continue;
      }
      ++hits;
      list_.erase(at);
      list_.push_front({layer, e});
    }
    for (const std::uint32_t e : misses) {
      if (list_.size() == slots_) {
        auto victim = list_.end();
        for (auto i = list_.begin(); i != list_.end(); ++i) {
          if (i->first != layer || !asked.contains(i->second)) victim = i;
        }
        if (victim == list_.end()) continue;
        list_.erase(victim);
      }
      list_.push_front({layer, e});
    }
    return hits;
  }

 private:
  std::size_t slots_;
  std::list<std::pair<std::uint32_t, std::uint32_t>> list_;
};

void check_hits(const std::string& name) {
  CpuModel model(test::model_folder(name));
  const ModelConfig& c = model.config();
  auto tokens = tokenize(model, test::prompts()[0] + test::prompts()[1] + test::prompts()[2]);
  if (test::quick()) tokens.resize(50);
  const Routing routing = record(model, tokens);
  const ModelShape shape = model_shape(c, model.store(), 1);
  for (const PoolChoice pools : {PoolChoice::per_layer, PoolChoice::one}) {
    for (const std::uint64_t eighths : {1U, 2U, 4U, 6U, 8U}) {
      CAPTURE(static_cast<int>(pools));
      CAPTURE(eighths);
      RunnerOptions o;
      o.stack = "lru";
      o.pools = pools;
      o.budget_bytes = shape.all_bytes() * eighths / 8;
      const auto runner = make_runner(model, o);
      std::vector<KvCache> caches;
      caches.emplace_back(c, CacheRoom(c, static_cast<std::uint32_t>(tokens.size())));
      for (std::uint32_t at = 0; at < tokens.size(); ++at) {
        model.forward(Phase::decode, {{0, tokens[at], at}}, caches, *runner, 1);
      }

      // Slots as worked out by hand: two for the stream unless everything fits, the others over the layers, shallow ones first.
      const std::uint64_t all = std::uint64_t{c.layers} * c.experts;
      const std::uint64_t total = all * eighths / 8, cached = total == all ? all : total - 2;
      std::vector<Oracle> oracles;
      for (std::uint32_t l = 0; l < c.layers; ++l) {
        oracles.emplace_back(cached / c.layers + (l < cached % c.layers ? 1 : 0));
      }
      Oracle global(cached);
      std::uint64_t hits = 0, requests = 0;
      for (const auto& step : routing) {
        for (std::uint32_t l = 0; l < c.layers; ++l) {
          hits += pools == PoolChoice::one ? global.serve(l, step[l]) : oracles[l].serve(l, step[l]);
          requests += step[l].size();
        }
      }
      const Outcomes ours = runner->statistics().counters.of(Phase::decode);
      CHECK(ours.requests == requests);
      CHECK(ours.hits == hits);
      CHECK(ours.misses == requests - hits);
      MESSAGE(name << ", " << eighths << "/8, " << (pools == PoolChoice::one ? "one pool" : "per layer") << ": " << hits
                   << " hits of " << requests);
    }
  }
}

TEST_CASE("LRU's hits on tiny-qwen-moe's routing equal the naive oracle's") {
  check_hits("tiny-qwen-moe");
}
TEST_CASE("LRU's hits on tiny-mixtral's routing equal the naive oracle's") {
  check_hits("tiny-mixtral");
}

TEST_CASE("ARC hits and evicts as Figure 4 says on the tiny models' own routing") {
  for (const std::string name : {"tiny-qwen-moe", "tiny-mixtral"}) {
    CpuModel model(test::model_folder(name));
    std::vector<std::uint32_t> tokens;
    for (const std::string& p : test::prompts()) {
      for (const std::uint32_t t : tokenize(model, p)) tokens.push_back(t);
    }
    if (test::quick()) tokens.resize(tokens.size() / 2);
    const Routing routing = record(model, tokens);
    std::uint64_t hits = 0, accesses = 0;
    for (std::uint32_t l = 0; l < model.config().layers; ++l) {
      for (const std::uint32_t slots : {1U, 2U, model.config().experts / 4, model.config().experts / 2}) {
        test::Placed<Arc> arc(
            PoolShape{slots, static_cast<std::uint16_t>(l), 1, static_cast<std::uint16_t>(model.config().experts)});
        test::CacheSimulator<Arc> ours(arc, slots);
        test::ArcOracle right(slots);
        for (const auto& step : routing) {
          for (const std::uint32_t e : step[l]) {
            const bool hit = ours.ask({static_cast<std::uint16_t>(l), static_cast<std::uint16_t>(e)});
            REQUIRE(hit == right.access(e));
            hits += hit ? 1 : 0;
            ++accesses;
          }
        }
      }
    }
    MESSAGE(name << ": " << hits << " hits of " << accesses);
    CHECK(hits > 0);
    CHECK(hits < accesses);
  }
}

}  // namespace
