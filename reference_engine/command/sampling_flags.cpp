#include "command/sampling_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "checkpoint/generation_config.hpp"
#include "command/command.hpp"
#include "support/errors.hpp"

namespace ferry::engine {
namespace {

struct Resolved {
  Sampling sampling;
  Json from = Json::object();
};

Resolved resolve(const SamplingFlags& flags, const std::filesystem::path& model) {
  const GenerationConfig own = read_generation_config(model);
  Resolved r;
  const auto set = [&](const char* name, const auto& flag, const auto& file, auto& value) {
    if (file) value = *file;
    if (flag) value = *flag;
    r.from[name] = flag ? "flag" : file ? own.file : "default";
  };
  const std::optional<double> none;
  Sampling& s = r.sampling;
  set("temperature", flags.temperature, own.temperature, s.temperature);
  set("top_k", flags.top_k, own.top_k, s.top_k);
  set("top_p", flags.top_p, own.top_p, s.top_p);
  set("min_p", flags.min_p, own.min_p, s.min_p);
  set("repeat_penalty", flags.repeat_penalty, own.repeat_penalty, s.repeat_penalty);
  set("presence_penalty", flags.presence_penalty, none, s.presence_penalty);
  set("frequency_penalty", flags.frequency_penalty, none, s.frequency_penalty);
  s.seed = flags.seed;
  try {
    s.check();
  } catch (const InputError& e) {  // its message names an option
    const std::string what = e.what();
    std::string name = what.substr(2, what.find(':') - 2);
    std::replace(name.begin(), name.end(), '-', '_');
    if (r.from.value(name, "") == "flag" || own.file.empty()) throw;
    throw InputError(fmt::format("{}: {}: give the option", own.file, what));
  }
  return r;
}

}  // namespace

void SamplingFlags::add(CLI::App* c) {
  const auto number = [&](const char* name, std::optional<double>& value, const char* help) {
    add_named(c, name, value, "X", help);
  };
  number("--temperature", temperature,
         "0 takes the likeliest token (default, as for the others: the model's generation_config.json; else 0)");
  c->add_option("--top-k", top_k, "draw from so many likeliest tokens; 0: from all")
      ->type_name("N")
      ->check(in_range(0U, 1U << 24U));
  number("--top-p", top_p, "draw from the fewest likeliest tokens that have this probability together");
  number("--min-p", min_p, "draw from tokens at least this share as likely as the likeliest");
  number("--repeat-penalty", repeat_penalty, "divides the logits of tokens that the text has");
  number("--presence-penalty", presence_penalty, "taken from the logits of tokens that were generated");
  number("--frequency-penalty", frequency_penalty, "the same for each time that they were");
  c->add_option("--seed", seed, "of the sampler")->type_name("N")->check(whole_number)->capture_default_str();
  add_named(c, "--stop", stops, "TEXT", "text that ends what is generated, and is not shown; may be repeated")
      ->allow_extra_args(false);
}

Sampling SamplingFlags::of(const std::filesystem::path& model) const {
  return resolve(*this, model).sampling;
}

Json SamplingFlags::report(const std::filesystem::path& model) const {
  const Resolved r = resolve(*this, model);
  const Sampling& s = r.sampling;
  return {{"temperature", s.temperature},
          {"top_k", s.top_k},
          {"top_p", s.top_p},
          {"min_p", s.min_p},
          {"repeat_penalty", s.repeat_penalty},
          {"presence_penalty", s.presence_penalty},
          {"frequency_penalty", s.frequency_penalty},
          {"seed", s.seed},
          {"stop", stops},
          {"from", r.from}};
}

}  // namespace ferry::engine
