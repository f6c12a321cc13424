#include "calibrate/calibrate_stack.hpp"

#include <algorithm>
#include <bit>
#include <mutex>

#include "support/threads.hpp"

namespace ferry::engine {

Found<ThresholdChoice> find_thresholds(
    std::uint32_t steps, double most_loss_percent,
    const std::function<std::optional<ChoiceCost>(double t1, double t2, std::uint32_t left)>& measure) {
  Found<ThresholdChoice> found;
  const double whole = steps;
  for (std::uint32_t t1 = 0, t2 = steps; t1 <= t2;) {
    ThresholdChoice now{t1 / whole, t2 / whole, {}};
    const std::optional<ChoiceCost> cost = measure(now.t1, now.t2, t2 - t1 + 1);
    if (!cost) {
      found.stopped = true;
      break;
    }
    now.cost = *cost;
    found.tried.push_back(now);
    if (!(now.cost.loss_percent <= most_loss_percent)) {
      ++t1;
      continue;
    }
    auto worth = [](const ChoiceCost& c) { return std::pair(c.bytes, c.loss_percent); };
    if (!found.best || worth(now.cost) < worth(found.tried[*found.best].cost)) found.best = found.tried.size() - 1;
    if (t2 == 0) break;
    --t2;
  }
  return found;
}

Found<StepChoice> find_largest(
    std::uint32_t last, double most_loss_percent,
    const std::function<std::optional<ChoiceCost>(std::uint32_t step, std::uint32_t left)>& measure) {
  Found<StepChoice> found;
  // Everything below `low` is good enough, everything from `high` on is not.
  std::uint32_t low = 0, high = last + 1;
  while (low < high) {
    const std::uint32_t step = low + (high - low) / 2;
    const std::optional<ChoiceCost> cost = measure(step, static_cast<std::uint32_t>(std::bit_width(high - low)));
    if (!cost) {
      found.stopped = true;
      break;
    }
    found.tried.push_back({step, *cost});
    if (found.tried.back().cost.loss_percent <= most_loss_percent) {
      found.best = found.tried.size() - 1;
      low = step + 1;
    } else {
      high = step;
    }
  }
  return found;
}

std::vector<CacheWeights> weight_mixtures(std::uint32_t step) {
  const std::uint32_t n = 1000 / step;
  std::vector<CacheWeights> all;
  for (std::uint32_t lru = n + 1; lru-- > 0;) {
    for (std::uint32_t lfu = n - lru + 1; lfu-- > 0;) {
      for (std::uint32_t lhu = n - lru - lfu + 1; lhu-- > 0;) {
        all.push_back({lru * step, lfu * step, lhu * step, (n - lru - lfu - lhu) * step});
      }
    }
  }
  return all;
}

std::vector<std::optional<std::uint64_t>> measure_all(
    std::size_t count, const std::function<std::optional<std::uint64_t>(std::size_t choice)>& measure,
    const std::function<void(std::uint64_t done, std::uint64_t total)>& progress) {
  std::mutex mutex;
  std::uint64_t done = 0;
  std::vector<std::optional<std::uint64_t>> costs(count);
  on_threads(all_threads(), count, [&](std::size_t i) {
    costs[i] = measure(i);
    if (!costs[i]) return;
    const std::lock_guard lock(mutex);
    progress(++done, count);
  });
  return costs;
}

}  // namespace ferry::engine
