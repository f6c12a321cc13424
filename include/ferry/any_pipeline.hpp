/// @file
/// A pipeline of a stack that is chosen at run time. This costs a virtual call for each call of a pipeline, and two for
/// each copy; the template path does not include it.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ferry/any_link.hpp"
#include "ferry/error.hpp"
#include "ferry/pipeline.hpp"
#include "ferry/stack_traits.hpp"

namespace ferry::inline FERRY_ABI {

/// OffloadPipeline without its types: the same calls with the same meaning, each checked in the same way.
class AnyPipeline : public detail::LookAheadLoop<AnyPipeline> {
 public:
  AnyPipeline() = default;
  virtual ~AnyPipeline() = default;
  AnyPipeline(const AnyPipeline&) = delete;
  AnyPipeline& operator=(const AnyPipeline&) = delete;

  /// As in OffloadPipeline.
  virtual void preload() = 0;
  /// As in OffloadPipeline.
  virtual void begin_step(const Step& step) = 0;
  /// As in OffloadPipeline: the gate's scores of a layer.
  virtual Plan plan(const Scores& scores) = 0;
  /// Throws UsageError for a stack that needs the scores of all experts (StackTraits).
  virtual Plan plan(std::uint16_t layer, View<const Route> routes, View<const std::uint32_t> rows) = 0;
  /// The same for all rows of the step.
  Plan plan(std::uint16_t layer, View<const Route> routes) { return plan(layer, routes, {}); }

  using detail::LookAheadLoop<AnyPipeline>::look_ahead;
  /// As in OffloadPipeline: scores predicted for a later layer.
  virtual void look_ahead(const Scores& predicted) = 0;
  /// As in OffloadPipeline: the layer that a look-ahead is of use for, or `no_layer`.
  [[nodiscard]] virtual std::uint16_t layer_ahead(RowSource source, std::uint16_t distance) const noexcept = 0;
  /// As in OffloadPipeline: how many layers ahead; 0: it does not look.
  [[nodiscard]] virtual std::uint16_t look_ahead_depth() const noexcept = 0;

  /// As in OffloadPipeline.
  virtual void wait(const Task& task) = 0;
  /// As in OffloadPipeline: what has been computed.
  virtual void done(View<const Task> tasks) = 0;
  /// The same for one task.
  void done(const Task& task) { done({&task, 1}); }
  /// As in OffloadPipeline: the layer is over.
  virtual void finish(std::uint16_t layer, const Times& times) = 0;
  /// The same with nothing measured.
  void finish(std::uint16_t layer) { finish(layer, {}); }
  /// As in OffloadPipeline: the step is given up.
  virtual void abandon() noexcept = 0;
  /// As in OffloadPipeline.
  virtual void end_sequence(std::uint32_t sequence) noexcept = 0;

  /// What has been counted since the pipeline was made.
  [[nodiscard]] virtual const Counters& counters() const noexcept = 0;
  /// As in OffloadPipeline: predictions made for `layer` from `distance` layers before it.
  [[nodiscard]] virtual Accuracy prediction_accuracy(std::uint16_t distance, std::uint16_t layer) const noexcept = 0;
  /// What the stack is like.
  [[nodiscard]] virtual StackTraits traits() const noexcept = 0;
  /// What makes the rows that `look_ahead` takes.
  [[nodiscard]] RowSource look_ahead_rows(Phase phase) const noexcept {
    return traits().rows[static_cast<unsigned>(phase)];
  }
};

/// A stack with its parameters and its slots, of which pipelines can be made.
class AnyConfig {
 public:
  AnyConfig() = default;
  virtual ~AnyConfig() = default;
  AnyConfig(const AnyConfig&) = delete;
  AnyConfig& operator=(const AnyConfig&) = delete;

  /// The settings. A link fills the slots of `settings().allotment`.
  [[nodiscard]] virtual CoreSettings& settings() noexcept = 0;
  /// The same, to read.
  [[nodiscard]] virtual const CoreSettings& settings() const noexcept = 0;
  /// What the stack is like.
  [[nodiscard]] virtual StackTraits traits() const noexcept = 0;
  /// How many layers ahead its pipelines look; 0: they do not.
  [[nodiscard]] virtual std::uint16_t look_ahead_depth() const noexcept = 0;
  /// Bytes of host memory that a pipeline's tables take. Throws ConfigError if the configuration cannot work.
  [[nodiscard]] virtual std::size_t storage_bytes() const = 0;
  /// The link outlives the pipeline. Throws ConfigError if the configuration cannot work.
  [[nodiscard]] virtual std::unique_ptr<AnyPipeline> start(AnyLink& link) const = 0;
  /// The same for a link of a type of its own. It outlives the pipeline.
  template <Link L>
  requires(!std::derived_from<L, AnyLink>) [[nodiscard]] std::unique_ptr<AnyPipeline> start(L& link) const {
    return start_owning(std::make_unique<AdaptedLink<L>>(link));
  }

 protected:
  /// Starts a pipeline that owns its link.
  [[nodiscard]] virtual std::unique_ptr<AnyPipeline> start_owning(std::unique_ptr<AnyLink> link) const = 0;
};

namespace detail {

template <class Stack>
class PipelineOf final : public AnyPipeline {
  using Pipe = OffloadPipeline<Stack, AnyLink>;

 public:
  PipelineOf(const CoreConfig<Stack>& config, AnyLink& link) : pipe_(config, link) {}
  PipelineOf(const CoreConfig<Stack>& config, std::unique_ptr<AnyLink> link)
      : link_(std::move(link)), pipe_(config, *link_) {}

  void preload() override { pipe_.preload(); }
  void begin_step(const Step& step) override { pipe_.begin_step(step); }
  Plan plan(const Scores& scores) override { return pipe_.plan(scores); }
  Plan plan(std::uint16_t layer, View<const Route> routes, View<const std::uint32_t> rows) override {
    if constexpr (Pipe::traits().router_needs_scores || Pipe::traits().cache_needs_scores) {
      detail::fail<UsageError>("plan, layer " + std::to_string(layer) +
                               ": this stack needs the scores of all experts, expected plan(scores) instead of routes");
    } else {
      return pipe_.plan(layer, routes, rows);
    }
  }
  void look_ahead(const Scores& predicted) override { pipe_.look_ahead(predicted); }
  [[nodiscard]] std::uint16_t layer_ahead(RowSource source, std::uint16_t distance) const noexcept override {
    return pipe_.layer_ahead(source, distance);
  }
  [[nodiscard]] std::uint16_t look_ahead_depth() const noexcept override { return pipe_.look_ahead_depth(); }
  void wait(const Task& task) override { pipe_.wait(task); }
  void done(View<const Task> tasks) override { pipe_.done(tasks); }
  void finish(std::uint16_t layer, const Times& times) override { pipe_.finish(layer, times); }
  void abandon() noexcept override { pipe_.abandon(); }
  void end_sequence(std::uint32_t sequence) noexcept override { pipe_.end_sequence(sequence); }
  [[nodiscard]] const Counters& counters() const noexcept override { return pipe_.counters(); }
  [[nodiscard]] Accuracy prediction_accuracy(std::uint16_t distance, std::uint16_t layer) const noexcept override {
    return pipe_.prediction_accuracy(distance, layer);
  }
  [[nodiscard]] StackTraits traits() const noexcept override { return Pipe::traits(); }

 private:
  std::unique_ptr<AnyLink> link_;  ///< if it was adapted
  Pipe pipe_;
};

template <class Stack>
class ConfigOf final : public AnyConfig {
 public:
  explicit ConfigOf(CoreConfig<Stack> config) : config_(std::move(config)) {}

  [[nodiscard]] CoreSettings& settings() noexcept override { return config_; }
  [[nodiscard]] const CoreSettings& settings() const noexcept override { return config_; }
  [[nodiscard]] StackTraits traits() const noexcept override { return traits_of<Stack>(); }
  [[nodiscard]] std::uint16_t look_ahead_depth() const noexcept override { return part::depth_of(config_.predictor); }
  [[nodiscard]] std::size_t storage_bytes() const override { return Core<Stack>::storage_bytes(config_); }
  [[nodiscard]] std::unique_ptr<AnyPipeline> start(AnyLink& link) const override {
    return std::make_unique<PipelineOf<Stack>>(config_, link);
  }

 private:
  [[nodiscard]] std::unique_ptr<AnyPipeline> start_owning(std::unique_ptr<AnyLink> link) const override {
    return std::make_unique<PipelineOf<Stack>>(config_, std::move(link));
  }

  CoreConfig<Stack> config_;
};

}  // namespace detail

/// A configuration whose stack the caller knows, for code that does not.
template <class Stack>
[[nodiscard]] std::unique_ptr<AnyConfig> any_config(CoreConfig<Stack> config) {
  return std::make_unique<detail::ConfigOf<Stack>>(std::move(config));
}

/// Stacks by name. The user fills it; what is not added is not compiled.
///
///     ferry::StackTable table;
///     table.add<stacks::LruCache>("lru");
///     table.add<stacks::Fate>("fate", [](auto& config, Budget budget) { ... });   // with a set-up of one's own
///     const auto config = table.configure("lru", model, budget);
///     MyLink link(config->settings().allotment.offsets());
///     const auto pipe = config->start(link);
class StackTable {
 public:
  /// `set_up(CoreConfig<Stack>&, Budget)` lays out the budget and sets parameters. Throws ConfigError for a name that
  /// is taken.
  template <class Stack, class SetUp>
  void add(std::string name, SetUp set_up) {
    for (const Row& row : rows_) {
      if (row.name == name) detail::fail<ConfigError>("two stacks are named " + name + ", expected different names");
    }
    rows_.push_back({std::move(name), [set_up](const ModelShape& model, Budget budget) {
                       CoreConfig<Stack> config;
                       config.model = model;
                       set_up(config, budget);
                       return any_config(std::move(config));
                     }});
  }
  /// Adds a stack under this name, set up by `Stack::set_up`.
  template <class Stack>
  void add(std::string name) {
    add<Stack>(std::move(name), [](CoreConfig<Stack>& config, Budget budget) { Stack::set_up(config, budget); });
  }

  /// The names of all stacks, in the order in which they were added.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const Row& row : rows_) all.push_back(row.name);
    return all;
  }

  /// Throws ConfigError for an unknown name, naming those there are, and for a budget that cannot work.
  [[nodiscard]] std::unique_ptr<AnyConfig> configure(const std::string& name, const ModelShape& model,
                                                     Budget budget) const {
    std::string known;
    for (const Row& row : rows_) {
      if (row.name == name) return row.configure(model, budget);
      known += (known.empty() ? "" : ", ") + row.name;
    }
    detail::fail<ConfigError>("no stack is named " + name + ", expected one of: " + known);
  }

 private:
  struct Row {
    std::string name;
    std::function<std::unique_ptr<AnyConfig>(const ModelShape&, Budget)> configure;
  };
  std::vector<Row> rows_;
};

}  // namespace ferry::inline FERRY_ABI
