// What llama.cpp computes for given tokens: compare.py holds it against Ferry's logits of the same weights.
//   logits MODEL.gguf THREADS TOKEN...     writes the logits after each token, [tokens, vocabulary] floats
#include <llama.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fputs("logits: expected MODEL.gguf THREADS TOKEN...\n", stderr);
    return 2;
  }
  std::vector<llama_token> tokens;
  for (int i = 3; i < argc; ++i) tokens.push_back(std::atoi(argv[i]));

  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  llama_model_params model_params = llama_model_default_params();
  llama_model* model = llama_model_load_from_file(argv[1], model_params);
  if (model == nullptr) {  // files of tiny models have no tokenizer, and do not say so
    llama_model_kv_override overrides[2] = {};
    overrides[0].tag = LLAMA_KV_OVERRIDE_TYPE_STR;
    std::strcpy(overrides[0].key, "tokenizer.ggml.model");
    std::strcpy(overrides[0].val_str, "none");
    model_params.kv_overrides = overrides;
    model = llama_model_load_from_file(argv[1], model_params);
  }
  if (model == nullptr) {
    std::fprintf(stderr, "logits: %s: llama.cpp does not load it\n", argv[1]);
    return 1;
  }
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(tokens.size());
  params.n_threads = params.n_threads_batch = std::atoi(argv[2]);
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = params.type_v = GGML_TYPE_F32;  // as Ferry has them
  llama_context* context = llama_init_from_model(model, params);
  const auto vocabulary = static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
  for (llama_token& token : tokens) {  // one by one, so that there are logits after each
    if (context == nullptr || llama_decode(context, llama_batch_get_one(&token, 1)) != 0) {
      std::fputs("logits: llama.cpp does not compute it\n", stderr);
      return 1;
    }
    if (std::fwrite(llama_get_logits_ith(context, -1), sizeof(float), vocabulary, stdout) != vocabulary) return 1;
  }
  llama_free(context);
  llama_model_free(model);
  return std::fflush(stdout) == 0 ? 0 : 1;
}
