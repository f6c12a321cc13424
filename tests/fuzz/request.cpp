// Bodies of requests to the server. The first letter says to which address.
#include "cpu/cpu_model.hpp"
#include "fuzz/check_simulated.hpp"
#include "fuzz/fuzz.hpp"
#include "serve/openai.hpp"
#include "support/bundled_files.hpp"

namespace ferry::fuzz {

using namespace engine;

void read(const std::string& input) {
  static CpuModel model(find_model("tiny-mixtral"));
  static const ChatTemplate chat(find_model("tiny-mixtral"), model.need_tokenizer());
  static const ApiModel api{"tiny", model, model.need_tokenizer(), chat, Sampling{}, 256};
  if (input.empty()) return;
  try {
    const ApiRequest r = read_request(input.substr(1), input[0] == 'c', api);
    if (r.choices.empty() || r.choices.size() != r.prompts.size()) throw Broken("a request without choices");
    for (const DecodeRequest& d : r.choices) {
      if (d.tokens.empty() || d.tokens.size() + d.max_new_tokens > api.context)
        throw Broken("a request that is too long");
    }
  } catch (const ApiError& e) {
    const Json told = parse_json(e.body(), "error").at("error");
    if (e.status < 400 || told.at("message").get<std::string>().empty()) throw Broken("an error without a message");
  }
}

std::string mutate(const std::string& input, std::size_t most, std::uint64_t seed) {
  if (input.empty() || seed % 8 == 0) return mutate_bytes(input, most);
  return input[0] + mutate_json(input.substr(1), most - 1, seed);
}

std::vector<std::string> seeds() {
  return {
      R"(c{"model":"tiny","messages":[{"role":"system","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]}],"max_tokens":4,"temperature":0.5,"top_p":0.9,"stream":true,"stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":3,"seed":-1,"stop":["x"],"n":2,"response_format":{"type":"text"},"tools":[],"chat_template_kwargs":{"a":1}})",
      R"(p{"prompt":"Once","max_tokens":4,"logprobs":2,"echo":false,"top_k":5,"min_p":0.1,"presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":1.1,"ferry":true,"best_of":1,"suffix":null,"user":"me"})",
      R"(p{"prompt":[[1,2],[3]],"n":3,"logit_bias":{}})", R"(p{"prompt":["a","b"],"stop":"c"})"};
}

}  // namespace ferry::fuzz
