/// @file
/// A loaded model, whatever computes it.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "inference/expert_runner.hpp"
#include "math/matrix.hpp"
#include "text/tokenizer.hpp"

namespace ferry::engine {

class DiskStore;

/// The tokens of a sequence that a cache of keys and values has room for.
struct CacheRoom {
  CacheRoom() = default;
  /// For so many, in steps of at most `rows`; 0: of any number.
  CacheRoom(const ModelConfig& config, std::uint32_t positions, std::uint32_t rows = 0);

  std::uint32_t positions = 0;
  /// In layers that attend to a window or chunk only the last positions: as many as these reach, those of a step, and those
  /// that `can_return` needs.
  std::uint32_t recent = 0;
  std::uint32_t step = 0;  ///< tokens that come at once, at most
  std::uint32_t back = 0;

  [[nodiscard]] std::uint32_t of(const LayerConfig& layer) const { return layer.reach() > 0 ? recent : positions; }
  /// Whether a sequence may go on behind its first `kept` tokens: no layer has dropped what that needs. `run`: how many tokens
  /// have been run at most since the cache was empty, also if the sequence has gone back since then.
  [[nodiscard]] bool can_return(std::size_t run, std::size_t kept) const {
    return run <= recent || run - kept <= back || kept == 0;
  }
};

/// Throws InputError if keys and values cannot be kept as `config.cache_type` says.
void check_cache_type(const ModelConfig& config);

/// Bytes of a sequence's keys and values, and of what layers without them remember of it.
std::uint64_t cache_bytes(const ModelConfig& config, const CacheRoom& room);

/// Keys and values of one sequence.
class KvCache {
 public:
  KvCache() = default;
  /// In host memory.
  KvCache(const ModelConfig& config, const CacheRoom& room);
  /// In memory of another device, which knows what it is.
  KvCache(const CacheRoom& room, std::shared_ptr<void> on_device, std::uint64_t bytes)
      : room(room), device(std::move(on_device)), bytes_(bytes) {}

  CacheRoom room;
  /// [layers] of [kv_heads * room, head_dim] each. For LatentAttention one vector a position, as keys alone; for
  /// LinearAttention what it remembers, whatever the positions. Where keys and values are f16, two of their numbers are one of
  /// these.
  std::vector<Matrix> keys, values;
  std::shared_ptr<void> device;  ///< where it is on another device
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  /// Where a layer in host memory has a position. One that has only recent positions drops the first ones to make room for it.
  std::uint32_t place(std::uint32_t layer, std::uint32_t position);
  /// The position that a layer in host memory has first, and how many it has room for.
  [[nodiscard]] std::uint32_t first(std::uint32_t layer) const { return layers_[layer].first; }
  [[nodiscard]] std::uint32_t capacity(std::uint32_t layer) const { return layers_[layer].capacity; }

 private:
  struct Layer {
    std::uint32_t first = 0, capacity = 0;
  };
  std::vector<Layer> layers_;
  std::uint64_t bytes_ = 0;
};

/// One token of a forward pass.
struct TokenRow {
  std::uint32_t sequence = 0;  ///< index into the caches
  std::uint32_t token = 0, position = 0;
};

/// Sees the gate input [rows, hidden] and the scores of a layer with experts, which are counted from 0.
using GateObserver = std::function<void(std::uint32_t layer, const Matrix& input, const GateScores& scores)>;

/// What a model is loaded from: its files, open, and its routed experts.
struct ModelFiles {
  std::filesystem::path folder;  ///< or file; empty: there is none
  ModelConfig config;
  std::shared_ptr<const Checkpoint> checkpoint;
  std::unique_ptr<ExpertStore> store;

  /// The experts in host memory, as far as it holds them; the others stay in their files. Throws InputError for anything
  /// that is missing, misshapen or not supported.
  explicit ModelFiles(const std::filesystem::path& folder, const LoadOptions& options = {});
  /// The experts in a store of their own; the folder needs only the rest. Throws InputError also for a store that was
  /// made from another model.
  ModelFiles(const std::filesystem::path& folder, std::unique_ptr<DiskStore> store);
  /// From its parts, which belong together.
  ModelFiles(ModelConfig model, Checkpoint weights, std::unique_ptr<ExpertStore> experts)
      : config(std::move(model)),
        checkpoint(std::make_shared<const Checkpoint>(std::move(weights))),
        store(std::move(experts)) {}
};

/// A model: the store of routed experts, and what every token needs around them, on some device.
class Model {
 public:
  virtual ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const ExpertStore& store() const { return *store_; }
  [[nodiscard]] GateBank& gates() { return *gates_; }
  /// What it reads and writes, read when it is first asked for; null: nobody here knows, or cannot read its files.
  [[nodiscard]] const Tokenizer* tokenizer() const;
  /// What its files were refused for, once it was asked for.
  [[nodiscard]] const std::string& why_no_tokenizer() const { return why_no_tokenizer_; }
  /// The same where there has to be one. Throws InputError if there is none, or for damaged files.
  [[nodiscard]] const Tokenizer& need_tokenizer() const;
  /// The tokens that a text begins with.
  [[nodiscard]] std::vector<std::uint32_t> begin_tokens() const;
  /// The threads that share what the CPU computes of this model and its experts: one, unless `set_threads` said so.
  [[nodiscard]] WorkerPool& workers() { return workers_; }
  [[nodiscard]] const WorkerPool& workers() const { return workers_; }
  /// 0: one a processor. Not in the middle of a step.
  void set_threads(std::uint32_t threads, bool pinned = false) { workers_.set_threads(threads, pinned); }
  /// What its weights of codes are multiplied with, where the CPU computes them: floats, unless this said otherwise. Before a
  /// runner is made.
  virtual void set_activations(Activations activations) { activations_ = activations; }
  [[nodiscard]] Activations activations() const { return activations_; }
  /// Whether some of what it computes with is rounded: activations to 8 bits, where some of its own weights are codes, or keys
  /// and values to 16.
  [[nodiscard]] bool rounds() const {
    return (activations_ == Activations::int8 && codes_) || config_.cache_type != FloatType::f32;
  }
  /// Has the experts at these precisions too, before a runner is made. Throws InputError as ExpertStore::add does.
  virtual void add_precisions(PrecisionSet set);
  /// Whether the scores of its gates are the softmax of what their matrices give, and nothing else.
  [[nodiscard]] bool plain_gates() const {
    return config_.gate.gating == Gating::softmax && !separate_scores() && gate_biases_.size() == 0;
  }
  /// Of the weights that every token needs, as the checkpoint stores them.
  [[nodiscard]] std::uint64_t dense_bytes() const { return dense_bytes_; }
  /// What one of them takes, on average.
  [[nodiscard]] double dense_bits() const {
    return 8 * static_cast<double>(dense_bytes_) / static_cast<double>(dense_weights_);
  }

  /// Throws InputError if there is no memory for it.
  [[nodiscard]] virtual KvCache make_cache(const CacheRoom& room) const = 0;
  /// For so many tokens, in steps of at most `rows`; 0: of any number.
  [[nodiscard]] KvCache make_cache(std::uint32_t positions, std::uint32_t rows = 0) const {
    return make_cache(CacheRoom(config_, positions, rows));
  }

  /// Runs the rows through all layers, and returns the logits [logit_rows, vocabulary] of the last
  /// `logit_rows`. Rows of one sequence come in ascending position, whose earlier keys and values are in its
  /// cache. `gate_scores`, if given, sees each gate.
  virtual Matrix forward(Phase phase, const std::vector<TokenRow>& rows, std::vector<KvCache>& caches,
                         ExpertRunner& runner, std::uint32_t logit_rows, const GateObserver& gate_scores = {}) = 0;

  /// What computes this model's experts. Throws InputError if the device has no room for the slots.
  [[nodiscard]] virtual std::unique_ptr<ExpertDevice> make_device(const DeviceNeeds& needs,
                                                                  const RunnerOptions& options) = 0;

  /// "cpu", or a GPU's name.
  [[nodiscard]] virtual std::string device() const { return "cpu"; }
  /// The most bytes that a device with memory of its own was asked for, by use.
  [[nodiscard]] virtual std::vector<std::pair<std::string, std::uint64_t>> device_memory() const { return {}; }
  /// Beside weights, keys and values, experts, and activations for each row: what such a device takes or keeps free.
  [[nodiscard]] virtual std::uint64_t fixed_bytes() const { return 0; }
  /// How fast experts come to the device, in bytes a second; 0: not known, and taken to be as fast as host memory is copied.
  [[nodiscard]] virtual std::uint64_t link_bytes_per_s() const { return 0; }
  /// What its files have that was not used, a line each, for the user.
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }
  /// What makes it slower than it could be, for the user; empty: nothing.
  [[nodiscard]] virtual std::string warning() const { return ""; }

 protected:
  /// Takes over the store, and reads the gates.
  explicit Model(ModelFiles& files);
  /// A tensor of the weights that every token needs, which count as dense_bytes from now on.
  const Tensor& dense(const Checkpoint& checkpoint, const std::string& name, const std::vector<std::uint64_t>& shape);
  /// Counts weights that a device reads by itself, with the bytes that it needs for them.
  void count_dense(std::uint64_t bytes, std::uint64_t weights) {
    dense_bytes_ += bytes;
    dense_weights_ += weights;
  }
  void set_notes(std::vector<std::string> notes) { notes_ = std::move(notes); }
  /// [layers, experts] each: added to what gates compute, and to what experts are chosen by; empty where there are none.
  [[nodiscard]] const Matrix& choice_biases() const { return choice_biases_; }
  /// The scores of a layer with experts: `weight` [rows, experts] has what its gate's matrix gives, and gets weights; `select`
  /// gets what experts are chosen by, if that is something else.
  void apply_gate_rule(std::uint32_t moe_layer, Matrix& select, Matrix& weight) const;
  /// What comes behind the product with the head.
  void scale_logits(Matrix& logits) const;
  [[nodiscard]] GateScores scores(const Matrix& select, const Matrix& weight) const {
    return {separate_scores() ? select : weight, weight};
  }

 private:
  [[nodiscard]] bool separate_scores() const { return config_.gate.separate(choice_biases_.size() > 0); }
  void note_codes(DType type);
  Matrix gate_vectors(const Checkpoint& checkpoint, const std::string& name);

  std::filesystem::path folder_;
  ModelConfig config_;
  mutable std::once_flag tokenizer_asked_;
  mutable std::shared_ptr<const Tokenizer> tokenizer_;
  mutable std::string why_no_tokenizer_;  ///< what its files were refused for
  std::unique_ptr<ExpertStore> store_;
  std::unique_ptr<GateBank> gates_;
  Matrix gate_biases_, choice_biases_;
  std::vector<std::string> notes_;
  WorkerPool workers_;
  Activations activations_ = Activations::floats;
  bool codes_ = false;  ///< some of its weights are
  std::uint64_t dense_bytes_ = 0, dense_weights_ = 0;
};

/// The part of a model that the CUDA device does not compute yet; empty: it computes all of it.
std::string beyond_cuda(const ModelConfig& config, const std::vector<ExpertLayout>& layouts);

/// A runner on the model's own device, unless the options make another. Throws as the other make_runner does.
std::unique_ptr<ExpertRunner> make_runner(Model& model, const RunnerOptions& options);

}  // namespace ferry::engine
