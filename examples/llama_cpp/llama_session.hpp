/// @file
/// A model in llama.cpp, and a text that it goes on with: the likeliest token every time.
#pragma once
#include <llama.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ferry/model.hpp"
#include "gate_watcher.hpp"

namespace ferry::llama_cpp {

struct SessionOptions {
  std::string model;                                        ///< a GGUF file
  std::string prompt;                                       ///< with the model's tokenizer, or
  std::vector<std::uint32_t> tokens;                        ///< as its tokens
  std::uint32_t new_tokens = 64, chunk = 128, threads = 0;  ///< 0 threads: one a processor
  /// Asks for every token's output, so that the last layer computes its experts for all rows of a prompt.
  bool all_outputs = false;
  bool f32_cache = false;  ///< keys and values in F32, else in F16
};

/// One forward pass.
struct PassedStep {
  Phase phase = Phase::decode;
  std::uint32_t rows = 0;
  std::vector<std::uint32_t> outputs;  ///< the rows whose outputs were asked for, ascending
};

class Session {
 public:
  /// Maps the file; weights stay as and where they are. Throws InputError for what llama.cpp does not take.
  Session(const SessionOptions& options, GateWatcher* watcher);

  /// The prompt in chunks, then token by token. `on_text`: the bytes that each new token adds, or of a model without a
  /// tokenizer its number. It and `after` return false to end the text.
  void generate(const std::function<void(const PassedStep&)>& before,
                const std::function<bool(const PassedStep&)>& after,
                const std::function<bool(const std::string&)>& on_text);
  /// Runs one token that belongs to no text, to show the graph.
  void warm_up();

  /// The model's name in the file.
  [[nodiscard]] std::string name() const;
  /// A number of the architecture's metadata, such as "expert_group_count". Throws InputError if the file has none.
  [[nodiscard]] std::uint32_t number(const std::string& key) const;
  [[nodiscard]] std::uint32_t prompt_tokens() const { return static_cast<std::uint32_t>(prompt_.size()); }

 private:
  struct Free {
    void operator()(llama_model* m) const { llama_model_free(m); }
    void operator()(llama_context* c) const { llama_free(c); }
  };

  void load();
  void tokenize();
  [[nodiscard]] std::string said(const std::string& key) const;
  [[nodiscard]] std::string text_of(llama_token token) const;
  [[nodiscard]] PassedStep step_of(Phase phase, std::size_t rows, bool last) const;
  void forward(std::span<const llama_token> tokens, const PassedStep& step);
  [[nodiscard]] llama_token likeliest() const;

  SessionOptions options_;
  GateWatcher* watcher_;
  std::unique_ptr<llama_model, Free> model_;
  std::unique_ptr<llama_context, Free> context_;
  const llama_vocab* vocabulary_ = nullptr;
  std::vector<llama_token> prompt_;
  llama_pos position_ = 0;
};

}  // namespace ferry::llama_cpp
