// Checks random small traces with random stacks, options and costs. Each case is determined by its seed.
//   soak AMOUNT           from a seed of the clock's choice; AMOUNT: seconds, or 1000000t for so many decoded tokens
//   soak AMOUNT SEED      from that seed; with 0 seconds that one alone
#include <sanitizer/common_interface_defs.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <numeric>

#include "fuzz/check_simulated.hpp"
#include "support/errors.hpp"
#include "support/random.hpp"
#include "trace/trace_file.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using ferry::fuzz::Broken;
using ferry::fuzz::expect;
using test::Random;

std::uint64_t seed = 0;  ///< of the case that runs

/// A trace, a machine, and how it is run.
struct Case {
  explicit Case(std::uint64_t of) : random(of) {
    draw_shape();
    draw_trace();
    draw_costs();
    draw_options();
  }

  Random random;
  TraceFile file;
  Costs costs;
  SimulateOptions options;

 private:
  void draw_shape() {
    ModelShape& m = file.trace.model;
    file.trace.name = "random";
    m.renormalise = renormalise_if(random.chance(50));
    m.layers = static_cast<std::uint16_t>(random.between(1, 6));
    m.experts = static_cast<std::uint16_t>(random.chance(5) ? random.between(256, 300) : random.between(1, 12));
    m.top_k = static_cast<std::uint16_t>(random.between(1, std::min<std::uint32_t>(m.experts, 4)));
    m.max_rows = 1;
    const bool low = random.chance(80);
    const std::uint32_t unit = random.between(1, 300), sizes = random.chance(40) ? m.layers : 1U;
    for (std::uint32_t l = 0; l < sizes; ++l) {
      const std::uint64_t full = 8 * std::uint64_t{unit} * random.between(1, 3);
      m.expert_bytes.push_back(low ? ExpertBytes{0, full / 8, full / 4 + 1, full / 2, full}
                                   : ExpertBytes{0, 0, 0, 0, full});
    }
  }

  /// Scores of a row that sum to 1; some experts are popular, some are equal.
  std::vector<float> row(const std::vector<float>& popular) {
    const bool ties = random.chance(10);
    std::vector<float> s = popular;
    for (float& x : s) x += random.unit(ties) + 0.001F;
    const float sum = std::accumulate(s.begin(), s.end(), 0.0F);
    for (float& x : s) x /= sum;
    return s;
  }

  void draw_trace() {
    Trace& t = file.trace;
    const ModelShape& m = t.model;
    const std::uint32_t tokens = random.between(1, 40), prompt = random.chance(70) ? random.between(1, 12) : 0;
    const bool scores = random.chance(90), weights = random.chance(70), partial = random.chance(90);
    const bool cut = prompt > 0 && !scores && random.chance(50);  // some rows of the prompt were not recorded
    t.ahead = static_cast<std::uint16_t>(random.chance(80) ? 4 : random.below(4));
    std::vector<std::vector<float>> popular, rows(m.layers);
    for (std::uint32_t l = 0; l < m.layers; ++l) popular.push_back(random.scores(m.experts, true));
    auto append = [](auto& to, const auto& more) { to.insert(to.end(), more.begin(), more.end()); };
    std::uint32_t start = 0;
    for (std::uint32_t token = 0; token < tokens; ++token) {
      if (token == 0 || random.chance(12)) {
        start = token;
        file.sequence_start.push_back(token);
      }
      file.phase.push_back(token - start < prompt ? 0 : 1);
      for (std::uint32_t l = 0; l < m.layers; ++l) {
        rows[l] = row(popular[l]);
        std::vector<std::uint16_t> best(m.experts);
        std::iota(best.begin(), best.end(), std::uint16_t{0});
        std::stable_sort(best.begin(), best.end(), [&](auto a, auto b) { return rows[l][a] > rows[l][b]; });
        best.resize(m.top_k);
        const bool missing = cut && file.phase.back() == 0 && random.chance(50);
        for (const std::uint16_t e : best) {
          file.experts.push_back(missing ? no_expert : e);
          if (weights) file.weights.push_back(rows[l][e]);
        }
        if (scores) append(file.scores, rows[l]);
      }
      for (std::uint32_t l = 0; l < m.layers; ++l) {
        for (std::uint32_t d = 1; d <= 4; ++d) {
          const bool right = l + d < m.layers && random.chance(70);
          const std::vector<float> p = right ? rows[l + d] : row(popular[(l + d) % m.layers]);
          if (d <= t.ahead) append(file.predicted, p);
          if (partial && d == 1) append(file.partial, p);
        }
      }
    }
    if (prompt == 0 && random.chance(50)) file.phase.clear();
    file.view();
  }

  /// 1 to 10^decades, spread over them.
  std::uint64_t spread(std::uint32_t decades) {
    std::uint64_t n = 1;
    for (std::uint32_t i = random.below(decades); i > 0; --i) n *= 10;
    return n * random.between(1, 10);
  }

  void draw_costs() {
    costs.device.bytes_per_s = random.chance(50) ? 1'000'000 * spread(5) : 0;
    costs.device.flops = random.chance(80) ? 1'000'000 * spread(5) : 0;
    costs.device.start_ns = random.chance(80) ? random.below(5000) : 0;
    costs.host.bytes_per_s = random.chance(50) ? 1'000'000 * spread(4) : 0;
    costs.host.flops = random.chance(80) ? 1'000'000 * spread(5) : 0;
    costs.host.start_ns = random.chance(80) ? random.below(5000) : 0;
    costs.link_bytes_per_s_beside_host = random.chance(50) ? 1'000'000 * spread(6) : 0;
    costs.host_bytes_per_s_beside_copies = random.chance(50) ? 1'000'000 * spread(4) : 0;
    costs.activations_latency_ns = random.chance(50) ? random.below(5000) : 0;
    costs.activations_bytes_per_s = random.chance(50) ? 1'000'000 * spread(5) : 0;
    costs.link_bytes_per_s = 1'000'000 * spread(6);
    costs.link_latency_ns = random.chance(50) ? random.below(3000) : 0;
    costs.layer_ns = random.chance(80) ? random.below(5000) : 0;
    costs.work.resize(random.chance(50) ? 1 : file.trace.model.layers);
    for (LayerWork& w : costs.work) {
      w.dense_bytes = random.below(10'000);
      w.dense_operations = random.below(10'000);
      w.expert_operations = random.below(10'000);
      w.activation_bytes = random.below(1'000);
    }
  }

  void draw_options() {
    const ModelShape& m = file.trace.model;
    const auto& stacks = all_stacks();
    options.stack = stacks[random.below(static_cast<std::uint32_t>(stacks.size()))].name;
    if (random.chance(30)) options.pools = static_cast<PoolChoice>(random.between(1, 3));
    const auto all = static_cast<std::uint32_t>(m.all_bytes());
    std::uint64_t largest = 0;
    for (const ExpertBytes& b : m.expert_bytes) largest = std::max(largest, *std::max_element(b.begin(), b.end()));
    options.budget_bytes = 2 * ModelShape::slot_bytes(largest) + random.below(random.chance(50) ? all : all / 4 + 1);
    options.batch = random.between(1, 4);
    options.prefill_chunk = random.between(1, 10);
    auto some = [&](auto& parameter, auto value) {
      if (random.chance(25)) parameter = value;
    };
    const float a = random.unit(true), b = random.unit(true);
    if (random.chance(25)) options.t1 = std::min(a, b), options.t2 = std::max(a, b);
    some(options.alpha, random.unit(true));
    some(options.low_share_percent, random.below(101));
    some(options.shallow_layers, random.below(8));
    some(options.percentile, random.below(101));
    some(options.depth, random.between(1, 4));
    if (random.chance(25)) options.knows = static_cast<Clairvoyance>(random.between(1, 3));
    if (random.chance(30)) options.max_tokens = random.between(1, file.trace.tokens);
    options.log = true;
  }
};

bool same(const Span& a, const Span& b) {
  return a.lane == b.lane && std::strcmp(a.name, b.name) == 0 && a.begin_ns == b.begin_ns && a.end_ns == b.end_ns &&
         a.has_expert == b.has_expert && a.what == b.what && a.ticket == b.ticket;
}

/// To the last digit.
bool same_numbers(const Simulated& a, const Simulated& b) {
  static_assert(std::has_unique_object_representations_v<Counters> &&
                std::has_unique_object_representations_v<PhaseClock>);
  return std::memcmp(&a.counters, &b.counters, sizeof(Counters)) == 0 &&
         std::memcmp(a.phase, b.phase, sizeof(a.phase)) == 0 && a.layer_hits == b.layer_hits && a.groups == b.groups &&
         a.arena_bytes == b.arena_bytes;
}

struct Tally {
  std::uint64_t runs = 0, refused = 0, tight = 0, decoded = 0;  ///< decoded: tokens, each run counted once
  std::map<std::string, std::uint64_t> by_stack;
};

void run(Tally& tally) {
  Case c(seed);
  const Trace& trace = c.file.trace;
  Simulated first;
  try {
    first = simulate(trace, c.costs, c.options);
  } catch (const InputError&) {
    ++tally.refused;
    return;
  } catch (const ConfigError&) {
    ++tally.refused;
    return;
  }
  ferry::fuzz::check(first, trace);
  const std::uint64_t done = first.phase[0].tokens + first.phase[1].tokens;
  expect(done == trace.tokens || done >= c.options.max_tokens, "tokens are left out");

  const Simulated again = simulate(trace, c.costs, c.options);
  expect(same_numbers(first, again), "a second run gives other numbers");
  expect(std::equal(first.spans.begin(), first.spans.end(), again.spans.begin(), again.spans.end(), same),
         "a second run has other spans");
  SimulateOptions bare = c.options;
  bare.log = bare.bounds = false;
  expect(same_numbers(first, simulate(trace, c.costs, bare)), "without a log or bounds the numbers are others");

  ++tally.runs;
  tally.decoded += first.phase[1].tokens;
  ++tally.by_stack[c.options.stack];
  const Nanoseconds bound = clairvoyant_ns(*first.decode_work), time = first.phase[1].total;
  tally.tight += bound > 0 && time >= bound && time * 20 < bound * 21 ? 1 : 0;
}

}  // namespace

int main(int count, char** arguments) {
  using Clock = std::chrono::steady_clock;
  char* unit = nullptr;
  const double amount = count > 1 ? std::strtod(arguments[1], &unit) : 60;
  const bool in_tokens = unit != nullptr && *unit == 't';
  const auto now = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  seed = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : now / 1'000'000 % 1'000'000'000 * 1000;
  __sanitizer_set_death_callback([] { std::cerr << "soak: found by seed " << seed << '\n'; });
  const Clock::time_point begin = Clock::now();
  double next_line = 0;
  Tally tally;
  for (double passed = 0;; ++seed) {
    try {
      run(tally);
    } catch (const std::exception& e) {
      std::cerr << "soak: seed " << seed << ": " << e.what() << '\n';
      return 1;
    }
    passed = std::chrono::duration<double>(Clock::now() - begin).count();
    const double done = in_tokens ? static_cast<double>(tally.decoded) : passed;
    const bool last = done >= amount;
    if (passed >= next_line || last) {
      std::cout << "soak: " << tally.runs << " runs, " << tally.refused << " refused, " << tally.decoded
                << " tokens decoded, " << tally.tight << " within 5% of the bound; at seed " << seed << "; "
                << static_cast<long>(done > 0 ? passed * std::max(0.0, amount - done) / done : 0) << " s left"
                << std::endl;
      next_line = passed + 10;
    }
    if (last) break;
  }
  for (const auto& [stack, runs] : tally.by_stack) std::cout << "soak: " << stack << ": " << runs << '\n';
}
