// ferry serve: a model behind HTTP.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <memory>
#include <thread>

#include "command/command.hpp"
#include "command/model_flags.hpp"
#include "command/sampling_flags.hpp"
#include "inference/model.hpp"
#include "serve/server.hpp"
#include "stacks/stack_options.hpp"
#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "support/print.hpp"
#include "support/text_file.hpp"

namespace ferry::engine {
namespace {

struct ServeArguments {
  StackFlags flags;
  ModelFlags model;
  SamplingFlags sampling;
  ServerOptions server;
  std::string stack = "ferry", name, api_key_file;
  DecodeLoop::Options loop;
  std::uint32_t context = 8192;
  double grace = 30;
  bool seed_given = false;
};

std::string read_key(const ServeArguments& a) {
  std::string key = a.server.api_key, from = "--api-key";
  if (!a.api_key_file.empty()) {
    from = "--api-key-file " + a.api_key_file;
    key = read_text("--api-key-file", a.api_key_file);
    while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
    if (key.empty()) throw InputError(from + ": is empty");
  }
  if (std::any_of(key.begin(), key.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; })) {
    throw InputError(from + ": expected one line, which a header can carry");
  }
  return key;
}

int serve(const ServeArguments& a) {
  a.flags.check({a.stack});  // before the model is read
  ServerOptions o = a.server;
  o.api_key = read_key(a);
  o.stack = a.flags.named(a.stack).label;
  RunnerOptions r;
  a.flags.set(r, a.stack);
  const std::filesystem::path path = find_model(a.model.model);
  const Sampling sampling = a.sampling.of(path);
  const std::unique_ptr<Model> model = a.model.open({r}, {{a.flags.budget}, ""});
  const Tokenizer& tokenizer = model->need_tokenizer();
  const ChatTemplate chat(path, tokenizer);
  r.max_rows = std::max(a.loop.prefill_chunk, a.loop.places);
  r.budget_bytes = parse_budget(a.flags.budget, model_shape(model->config(), model->store(), r.max_rows).all_bytes());
  DecodeLoop loop(
      *model, [&model, &r] { return make_runner(*model, r); }, a.loop);
  ApiModel api{a.name.empty() ? model_name(a.model.model) : a.name, *model, tokenizer, chat, sampling,
               std::min(a.context, model->config().context)};
  api.draws_seeds = !a.seed_given;
  api.folder = std::filesystem::is_directory(path) ? path.string() : path.parent_path().string();
  Server server(loop, api, o);
  std::cerr << fmt::format("{} under {}: http://{}:{} (OpenAI's interface at /v1; Ctrl-C ends)\n", api.name, o.stack,
                           o.host.find(':') == std::string::npos ? o.host : "[" + o.host + "]", server.port());
  // After a signal, the server finishes the requests that it has, unless that takes too long.
  std::jthread watch([&] {
    while (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    server.refuse_requests();
    loop.close();
    const auto begin = std::chrono::steady_clock::now();
    while ((!loop.is_idle() || server.has_requests()) &&
           std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(a.grace)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    server.stop();
  });
  try {
    server.run();
  } catch (...) {
    stop = true;
    throw;
  }
  stop = true;
  watch.join();
  const LoopStatistics s = loop.statistics();
  std::cerr << fmt::format("served {} requests, {} tokens of prompts and {} generated\n", s.whole.count, s.tokens[0],
                           s.tokens[1]);
  return 0;
}

}  // namespace

void add_serve_command(CLI::App& app, Action& chosen) {
  const auto a = std::make_shared<ServeArguments>();
  CLI::App* c = app.add_subcommand("serve", "answer OpenAI's HTTP interface, and a page to talk to the model");
  a->model.add_model(c);
  a->model.add_experts(c);
  a->model.add_device(c);
  a->flags.add_budget(c);
  a->flags.add_parameters(c);
  a->flags.add_defaults(c);
  add_stack(c, a->stack);
  a->sampling.add(c);
  CLI::Option* seed = c->get_option("--seed");
  seed->description("of the sampler, for requests that give none (default: drawn anew for each)");
  seed->default_str("");
  const auto count = [&](const char* name, auto& value, const char* help, auto least, auto most) {
    add_count(c, name, value, least, most, help);
  };
  c->add_option("--host", a->server.host, "address to listen at; 0.0.0.0: all of this machine's")
      ->check(not_empty)
      ->capture_default_str();
  count("--port", a->server.port, "0: any that is free", std::uint16_t{0}, std::uint16_t{65535});
  CLI::Option* key = add_named(c, "--api-key", a->server.api_key, "KEY", "clients have to give it");
  add_named(c, "--api-key-file", a->api_key_file, "FILE", "the same from a file, which other users do not see")
      ->excludes(key);
  c->add_option("--name", a->name, "what clients call the model (default: its folder's name)")->check(not_empty);
  count("--batch", a->loop.places, "texts decoded together", 1U, 256U);
  count("--prefill-chunk", a->loop.prefill_chunk, "tokens of a prompt in one step", 1U, 65536U);
  count("--queue", a->loop.most_waiting, "requests that wait at most; more are told to come back", 1U, 1U << 20U);
  count("--context", a->context, "tokens of a prompt and its answer at most", 1U, 1U << 28U);
  count("--max-body", a->server.limits.most_bytes, "bytes of a request at most", std::uint64_t{1024},
        std::uint64_t{1} << 32U);
  count("--clients", a->server.limits.clients, "connections at a time; as many wait, more are told to come back", 1U,
        4096U);
  c->add_option("--timeout", a->server.most_seconds, "seconds that a request may take")
      ->type_name("S")
      ->check(CLI::Range(0.1, 1e6) & not_nan)
      ->capture_default_str();
  c->add_option("--grace", a->grace, "seconds to finish what is under way, once a signal came")
      ->type_name("S")
      ->check(CLI::Range(0.0, 1e6) & not_nan)
      ->capture_default_str();
  c->footer(stacks_help());
  c->callback([a, seed, &chosen] {
    a->seed_given = seed->count() > 0;
    chosen = [a] {
      a->flags.use_model(model_name(a->model.model));
      return serve(*a);
    };
  });
}

}  // namespace ferry::engine
