#include "session_flags.hpp"

#include <csignal>
#include <cstdlib>

#include "support/errors.hpp"

namespace ferry::llama_cpp {

std::atomic<bool> stop = false;

void await_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

void add_number(CLI::App& app, const std::string& name, std::uint32_t& value, std::uint32_t least, std::uint32_t most,
                const std::string& what) {
  app.add_option(name, value, what)->check(CLI::Range(least, most))->capture_default_str()->type_name("N");
}

void add_session_flags(CLI::App& app, SessionOptions& s) {
  app.add_option("--model", s.model, "a GGUF file of an MoE model")->required()->type_name("FILE");
  CLI::Option* prompt = app.add_option("--prompt", s.prompt, "the text to go on with");
  app.add_option("--tokens", s.tokens, "the same as the model's tokens: 1,2,3")->delimiter(',')->excludes(prompt);
  add_number(app, "--new-tokens", s.new_tokens, 1, 1 << 20, "how many to generate");
  add_number(app, "--chunk", s.chunk, 1, 65536, "tokens of a prompt in one step");
  add_number(app, "--threads", s.threads, 0, 1024, "that compute; 0: one a processor");
  app.add_flag("--f32-cache", s.f32_cache, "keys and values in F32, as Ferry's engine has them; else in F16");
}

void parse(CLI::App& app, int argc, char** argv, const SessionOptions& session) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    std::exit(app.exit(e));
  } catch (const CLI::ParseError& e) {
    throw engine::InputError(e.what());
  }
  if (session.prompt.empty() && session.tokens.empty()) throw engine::InputError("expected --prompt or --tokens");
}

}  // namespace ferry::llama_cpp
