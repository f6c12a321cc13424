// ferry chat: a conversation in the terminal.
#include <editline/readline.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>

#include "command/command.hpp"
#include "command/model_flags.hpp"
#include "command/sampling_flags.hpp"
#include "inference/batch_decoder.hpp"
#include "inference/model.hpp"
#include "stacks/stack_options.hpp"
#include "support/bundled_files.hpp"
#include "support/clock.hpp"
#include "support/errors.hpp"
#include "support/output_file.hpp"
#include "support/print.hpp"
#include "support/terminal.hpp"
#include "support/text_file.hpp"
#include "text/chat_template.hpp"

namespace ferry::engine {
namespace {

struct ChatArguments {
  StackFlags flags;
  ModelFlags model;
  SamplingFlags sampling;
  std::string stack = "ferry", system, system_file;
  std::uint32_t max_new_tokens = 1024, context = 4096, prefill_chunk = 128;
};

constexpr const char* commands_help =
    "/reset       begin a new conversation\n"
    "/save FILE   write the conversation to a file, as JSON\n"
    "/stack NAME  go on under another policy stack\n"
    "/stats       what the stack has done so far\n"
    "/exit        end; so does Ctrl-D. Ctrl-C stops an answer\n";

/// Reads the user's lines, with editing and history on a terminal.
class Lines {
 public:
  Lines() : terminal_(::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1) {
    if (!terminal_) return;
    // In the C locale, which programs start with, the editor drops everything but ASCII.
    std::setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
  }
  /// False at the end of input or after a signal.
  bool next(std::string& line) {
    if (!terminal_) {
      if (!std::getline(std::cin, line)) return false;
      if (line.ends_with('\r')) line.pop_back();  // files from Windows
      return true;
    }
    char* typed = ::readline("> ");
    if (typed == nullptr) return false;
    line = typed;
    std::free(typed);  // NOLINT: the library allocated it by malloc
    if (!line.empty()) ::add_history(line.c_str());
    return true;
  }
  [[nodiscard]] bool terminal() const { return terminal_; }

 private:
  bool terminal_;
};

class Chat {
 public:
  explicit Chat(const ChatArguments& a) : a_(a), path_(find_model(a.model.model)), sampling_(a.sampling.of(path_)) {
    RunnerOptions r;
    a.flags.set(r, a.stack);
    model_ = a.model.open({r}, {{a.flags.budget}, ""});
    template_ = std::make_unique<ChatTemplate>(path_, model_->need_tokenizer());
    context_ = std::min(a.context, model_->config().context);
    set_stack(a.stack);
    reset();
  }

  void set_stack(const std::string& name) {
    a_.flags.check({name});
    RunnerOptions r;
    a_.flags.set(r, name);
    r.max_rows = a_.prefill_chunk;
    const ModelShape shape = model_shape(model_->config(), model_->store(), r.max_rows);
    r.budget_bytes = parse_budget(a_.flags.budget, shape.all_bytes());
    auto runner = make_runner(*model_, r);
    decoder_.reset();  // before its runner, which it uses
    runner_ = std::move(runner);
    stack_ = a_.flags.named(name).label;
    decoder_ =
        std::make_unique<BatchDecoder>(*model_, *runner_, BatchDecoder::Options{1, a_.prefill_chunk, false},
                                       [](std::uint32_t, std::uint32_t, const std::string& text) { print(text); });
    begun_ = false;
  }

  void reset() {
    messages_ = nlohmann::ordered_json::array();
    if (!system().empty()) messages_.push_back({{"role", "system"}, {"content", system()}});
  }

  void save(const std::string& file) const {
    if (file == "-") throw InputError("/save -: expected a file, answers go to standard output");
    OutputFile out(file, {"a conversation", "{", "\"messages\""});
    const nlohmann::ordered_json all = {{"model", model_name(a_.model.model)}, {"messages", messages_}};
    out.commit(json_text(all, 2) + "\n");
  }

  /// Answers what the user said; Ctrl-C ends the answer, which stays as far as it came.
  void answer(const std::string& said) {
    messages_.push_back({{"role", "user"}, {"content", said}});
    const Nanoseconds begin = now_ns();
    const Counters before = runner_->statistics().counters;
    const Nanoseconds stalled = runner_->times[0].stall + runner_->times[1].stall;
    Nanoseconds first = 0;
    try {
      start(template_->render(messages_));
      while (!stop && decoder_->prefilling()) decoder_->step();
      first = now_ns();
      while (!stop && decoder_->decoding()) {
        decoder_->step();
        runner_->uses.clear();  // kept for bounds, which nobody asks for here
      }
    } catch (...) {  // the message has no answer
      messages_.erase(messages_.size() - 1);
      throw;
    }
    const Decoded& made = decoder_->decoded(0);
    messages_.push_back({{"role", "assistant"}, {"content", made.text}});
    print(made.text.ends_with('\n') ? "" : "\n");
    check_printed();
    show_status(made, begin, first, before, stalled);
    if (stop && stopped_by == SIGINT) await_interrupts();
  }

  [[nodiscard]] std::string statistics() const {
    const RunnerStatistics s = runner_->statistics();
    std::string text = fmt::format("{}: {} bytes of experts on the device\n", stack_, s.arena_bytes);
    for (const Phase phase : {Phase::prefill, Phase::decode}) {
      const Outcomes& o = s.counters.of(phase);
      text +=
          fmt::format("  {}: {} experts asked for, {} hits, {} late hits, {} misses, {} on the host, {} bytes copied\n",
                      phase == Phase::prefill ? "prefill" : "decode", o.requests, o.hits, o.late_hits, o.misses,
                      o.host_computed, o.bytes);
    }
    return text;
  }
  [[nodiscard]] std::string greeting() const {
    return fmt::format("{} under {}; template: {}; /help lists commands\n", model_name(a_.model.model), stack_,
                       template_->source());
  }

 private:
  [[nodiscard]] std::string system() const {
    return a_.system_file.empty() ? a_.system : read_text("--system-file", a_.system_file);
  }

  void start(const std::string& text) {
    DecodeRequest request;
    request.tokens = model_->need_tokenizer().encode(text, !template_->own());
    if (request.tokens.size() >= context_) {
      throw InputError(fmt::format(
          "the conversation has {} tokens, the context {}: /reset begins a new one, --context asks for more",
          request.tokens.size(), context_));
    }
    request.max_new_tokens = std::min(a_.max_new_tokens, context_ - static_cast<std::uint32_t>(request.tokens.size()));
    request.sampling = sampling_;
    request.sampling.seed += messages_.size();
    request.stops = template_->stops();
    request.stops.insert(request.stops.end(), a_.sampling.stops.begin(), a_.sampling.stops.end());
    request.positions = context_;
    kept_ = 0;
    if (begun_) {
      begun_ = false;  // in case add_behind throws
      kept_ = decoder_->add_behind(0, request);
    } else {
      decoder_->add(request);
    }
    begun_ = true;
    prompt_ = static_cast<std::uint32_t>(request.tokens.size());
  }

  void show_status(const Decoded& made, Nanoseconds begin, Nanoseconds first, const Counters& before,
                   Nanoseconds stalled) const {
    const RunnerStatistics s = runner_->statistics();
    const auto since = [](Nanoseconds from) { return static_cast<double>(now_ns() - from) * 1e-9; };
    const std::uint64_t requests = s.counters.of(Phase::decode).requests - before.of(Phase::decode).requests;
    const std::uint64_t hits = s.counters.of(Phase::decode).hits - before.of(Phase::decode).hits;
    const double decode_s = since(first);
    const auto more = static_cast<double>(made.tokens.empty() ? 0 : made.tokens.size() - 1);
    std::cerr << fmt::format(
        "[{} tokens of prompt, {} of them kept, {:.2f} s; {} tokens, {:.1f} a second; hits {:.1f}%; stalled {:.2f} s; "
        "{:.1f} MiB of "
        "experts, {:.1f} of keys and values{}]\n",
        prompt_, kept_, static_cast<double>(first - begin) * 1e-9, made.tokens.size(),
        decode_s > 0 ? more / decode_s : 0,
        requests == 0 ? 0 : 100 * static_cast<double>(hits) / static_cast<double>(requests),
        static_cast<double>(runner_->times[0].stall + runner_->times[1].stall - stalled) * 1e-9,
        static_cast<double>(s.arena_bytes) / 1048576, static_cast<double>(decoder_->cache_bytes()) / 1048576,
        stop                                                                  ? "; stopped"
        : made.ended == Ended::max_new_tokens || made.ended == Ended::context ? "; cut off"
                                                                              : "");
  }

  const ChatArguments& a_;
  std::filesystem::path path_;
  Sampling sampling_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ChatTemplate> template_;
  std::unique_ptr<ExpertRunner> runner_;
  std::unique_ptr<BatchDecoder> decoder_;
  std::string stack_;
  nlohmann::ordered_json messages_;
  std::uint32_t context_ = 0, kept_ = 0, prompt_ = 0;
  bool begun_ = false;  ///< the decoder holds a text that can be continued
};

/// Runs a line that begins with a slash. False: the conversation ends.
bool command(Chat& chat, const std::string& line) {
  const std::size_t blank = line.find(' ');
  const std::string name = line.substr(0, blank);
  const std::size_t begin = line.find_first_not_of(' ', std::min(blank, line.size())),
                    last = line.find_last_not_of(' ');
  const std::string rest = begin == std::string::npos ? "" : line.substr(begin, last + 1 - begin);
  if (name == "/exit" || name == "/quit") return false;
  if (name == "/reset") {
    chat.reset();
    std::cerr << "a new conversation\n";
  } else if (name == "/save" && !rest.empty()) {
    chat.save(rest);
    std::cerr << fmt::format("written to {}\n", rest);
  } else if (name == "/stack" && !rest.empty()) {
    chat.set_stack(rest);
    std::cerr << chat.greeting();
  } else if (name == "/stats") {
    std::cerr << chat.statistics();
  } else {
    std::cerr << commands_help;
  }
  return true;
}

int chat(const ChatArguments& a) {
  a.flags.check({a.stack});  // before the model is read
  Chat chat(a);
  Lines lines;
  if (lines.terminal()) std::cerr << chat.greeting();
  bool asked_to_end = false;
  for (std::string line;;) {
    if (stop && stopped_by != SIGINT) return 128 + stopped_by;
    if (!lines.next(line)) {
      if (!stop) break;
      if (!lines.terminal() || asked_to_end || stopped_by != SIGINT) return 128 + stopped_by;
      await_interrupts();
      asked_to_end = true;
      std::cerr << "\n(Ctrl-C once more, Ctrl-D or /exit ends)\n";
      continue;
    }
    asked_to_end = false;
    if (line.empty()) continue;
    try {
      if (line[0] != '/') {
        chat.answer(line);
      } else if (!command(chat, line)) {
        break;
      }
    } catch (const InputError& e) {  // the conversation goes on, unless output has failed
      if (std::ferror(stdout) != 0) throw;
      std::cerr << "ferry: " << e.what() << '\n';
    } catch (const ConfigError& e) {
      std::cerr << "ferry: " << e.what() << '\n';
    }
  }
  if (lines.terminal()) std::cerr << '\n';
  if (std::ferror(stdin) != 0) throw InputError("standard input cannot be read, expected a line for each turn");
  return 0;
}

}  // namespace

void add_chat_command(CLI::App& app, Action& chosen) {
  const auto a = std::make_shared<ChatArguments>();
  CLI::App* c = app.add_subcommand("chat", "talk to a model; each line is a turn");
  a->model.add_model(c);
  a->model.add_experts(c);
  a->model.add_device(c);
  a->flags.add_budget(c);
  a->flags.add_parameters(c);
  a->flags.add_defaults(c);
  add_stack(c, a->stack);
  a->sampling.add(c);
  CLI::Option* system =
      c->add_option("--system", a->system, "what the model is told before the conversation")->type_name("TEXT");
  add_named(c, "--system-file", a->system_file, "FILE", "the same from a file")->excludes(system);
  const auto count = [&](const char* name, std::uint32_t& value, const char* help) {
    add_count(c, name, value, 1U, 1U << 28U, help);
  };
  count("--max-new-tokens", a->max_new_tokens, "tokens of an answer at most");
  count("--context", a->context, "tokens of a conversation at most, for which keys and values have room");
  count("--prefill-chunk", a->prefill_chunk, "tokens of a prompt in one step");
  c->footer(std::string("In a conversation:\n") + commands_help + "\n" + stacks_help());
  c->callback([a, &chosen] {
    chosen = [a] {
      a->flags.use_model(model_name(a->model.model));
      return chat(*a);
    };
  });
}

}  // namespace ferry::engine
