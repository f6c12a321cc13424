/// @file
/// Two cache policies, or one and a naive reference, under the same random calls.
#pragma once
#include <algorithm>
#include <vector>

#include "ferry/concepts.hpp"
#include "support/random.hpp"
#include "support/shapes.hpp"

namespace ferry::test {

struct Drive {
  PoolShape pool{6, 1, 3, 8};
  std::uint32_t steps = 300;
  std::uint32_t max_rows = 3;
  std::uint32_t reset_percent = 3;  ///< of the steps come after a `reset`
  bool coarse_scores = true;
};

struct Driven {
  std::uint32_t victims = 0;    ///< questions
  std::uint32_t different = 0;  ///< that were answered differently
  std::uint32_t slots = 0;      ///< that were evicted at least once
};

/// Calls `a` and `b` as the core does: steps through all the pool's layers, with resident experts first, then misses, then a
/// prefetch for the next layer. Some uses are served by another pool at low precision, and some victims are not taken.
/// Optional hooks are called if they are declared, noexcept included.
template <class A, class B>
Driven drive(A& a, B& b, std::uint64_t seed, const Drive& d = {}) {
  Random random(seed);
  Driven result;
  auto both = [&](auto call) {
    call(a);
    call(b);
  };
  std::vector<Variant> holds;
  std::vector<bool> answered(d.pool.slots);
  auto admit = [&](Variant v, bool demand) {
    std::uint32_t to = static_cast<std::uint32_t>(holds.size());
    if (to < d.pool.slots) {
      holds.push_back(v);
    } else {
      std::vector<std::uint8_t> flags(d.pool.slots);
      for (auto& f : flags) f = random.chance(25) ? 1 : 0;
      to = a.victim(v, {flags.data(), 1});
      const std::uint32_t other = b.victim(v, {flags.data(), 1});
      ++result.victims;
      if (to != other) ++result.different;
      if (to == no_slot || random.chance(10)) return;
      answered[to] = true;
      holds[to] = v;
    }
    both([&](auto& c) { c.replace(to, v, demand); });
  };
  auto slot_of = [&](Variant v) {
    const auto at = std::find(holds.begin(), holds.end(), v);
    return at == holds.end() ? no_slot : static_cast<std::uint32_t>(at - holds.begin());
  };
  auto expert = [&] {  // low indices are asked for more often
    const std::uint32_t first = random.below(d.pool.experts);
    const std::uint32_t second = random.below(d.pool.experts);
    return static_cast<std::uint16_t>(std::min(first, second));
  };
  for (std::uint32_t step = 0; step < d.steps; ++step) {
    if (random.chance(d.reset_percent)) {
      both([](auto& c) {
        if constexpr (part::Resets<std::remove_reference_t<decltype(c)>>) c.reset();
      });
      admit(full(d.pool.first_layer, expert()), true);  // before the first step
    }
    const std::uint32_t rows = random.between(1, d.max_rows);
    const StepOf begin(Phase::decode, rows);
    both([&](auto& c) {
      if constexpr (part::BeginsStep<std::remove_reference_t<decltype(c)>>) c.begin_step(begin);
    });
    for (std::uint32_t l = 0; l < d.pool.layers; ++l) {
      const auto layer = static_cast<std::uint16_t>(d.pool.first_layer + l);
      const std::vector<float> gate = random.scores(std::size_t{rows} * d.pool.experts, d.coarse_scores);
      both([&](auto& c) {
        if constexpr (part::ObservesScores<std::remove_reference_t<decltype(c)>>) c.observe(scores(layer, gate));
      });
      std::vector<std::uint16_t> chosen;
      for (std::uint32_t i = 0; i <= rows; ++i) {
        const std::uint16_t e = expert();
        if (std::find(chosen.begin(), chosen.end(), e) == chosen.end()) chosen.push_back(e);
      }
      std::vector<Route> routes(rows);  // one a row
      for (Route& r : routes) r = {chosen[random.below(static_cast<std::uint32_t>(chosen.size()))], 1.0F, no_expert};
      both([&](auto& c) {
        if constexpr (part::SeesChoices<std::remove_reference_t<decltype(c)>>)
          c.chosen(layer, {routes.data(), rows}, {});
      });
      std::vector<Variant> missing;
      for (const std::uint16_t e : chosen) {
        Variant v = full(layer, e);
        if (random.chance(30)) v.precision = Precision::int4;
        both([&](auto& c) {
          if constexpr (part::SeesUse<std::remove_reference_t<decltype(c)>>) c.used(v);
        });
        if (v.precision != Precision::full) continue;  // lives in another pool
        const std::uint32_t slot = slot_of(v);
        if (slot == no_slot) {
          missing.push_back(v);
        } else {
          both([&](auto& c) { c.touch(v, slot); });
        }
      }
      const Nanoseconds each = random.below(100'000);
      for (const std::uint16_t e : chosen) {
        both([&](auto& c) {
          if constexpr (part::CountsSavings<std::remove_reference_t<decltype(c)>>) {
            Request use;
            use.want = full(layer, e);
            use.rows = 1;
            c.saved({&use, 1}, rows, each);
          }
        });
      }
      for (const Variant& v : missing) {
        both([&](auto& c) { c.touch(v, no_slot); });
        admit(v, true);
      }
      const Variant next = full(static_cast<std::uint16_t>(d.pool.first_layer + (l + 1) % d.pool.layers), expert());
      if (slot_of(next) == no_slot) admit(next, false);
    }
  }
  result.slots = static_cast<std::uint32_t>(std::count(answered.begin(), answered.end(), true));
  return result;
}

/// The uses that a policy was told of, as a plain list, from which naive references count.
class UseList {
 public:
  void reset() {
    uses_.clear();
    step_ = 0;
  }
  void begin_step() { ++step_; }
  void add(Variant what) { uses_.push_back({what, step_}); }

  [[nodiscard]] std::uint32_t step() const { return step_; }
  [[nodiscard]] std::uint32_t count(ExpertId id, Precision at_least) const {
    std::uint32_t n = 0;
    for (const auto& [what, step] : uses_) n += what.id == id && what.precision >= at_least ? 1 : 0;
    return n;
  }
  [[nodiscard]] std::uint32_t last(ExpertId id) const {
    std::uint32_t at = 0;
    for (const auto& [what, step] : uses_) at = what.id == id ? step : at;
    return at;
  }

 private:
  struct Use {
    Variant what;
    std::uint32_t step;
  };
  std::vector<Use> uses_;
  std::uint32_t step_ = 0;
};

/// The slots of a naive reference, and how it finds the one that is worth least.
class SlotList {
 public:
  explicit SlotList(std::uint32_t slots) : experts_(slots) {}
  void put(std::uint32_t slot, ExpertId id) { experts_[slot] = id; }
  template <class Worth>
  [[nodiscard]] std::uint32_t least(Barred barred, Worth worth) const {
    std::vector<std::uint32_t> left;
    for (std::uint32_t s = 0; s < experts_.size(); ++s) {
      if (!barred[s]) left.push_back(s);
    }
    const auto at = std::min_element(left.begin(), left.end(), [&](std::uint32_t x, std::uint32_t y) {
      return worth(experts_[x]) < worth(experts_[y]);
    });
    return at == left.end() ? no_slot : *at;
  }

 private:
  std::vector<ExpertId> experts_;
};

/// Slots in the order in which a policy gives them up for `incoming`: each is barred once named.
template <class Cache>
std::vector<std::uint32_t> order_of_eviction(Cache& cache, std::uint32_t slots, Variant incoming) {
  std::vector<std::uint8_t> flags(slots);
  std::vector<std::uint32_t> order;
  for (std::uint32_t s = cache.victim(incoming, {flags.data(), 1}); s != no_slot && order.size() <= slots;
       s = cache.victim(incoming, {flags.data(), 1})) {
    order.push_back(s);
    if (s < slots) flags[s] = 1;
  }
  return order;
}

}  // namespace ferry::test
