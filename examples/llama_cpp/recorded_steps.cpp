#include "recorded_steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "ferry/router/top_k.hpp"
#include "support/errors.hpp"

namespace ferry::llama_cpp {
namespace {

using engine::InputError;
using engine::TraceFile;
using Layers = std::vector<WatchedLayer>;

std::vector<LayerWork> work_of(const Layers& layers) {
  std::vector<LayerWork> all;
  for (const WatchedLayer& l : layers) {
    LayerWork& w = all.emplace_back();
    for (const ggml_tensor* m : l.dense) {
      w.dense_bytes += ggml_nbytes(m);
      w.dense_operations += 2 * static_cast<std::uint64_t>(ggml_nelements(m));
    }
    for (const ggml_tensor* m : l.matrices) w.expert_operations += 2 * static_cast<std::uint64_t>(m->ne[0] * m->ne[1]);
    w.activation_bytes = static_cast<std::uint64_t>(l.gate->ne[0]) * sizeof(float);
  }
  if (std::equal(all.begin() + 1, all.end(), all.begin())) all.resize(1);
  return all;
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// Whether the k highest scores are those of the experts that were chosen.
bool same_choice(const float* select, std::uint32_t experts, std::span<const std::uint16_t> chosen) {
  std::vector<std::uint16_t> best(experts), sorted(chosen.begin(), chosen.end());
  std::iota(best.begin(), best.end(), std::uint16_t{0});
  std::stable_sort(best.begin(), best.end(), [&](auto a, auto b) { return select[a] > select[b]; });
  best.resize(chosen.size());
  std::sort(best.begin(), best.end());
  std::sort(sorted.begin(), sorted.end());
  return best == sorted;
}

}  // namespace

RecordedSteps::RecordedSteps(const GateWatcher& watcher, const Session& session, std::uint16_t ahead)
    : watcher_(watcher), scores_(watcher.layers(), session), ahead_(ahead), shape_(scores_.shape()) {
  step_.trace.name = session.name();
  step_.trace.model = shape_;
  step_.trace.ahead = ahead;
  step_.work = work_of(watcher.layers());
}

const TraceFile& RecordedSteps::take(const PassedStep& step) {
  const std::size_t cells = std::size_t{step.rows} * shape_.layers, all = cells * shape_.experts;
  step_.trace.tokens = step.rows;
  step_.sequence_start = {0};
  step_.phase.assign(step.rows, static_cast<std::uint8_t>(step.phase));
  step_.experts.assign(cells * shape_.top_k, no_expert);
  step_.weights.assign(cells * shape_.top_k, 0.0F);
  step_.scores.assign(all, 0.0F);
  step_.predicted.assign(all * ahead_, 0.0F);
  step_.choice_scores.assign(scores_.separate() ? all : 0, 0.0F);
  step_.choice_predicted.assign(scores_.separate() ? all * ahead_ : 0, 0.0F);
  for (std::uint16_t l = 0; l < shape_.layers; ++l) take_layer(l, step);
  step_.view();
  if (kept_) {
    append(kept_->experts, step_.experts);
    append(kept_->weights, step_.weights);
    append(kept_->scores, step_.scores);
    append(kept_->predicted, step_.predicted);
    append(kept_->choice_scores, step_.choice_scores);
    append(kept_->choice_predicted, step_.choice_predicted);
    append(kept_->phase, step_.phase);
  }
  return step_;
}

void RecordedSteps::take_layer(std::uint16_t layer, const PassedStep& step) {
  const GateRows& seen = watcher_.rows()[layer];
  const WatchedLayer& watched = watcher_.layers()[layer];
  const std::uint32_t experts = shape_.experts, k = watched.top_k;
  const bool whole = seen.rows == step.rows;
  if (!whole && seen.rows != step.outputs.size()) {
    throw InputError(fmt::format("layer {}: {} rows of {} are there, but outputs were asked for {}", watched.number,
                                 seen.rows, step.rows, step.outputs.size()));
  }
  if (seen.rows == 0) return;
  const auto later = static_cast<std::uint16_t>(std::min<std::uint32_t>(ahead_, shape_.layers - layer - 1U));
  const Scores scores = scores_.of(layer, seen);
  View<const Scores> predicted;
  if (later > 0) predicted = scores_.predicted(layer, later, seen);
  const Weighing weighing(shape_);
  std::vector<Route> routes(k);
  for (std::uint32_t i = 0; i < seen.rows; ++i) {
    const std::size_t cell = std::size_t{whole ? i : step.outputs[i]} * shape_.layers + layer;
    const std::size_t from = std::size_t{i} * experts;
    std::copy_n(scores.weight.data + from, experts, &step_.scores[cell * experts]);
    if (scores_.separate()) std::copy_n(scores.select.data + from, experts, &step_.choice_scores[cell * experts]);
    std::uint16_t* chosen = &step_.experts[cell * shape_.top_k];
    for (std::uint32_t c = 0; c < k; ++c) {
      chosen[c] = static_cast<std::uint16_t>(seen.choices[std::size_t{i} * k + c]);
      routes[c].expert = chosen[c];
    }
    weighing.weigh(scores.weight.data + from, k, routes.data());
    for (std::uint32_t c = 0; c < k; ++c) step_.weights[cell * shape_.top_k + c] = routes[c].weight;
    ++rows;
    other_choices += same_choice(scores.select.data + from, watched.experts, {chosen, k}) ? 0 : 1;
    for (std::uint32_t d = 0; d < later; ++d) {
      const std::size_t to = (cell * ahead_ + d) * experts;
      std::copy_n(predicted[d].weight.data + from, experts, &step_.predicted[to]);
      if (scores_.separate()) std::copy_n(predicted[d].select.data + from, experts, &step_.choice_predicted[to]);
    }
  }
}

const TraceFile& RecordedSteps::kept() {
  if (!kept_ || kept_->phase.empty()) throw InputError("no token was recorded");
  kept_->sequence_start = {0};
  kept_->trace = {};
  kept_->trace.name = step_.trace.name;
  kept_->trace.model = shape_;
  kept_->trace.ahead = ahead_;
  kept_->work = step_.work;
  kept_->source = "llama.cpp";
  kept_->view();
  return *kept_;
}

}  // namespace ferry::llama_cpp
