#include "virtual_stack.hpp"

#include <algorithm>
#include <limits>
#include <list>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace ferry::bench::dynamic {
namespace {

std::vector<int> top_k(const float* scores, int n, int k) {
  std::vector<int> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int a, int b) { return scores[a] > scores[b]; });
  order.resize(static_cast<std::size_t>(k));
  return order;
}

class TopKRouter final : public Router {
 public:
  TopKRouter(int experts, int k) : experts_(experts), k_(k) {}

  std::vector<Route> route(std::span<const float> scores) const override {
    const int rows = static_cast<int>(scores.size()) / experts_;
    std::vector<Route> routes;
    routes.reserve(static_cast<std::size_t>(rows * k_));
    for (int row = 0; row < rows; ++row) {
      const float* s = &scores[static_cast<std::size_t>(row * experts_)];
      const std::vector<int> best = top_k(s, experts_, k_);
      float sum = 0.0F;
      for (const int e : best) sum += s[e];
      for (const int e : best) routes.push_back({row, e, s[e] / sum});
    }
    return routes;
  }

 private:
  int experts_, k_;
};

class NoPredictor final : public Predictor {
 public:
  int depth() const override { return 0; }
  std::vector<Prediction> predict(int /*layer*/, std::span<const float> /*scores*/) const override { return {}; }
};

/// The best experts of each row of the next layer's gate.
class NextGatePredictor final : public Predictor {
 public:
  NextGatePredictor(int experts, int per_row) : experts_(experts), per_row_(per_row) {}

  int depth() const override { return 1; }
  std::vector<Prediction> predict(int layer, std::span<const float> scores) const override {
    std::unordered_map<int, float> best;
    for (std::size_t at = 0; at < scores.size(); at += static_cast<std::size_t>(experts_)) {
      for (const int e : top_k(&scores[at], experts_, per_row_)) {
        float& score = best.try_emplace(e, 0.0F).first->second;
        score = std::max(score, scores[at + static_cast<std::size_t>(e)]);
      }
    }
    std::vector<Prediction> predictions;
    predictions.reserve(best.size());
    for (const auto& [expert, score] : best) predictions.push_back({{layer, expert}, score});
    std::sort(predictions.begin(), predictions.end(),
              [](const Prediction& a, const Prediction& b) { return a.score > b.score; });
    return predictions;
  }

 private:
  int experts_, per_row_;
};

class OneFormat final : public PrecisionSelector {
 public:
  Format select(const ExpertKey& /*key*/, float /*weight*/) const override { return Format::bf16; }
};

class PlainScheduler final : public Scheduler {
 public:
  void order(std::vector<ExpertRequest>& /*misses*/) const override {}
  std::size_t prefetch_limit(const LayerTimes& /*times*/, std::size_t /*experts*/) const override {
    return std::numeric_limits<std::size_t>::max();
  }
};

/// Prefetches as many experts as the layer's own time hides.
class BudgetScheduler final : public Scheduler {
 public:
  explicit BudgetScheduler(std::int64_t copy_ns) : copy_ns_(copy_ns) {}

  void order(std::vector<ExpertRequest>& /*misses*/) const override {}
  std::size_t prefetch_limit(const LayerTimes& times, std::size_t experts) const override {
    const std::int64_t fixed_ns = times.attention_ns + times.gate_ns;
    if (fixed_ns + times.expert_ns == 0) return std::numeric_limits<std::size_t>::max();  // not measured yet
    return static_cast<std::size_t>((fixed_ns + times.expert_ns * static_cast<std::int64_t>(experts)) / copy_ns_);
  }

 private:
  std::int64_t copy_ns_;
};

std::vector<int> free_slots(int first, int count) {
  std::vector<int> slots(static_cast<std::size_t>(count));
  std::iota(slots.rbegin(), slots.rend(), first);
  return slots;
}

class LruCache final : public Cache {
 public:
  LruCache(int first_slot, int slots) : free_(free_slots(first_slot, slots)) {
    index_.reserve(static_cast<std::size_t>(slots));
  }

  bool contains(const ExpertKey& key) const override { return index_.contains(key); }

  std::optional<int> get(const ExpertKey& key) override {
    const auto found = index_.find(key);
    if (found == index_.end()) return std::nullopt;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->slot;
  }

  std::optional<int> put(const ExpertKey& key, bool /*prefetch*/, const ExpertSet& pinned) override {
    int slot = 0;
    if (!free_.empty()) {
      slot = free_.back();
      free_.pop_back();
    } else {
      const auto victim =
          std::find_if(entries_.rbegin(), entries_.rend(), [&](const Entry& e) { return !pinned.contains(e.key); });
      if (victim == entries_.rend()) return std::nullopt;
      slot = victim->slot;
      index_.erase(victim->key);
      entries_.erase(std::next(victim).base());
    }
    entries_.push_front({key, slot});
    index_[key] = entries_.begin();
    return slot;
  }

 private:
  struct Entry {
    ExpertKey key;
    int slot;
  };

  std::list<Entry> entries_;  ///< most recently used first
  std::unordered_map<ExpertKey, std::list<Entry>::iterator, ExpertKeyHash> index_;
  std::vector<int> free_;
};

/// Megiddo and Modha's ARC. A prefetched expert is in T1, and leaves no ghost, until it is used.
class ArcCache final : public Cache {
 public:
  ArcCache(int first_slot, int slots)
      : capacity_(static_cast<std::size_t>(slots)), free_(free_slots(first_slot, slots)) {
    index_.reserve(2 * capacity_);
  }

  bool contains(const ExpertKey& key) const override {
    const auto found = index_.find(key);
    return found != index_.end() && is_resident(found->second.list);
  }

  std::optional<int> get(const ExpertKey& key) override {
    const auto found = index_.find(key);
    if (found == index_.end() || !is_resident(found->second.list)) return std::nullopt;
    Place& place = found->second;
    const Which to = place.at->unused ? t1 : t2;
    place.at->unused = false;
    move(place, to);
    return place.at->slot;
  }

  std::optional<int> put(const ExpertKey& key, bool prefetch, const ExpertSet& pinned) override {
    const auto found = index_.find(key);
    const bool ghost = found != index_.end();
    const bool in_b2 = ghost && found->second.list == b2;
    if (ghost && !prefetch) adapt(in_b2);
    int slot = 0;
    if (!free_.empty()) {
      slot = free_.back();
      free_.pop_back();
    } else {
      const auto recent = static_cast<double>(lists_[t1].size());
      const Which first = recent > target_ || (in_b2 && recent == target_) ? t1 : t2;
      std::optional<ExpertKey> victim = oldest(first, pinned);
      if (!victim) victim = oldest(first == t1 ? t2 : t1, pinned);
      if (!victim) return std::nullopt;
      slot = evict(*victim);
    }
    if (ghost) {
      Place& place = found->second;
      place.at->slot = slot;
      move(place, prefetch ? t1 : t2);
    } else {
      lists_[t1].push_front({key, slot, prefetch});
      index_[key] = {t1, lists_[t1].begin()};
    }
    if (lists_[t1].size() + lists_[b1].size() > capacity_) forget_oldest(b1);
    if (lists_[b1].size() + lists_[b2].size() > capacity_) forget_oldest(b2);
    return slot;
  }

 private:
  enum Which { t1, t2, b1, b2 };
  struct Entry {
    ExpertKey key;
    int slot;     ///< of those in T1 and T2
    bool unused;  ///< prefetched, and not used since
  };
  using List = std::list<Entry>;  ///< most recently used first
  struct Place {
    Which list;
    List::iterator at;
  };

  static bool is_resident(Which list) { return list == t1 || list == t2; }

  void move(Place& place, Which to) {
    lists_[to].splice(lists_[to].begin(), lists_[place.list], place.at);
    place.list = to;
  }

  std::optional<ExpertKey> oldest(Which list, const ExpertSet& pinned) const {
    const List& entries = lists_[list];
    const auto found =
        std::find_if(entries.rbegin(), entries.rend(), [&](const Entry& e) { return !pinned.contains(e.key); });
    if (found == entries.rend()) return std::nullopt;
    return found->key;
  }

  int evict(const ExpertKey& key) {
    const auto found = index_.find(key);
    Place& place = found->second;
    const int slot = place.at->slot;
    if (place.at->unused) {
      lists_[place.list].erase(place.at);
      index_.erase(found);
    } else {
      move(place, place.list == t1 ? b1 : b2);
    }
    return slot;
  }

  void forget_oldest(Which list) {
    index_.erase(lists_[list].back().key);
    lists_[list].pop_back();
  }

  void adapt(bool in_b2) {
    const auto one = static_cast<double>(lists_[b1].size()), two = static_cast<double>(lists_[b2].size());
    if (in_b2) {
      target_ = std::max(target_ - std::max(one / two, 1.0), 0.0);
    } else {
      target_ = std::min(target_ + std::max(two / one, 1.0), static_cast<double>(capacity_));
    }
  }

  std::size_t capacity_;
  double target_ = 0.0;  ///< of T1's size
  List lists_[4];
  std::unordered_map<ExpertKey, Place, ExpertKeyHash> index_;
  std::vector<int> free_;
};

}  // namespace

Engine::Engine(Policies policies, const EngineConfig& config)
    : policies_(std::move(policies)),
      experts_(config.experts),
      first_staging_slot_(std::accumulate(config.slots.begin(), config.slots.end(), 0)),
      staging_slots_(config.staging_slots),
      times_(config.slots.size()) {
  pinned_.reserve(static_cast<std::size_t>(experts_) * 2);
}

std::vector<ExpertRequest> Engine::group_by_expert(int layer, const std::vector<Route>& routes) const {
  std::vector<std::vector<int>> by_expert(static_cast<std::size_t>(experts_));
  std::vector<float> weight(static_cast<std::size_t>(experts_), 0.0F);
  for (std::size_t i = 0; i < routes.size(); ++i) {
    const auto e = static_cast<std::size_t>(routes[i].expert);
    by_expert[e].push_back(static_cast<int>(i));
    weight[e] = std::max(weight[e], routes[i].weight);
  }
  std::vector<ExpertRequest> requests;
  requests.reserve(std::min(routes.size(), by_expert.size()));
  for (int e = 0; e < experts_; ++e) {
    const auto at = static_cast<std::size_t>(e);
    if (by_expert[at].empty()) continue;
    const ExpertKey key{layer, e};
    requests.push_back({key, policies_.precision->select(key, weight[at]), weight[at], std::move(by_expert[at])});
  }
  return requests;
}

Plan Engine::plan(int layer, std::span<const float> scores) {
  Plan plan;
  plan.routes = policies_.router->route(scores);
  std::vector<ExpertRequest> requests = group_by_expert(layer, plan.routes);
  pinned_.clear();
  for (const ExpertRequest& r : requests) pinned_.insert(r.key);
  layer_ = layer;
  running_ = requests.size();

  Cache& cache = *policies_.caches[static_cast<std::size_t>(layer)];
  std::vector<ExpertRequest> misses;
  plan.resident.reserve(requests.size());
  for (ExpertRequest& r : requests) {  // hits first, so that they become recent before a victim is looked for
    if (const std::optional<int> slot = cache.get(r.key)) {
      ++stats_.hits;
      plan.resident.push_back({r.key, r.format, *slot, std::move(r.routes)});
    } else {
      misses.push_back(std::move(r));
    }
  }

  policies_.scheduler->order(misses);
  plan.copies.reserve(misses.size());
  plan.arriving.reserve(misses.size());
  for (ExpertRequest& r : misses) {
    ++stats_.misses;
    std::optional<int> slot = cache.put(r.key, false, pinned_);
    if (!slot) {  // the layer needs more experts than its cache holds
      slot = first_staging_slot_ + next_staging_slot_;
      next_staging_slot_ = (next_staging_slot_ + 1) % staging_slots_;
    }
    plan.copies.push_back({r.key, r.format, *slot});
    plan.arriving.push_back({r.key, r.format, *slot, std::move(r.routes)});
  }
  return plan;
}

std::vector<Copy> Engine::look_ahead(int layer, std::span<const float> scores) {
  Cache& cache = *policies_.caches[static_cast<std::size_t>(layer)];
  std::vector<Prediction> absent;
  for (const Prediction& p : policies_.predictor->predict(layer, scores)) {
    pinned_.insert(p.key);
    if (!cache.contains(p.key)) absent.push_back(p);
  }
  const std::size_t limit = policies_.scheduler->prefetch_limit(times_[static_cast<std::size_t>(layer_)], running_);
  if (absent.size() > limit) absent.resize(limit);
  std::vector<Copy> copies;
  copies.reserve(absent.size());
  for (const Prediction& p : absent) {
    const std::optional<int> slot = cache.put(p.key, true, pinned_);
    if (!slot) break;
    ++stats_.prefetches;
    copies.push_back({p.key, policies_.precision->select(p.key, p.score), *slot});
  }
  return copies;
}

void Engine::done(const Task& task) {
  pinned_.erase(task.key);
}

void Engine::finish(int layer, const LayerTimes& times) {
  times_[static_cast<std::size_t>(layer)] = times;
}

std::unique_ptr<Engine> make_engine(std::string_view stack, const EngineConfig& config) {
  Policies p;
  p.router = std::make_unique<TopKRouter>(config.experts, config.top_k);
  p.precision = std::make_unique<OneFormat>();
  if (stack == "lru") {
    p.predictor = std::make_unique<NoPredictor>();
  } else {
    const int above_percentile = config.experts - 1 - 75 * (config.experts - 1) / 100;
    p.predictor =
        std::make_unique<NextGatePredictor>(config.experts, stack == "fate+cache" ? above_percentile : config.top_k);
  }
  if (stack == "fate+cache") {
    p.scheduler = std::make_unique<BudgetScheduler>(config.copy_ns);
  } else {
    p.scheduler = std::make_unique<PlainScheduler>();
  }
  int first_slot = 0;
  for (const int slots : config.slots) {
    if (stack == "fate+cache") {
      p.caches.push_back(std::make_unique<ArcCache>(first_slot, slots));
    } else {
      p.caches.push_back(std::make_unique<LruCache>(first_slot, slots));
    }
    first_slot += slots;
  }
  return std::make_unique<Engine>(std::move(p), config);
}

}  // namespace ferry::bench::dynamic
