/// @file
/// The other side of bench/decide/virtual_baseline.cpp: one layer's decision as engines write it, with policies behind virtual
/// interfaces, hash maps and lists of the standard library, and results in vectors. It decides what the template stacks
/// of the same names decide.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace ferry::bench::dynamic {

struct ExpertKey {
  int layer = 0, expert = 0;
  bool operator==(const ExpertKey&) const = default;
};
struct ExpertKeyHash {
  std::size_t operator()(const ExpertKey& k) const noexcept {
    return static_cast<std::size_t>(k.layer) << 16U | static_cast<std::size_t>(k.expert);
  }
};
using ExpertSet = std::unordered_set<ExpertKey, ExpertKeyHash>;

enum class Format { bf16, int8, int4, int2 };

struct Route {
  int row = 0, expert = 0;
  float weight = 0.0F;
};

/// An expert that the layer needs, with the routes that chose it.
struct ExpertRequest {
  ExpertKey key;
  Format format = Format::bf16;
  float weight = 0.0F;      ///< the largest
  std::vector<int> routes;  ///< indices into Plan::routes
};

struct Prediction {
  ExpertKey key;
  float score = 0.0F;
};

struct Copy {
  ExpertKey key;
  Format format = Format::bf16;
  int slot = 0;
};

struct Task {
  ExpertKey key;
  Format format = Format::bf16;
  int slot = 0;
  std::vector<int> routes;
};

struct Plan {
  std::vector<Route> routes;  ///< [rows, k]
  std::vector<Copy> copies;
  std::vector<Task> resident, arriving;
};

struct LayerTimes {
  std::int64_t attention_ns = 0, gate_ns = 0, expert_ns = 0;
};

struct Stats {
  std::uint64_t hits = 0, misses = 0, prefetches = 0;
  bool operator==(const Stats&) const = default;
};

class Router {
 public:
  virtual ~Router() = default;
  /// `scores` is [rows, experts].
  virtual std::vector<Route> route(std::span<const float> scores) const = 0;
};

class Predictor {
 public:
  virtual ~Predictor() = default;
  /// How many layers it looks ahead.
  virtual int depth() const = 0;
  /// The experts that `layer` will need, surest first.
  virtual std::vector<Prediction> predict(int layer, std::span<const float> scores) const = 0;
};

class PrecisionSelector {
 public:
  virtual ~PrecisionSelector() = default;
  virtual Format select(const ExpertKey& key, float weight) const = 0;
};

/// Which experts of one layer are on the device, and in which slots.
class Cache {
 public:
  virtual ~Cache() = default;
  virtual bool contains(const ExpertKey& key) const = 0;
  /// The expert's slot if it is resident. Counts as a use.
  virtual std::optional<int> get(const ExpertKey& key) = 0;
  /// Admits the expert to a free slot, or to that of an expert that is not pinned; no slot if all are pinned.
  virtual std::optional<int> put(const ExpertKey& key, bool prefetch, const ExpertSet& pinned) = 0;
};

class Scheduler {
 public:
  virtual ~Scheduler() = default;
  virtual void order(std::vector<ExpertRequest>& misses) const = 0;
  /// How many experts may be prefetched while a layer of so many experts runs.
  virtual std::size_t prefetch_limit(const LayerTimes& times, std::size_t experts) const = 0;
};

struct Policies {
  std::unique_ptr<Router> router;
  std::unique_ptr<Predictor> predictor;
  std::unique_ptr<PrecisionSelector> precision;
  std::unique_ptr<Scheduler> scheduler;
  std::vector<std::unique_ptr<Cache>> caches;  ///< one a layer
};

struct EngineConfig {
  int experts = 0, top_k = 0;
  std::vector<int> slots;  ///< of each layer's cache
  int staging_slots = 2;   ///< for experts that find no room in their cache
  std::int64_t copy_ns = 0;
};

/// One layer: `plan`, `look_ahead`, `done` for the tasks, `finish`.
class Engine {
 public:
  Engine(Policies policies, const EngineConfig& config);

  Plan plan(int layer, std::span<const float> scores);
  /// Predicts for a later layer, from the scores that its gate is expected to give.
  std::vector<Copy> look_ahead(int layer, std::span<const float> scores);
  void done(const Task& task);
  void finish(int layer, const LayerTimes& times);

  int look_ahead_depth() const { return policies_.predictor->depth(); }
  const Stats& stats() const { return stats_; }

 private:
  std::vector<ExpertRequest> group_by_expert(int layer, const std::vector<Route>& routes) const;

  Policies policies_;
  int experts_, first_staging_slot_, staging_slots_, next_staging_slot_ = 0;
  ExpertSet pinned_;  ///< needed by the present layer, or predicted for the next one
  std::vector<LayerTimes> times_;
  int layer_ = 0;
  std::size_t running_ = 0;  ///< experts of that layer
  Stats stats_;
};

/// `stack` is one of lru, mixtral-offloading and fate+cache.
std::unique_ptr<Engine> make_engine(std::string_view stack, const EngineConfig& config);

}  // namespace ferry::bench::dynamic
