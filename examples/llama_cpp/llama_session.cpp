#include "llama_session.hpp"

#include <fmt/format.h>
#include <gguf.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <thread>

#include "support/errors.hpp"

namespace ferry::llama_cpp {

using engine::InputError;

namespace {

constexpr const char* tokenizer_key = "tokenizer.ggml.model";

/// The first error that llama.cpp logged, which is nearest to the cause; its functions return none.
std::string first_error;

void keep_error(ggml_log_level level, const char* text, void* /*data*/) {
  if (level != GGML_LOG_LEVEL_ERROR || !first_error.empty()) return;
  first_error = text;
  while (first_error.ends_with('\n')) first_error.pop_back();
}

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  throw InputError(file + ": llama.cpp " + what + (first_error.empty() ? "" : ": " + first_error));
}

/// Files of tiny models have no tokenizer and do not say so, and llama.cpp refuses them.
bool has_tokenizer(const std::string& file) {
  gguf_context* said = gguf_init_from_file(file.c_str(), {true, nullptr});
  if (said == nullptr) refuse(file, "does not read it");
  const bool has = gguf_find_key(said, tokenizer_key) >= 0;
  gguf_free(said);
  return has;
}

}  // namespace

Session::Session(const SessionOptions& options, GateWatcher* watcher) : options_(options), watcher_(watcher) {
  llama_log_set(keep_error, nullptr);
  llama_backend_init();
  load();
  tokenize();
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(prompt_.size()) + options.new_tokens;
  params.n_batch = params.n_ubatch = options.chunk;
  const std::uint32_t threads =
      options.threads == 0 ? std::max(1U, std::thread::hardware_concurrency()) : options.threads;
  params.n_threads = params.n_threads_batch = static_cast<std::int32_t>(threads);
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  if (options.f32_cache) params.type_k = params.type_v = GGML_TYPE_F32;
  if (watcher != nullptr) {
    params.cb_eval = GateWatcher::callback;
    params.cb_eval_user_data = watcher;
  }
  context_.reset(llama_init_from_model(model_.get(), params));
  if (!context_) refuse(options.model, "makes no context for it");
}

void Session::load() {
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  params.load_mode = LLAMA_LOAD_MODE_MMAP;
  params.use_extra_bufts = false;  // they would copy the weights into memory of their own
  llama_model_kv_override none[2] = {};
  if (!has_tokenizer(options_.model)) {
    none[0].tag = LLAMA_KV_OVERRIDE_TYPE_STR;
    std::strcpy(none[0].key, tokenizer_key);
    std::strcpy(none[0].val_str, "none");
    params.kv_overrides = none;
  }
  model_.reset(llama_model_load_from_file(options_.model.c_str(), params));
  if (!model_) refuse(options_.model, "does not load it");
  vocabulary_ = llama_model_get_vocab(model_.get());
}

void Session::tokenize() {
  const std::int32_t all = llama_vocab_n_tokens(vocabulary_);
  if (!options_.tokens.empty()) {
    for (const std::uint32_t t : options_.tokens) {
      if (t >= static_cast<std::uint32_t>(all)) {
        throw InputError(fmt::format("--tokens: {} is no token of this model, expected less than {}", t, all));
      }
      prompt_.push_back(static_cast<llama_token>(t));
    }
    return;
  }
  if (llama_vocab_type(vocabulary_) == LLAMA_VOCAB_TYPE_NONE) {
    throw InputError(options_.model + ": has no tokenizer, expected the prompt as --tokens");
  }
  const auto size = static_cast<std::int32_t>(options_.prompt.size());
  prompt_.resize(options_.prompt.size() + 8);
  const std::int32_t count = llama_tokenize(vocabulary_, options_.prompt.data(), size, prompt_.data(),
                                            static_cast<std::int32_t>(prompt_.size()), true, true);
  if (count <= 0) throw InputError("--prompt: has no tokens");
  prompt_.resize(static_cast<std::size_t>(count));
}

std::string Session::text_of(llama_token token) const {
  if (llama_vocab_type(vocabulary_) == LLAMA_VOCAB_TYPE_NONE) return fmt::format("{} ", token);
  std::string text(256, '\0');
  const std::int32_t size =
      llama_token_to_piece(vocabulary_, token, text.data(), static_cast<std::int32_t>(text.size()), 0, false);
  text.resize(static_cast<std::size_t>(std::max(size, 0)));
  return text;
}

std::string Session::said(const std::string& key) const {
  char text[256] = {};
  return llama_model_meta_val_str(model_.get(), key.c_str(), text, sizeof(text)) > 0 ? text : "";
}

std::string Session::name() const {
  const std::string name = said("general.name");
  return name.empty() ? options_.model : name;
}

std::uint32_t Session::number(const std::string& key) const {
  const std::string full = said("general.architecture") + "." + key, text = said(full);
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || text.empty() || end != text.data() + text.size()) {
    throw InputError(fmt::format("{}: \"{}\" is \"{}\", expected a whole number", options_.model, full, text));
  }
  return value;
}

PassedStep Session::step_of(Phase phase, std::size_t rows, bool last) const {
  PassedStep step{phase, static_cast<std::uint32_t>(rows), {}};
  for (std::uint32_t row = 0; row < step.rows; ++row) {
    if (options_.all_outputs || (last && row + 1 == step.rows)) step.outputs.push_back(row);
  }
  return step;
}

void Session::forward(std::span<const llama_token> tokens, const PassedStep& step) {
  llama_batch batch = llama_batch_init(static_cast<std::int32_t>(tokens.size()), 0, 1);
  for (const llama_token token : tokens) {
    const auto row = static_cast<std::size_t>(batch.n_tokens++);
    batch.token[row] = token;
    batch.pos[row] = position_ + static_cast<llama_pos>(row);
    batch.n_seq_id[row] = 1;
    batch.seq_id[row][0] = 0;
    batch.logits[row] = 0;
  }
  for (const std::uint32_t row : step.outputs) batch.logits[row] = 1;
  const std::int32_t failed = llama_decode(context_.get(), batch);
  llama_batch_free(batch);
  if (watcher_ != nullptr) watcher_->check();
  if (failed != 0) refuse(options_.model, fmt::format("does not compute it, llama_decode gives {}", failed));
  if (watcher_ != nullptr) watcher_->end_step();
  position_ += static_cast<llama_pos>(tokens.size());
}

llama_token Session::likeliest() const {
  const float* logits = llama_get_logits_ith(context_.get(), -1);
  return static_cast<llama_token>(std::max_element(logits, logits + llama_vocab_n_tokens(vocabulary_)) - logits);
}

void Session::warm_up() {
  forward({prompt_.data(), 1}, step_of(Phase::decode, 1, true));
  llama_memory_clear(llama_get_memory(context_.get()), true);
  position_ = 0;
}

void Session::generate(const std::function<void(const PassedStep&)>& before,
                       const std::function<bool(const PassedStep&)>& after,
                       const std::function<bool(const std::string&)>& on_text) {
  const auto pass = [&](std::span<const llama_token> tokens, const PassedStep& step) {
    if (before) before(step);
    forward(tokens, step);
    return after(step);
  };
  for (std::size_t at = 0; at < prompt_.size(); at += options_.chunk) {
    const std::size_t size = std::min<std::size_t>(options_.chunk, prompt_.size() - at);
    if (!pass({prompt_.data() + at, size}, step_of(Phase::prefill, size, at + size == prompt_.size()))) return;
  }
  for (std::uint32_t n = 0; n < options_.new_tokens; ++n) {
    const llama_token token = likeliest();
    if (llama_vocab_is_eog(vocabulary_, token) || !on_text(text_of(token)) || n + 1 == options_.new_tokens) return;
    if (!pass({&token, 1}, step_of(Phase::decode, 1, true))) return;
  }
}

}  // namespace ferry::llama_cpp
