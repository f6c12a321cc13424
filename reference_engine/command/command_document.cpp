// ferry document: the man page and shell completions, made of the options themselves.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "command/command.hpp"
#include "ferry/macros.hpp"
#include "profiles/machine.hpp"
#include "profiles/shape.hpp"
#include "stacks/stack_options.hpp"
#include "support/bundled_files.hpp"
#include "support/print.hpp"

namespace ferry::engine {
namespace {

std::string path_of(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : path_of(*app.get_parent()) + " " + app.get_name();
}

/// Calls `visit` for a command and those below it, in the order of help.
void each_command(const CLI::App& app, const std::function<void(const CLI::App&)>& visit) {
  visit(app);
  for (const CLI::App* c : app.get_subcommands({})) each_command(*c, visit);
}

std::vector<std::string> names_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* c : app.get_subcommands({})) names.push_back(c->get_name());
  return names;
}

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& n : option.get_snames()) names.push_back("-" + n);
  for (const std::string& n : option.get_lnames()) names.push_back("--" + n);
  return names;
}

bool takes_value(const CLI::Option& option) {
  return option.get_type_size_max() != 0;
}

/// Values that completion offers for an option.
struct Values {
  std::vector<std::string> words;
  bool file = false;  ///< also a path
};

Values values_of(const CLI::Option& option) {
  Values v;
  const std::string name = option.get_lnames().empty() ? "" : option.get_lnames()[0];
  const std::string type = option.get_type_name();
  v.file = type.find("FILE") != std::string::npos || type.find("FOLDER") != std::string::npos;
  if (name == "stack" || name == "stacks") {
    for (const StackInfo& s : all_stacks()) v.words.push_back(s.name);
  } else if (name == "machine" || name == "machines") {
    v.words = machine_names();
  } else if (name == "model") {
    v.words = model_names();
  } else if (name == "as" || name == "shape") {
    v.words = shape_names();
  } else if (const std::size_t open = type.find('{'), close = type.rfind('}');
             open != std::string::npos && close != std::string::npos && open < close) {
    std::string word;
    for (const char c : type.substr(open + 1, close - open - 1) + ",") {
      if (c != ',') {
        word += c;
      } else {
        v.words.push_back(std::exchange(word, ""));
      }
    }
  }
  return v;
}

/// The placeholder for an option's value: "nearest|hqq", "FILE", "N".
std::string value_name(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type.find('{') == std::string::npos) return type.substr(0, type.find(':'));
  return fmt::format("{}", fmt::join(values_of(option).words, "|"));
}

/// In single quotes, for a shell.
std::string in_quotes(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// bash's completion, which zsh can read, too.
std::string bash(const CLI::App& app) {
  std::string commands, values, words;
  each_command(app, [&](const CLI::App& c) {
    const std::string path = path_of(c);
    std::vector<std::string> all = names_of(c);
    if (c.get_parent() != nullptr) commands += fmt::format("      {}) path=\"$path $w\" ;;\n", in_quotes(path));
    for (const CLI::Option* o : c.get_options()) {
      const std::vector<std::string> names = names_of(*o);
      all.insert(all.end(), names.begin(), names.end());
      if (names.empty() || !takes_value(*o)) continue;
      std::vector<std::string> cases;
      for (const std::string& n : names) cases.push_back(in_quotes(path + ":" + n));
      const Values v = values_of(*o);
      values += fmt::format("    {}) words={} files={} ;;\n", fmt::join(cases, "|"),
                            in_quotes(fmt::format("{}", fmt::join(v.words, " "))), v.file ? "yes" : "");
    }
    words += fmt::format("      {}) words={} ;;\n", in_quotes(path), in_quotes(fmt::format("{}", fmt::join(all, " "))));
  });
  return fmt::format(R"(# Completion of ferry {} for bash, made by `ferry document bash`.
_ferry() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} path=ferry words files= w before
  for w in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$path $w" in
{}    esac
  done
  case "$path:$previous" in
{}    *)
      case $path in
{}      esac
      ;;
  esac
  before=${{word%"${{word##*,}}"}}
  COMPREPLY=($(compgen -P "$before" -W "$words" -- "${{word##*,}}"))
  [ -z "$files" ] || COMPREPLY+=($(compgen -P "$before" -f -- "${{word##*,}}"))
}}
complete -o filenames -F _ferry ferry
)",
                     FERRY_VERSION, commands, values, words);
}

std::string zsh(const CLI::App& app) {
  return "#compdef ferry\nautoload -U +X bashcompinit && bashcompinit\n" + bash(app);
}

std::string fish(const CLI::App& app) {
  std::string out = fmt::format(
      "# Completion of ferry {} for fish, made by `ferry document fish`.\n"
      "complete -c ferry -f\n",
      FERRY_VERSION);
  each_command(app, [&](const CLI::App& c) {
    const std::vector<std::string> below = names_of(c);
    std::vector<std::string> seen;
    for (const CLI::App* a = &c; a->get_parent() != nullptr; a = a->get_parent()) {
      seen.push_back("__fish_seen_subcommand_from " + a->get_name());
    }
    std::reverse(seen.begin(), seen.end());
    std::string when = fmt::format("{}", fmt::join(seen, "; and "));
    if (!below.empty()) {
      when += fmt::format("{}not __fish_seen_subcommand_from {}", when.empty() ? "" : "; and ", fmt::join(below, " "));
    }
    const std::string condition = when.empty() ? "" : " -n " + in_quotes(when);
    for (const CLI::App* s : c.get_subcommands({})) {
      out +=
          fmt::format("complete -c ferry{} -a {} -d {}\n", condition, s->get_name(), in_quotes(s->get_description()));
    }
    for (const CLI::Option* o : c.get_options()) {
      if (o->get_lnames().empty() && o->get_snames().empty()) continue;
      out += "complete -c ferry" + condition;
      for (const std::string& n : o->get_snames()) out += " -s " + n;
      for (const std::string& n : o->get_lnames()) out += " -l " + n;
      if (takes_value(*o)) {
        const Values v = values_of(*o);
        out += " -r";
        if (v.file) out += " -F";
        if (!v.words.empty()) out += " -a " + in_quotes(fmt::format("{}", fmt::join(v.words, " ")));
      }
      out += " -d " + in_quotes(o->get_description()) + "\n";
    }
  });
  return out;
}

/// Text as troff reads it: no character of it is a command.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool line_begin = out.empty() || out.back() == '\n';
    if (line_begin && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out;
}

std::string man(const CLI::App& app) {
  std::string out = fmt::format(
      ".TH FERRY 1 \"\" \"ferry {}\" \"User Commands\"\n.SH NAME\nferry \\- {}\n.SH SYNOPSIS\n.B ferry\n"
      ".I COMMAND\n[\n.I OPTIONS\n]\n.SH DESCRIPTION\n{}\nA budget is a share of the experts' bytes (25%) or a size "
      "(64MiB).\n.SH COMMANDS\n",
      FERRY_VERSION, roff("runs Mixture-of-Experts models whose experts do not fit"), roff(app.get_description()));
  each_command(app, [&](const CLI::App& c) {
    if (c.get_parent() == nullptr) return;
    out += fmt::format(".SS {}\n{}\n", roff(path_of(c)), roff(c.get_description()));
    for (const CLI::Option* o : c.get_options()) {
      std::vector<std::string> names = names_of(*o);
      if (std::find(names.begin(), names.end(), "--help") != names.end()) continue;
      if (names.empty()) names.push_back(o->get_name(true));
      const std::string value = takes_value(*o) ? value_name(*o) : "";
      const std::string type = value.empty() ? "" : " \\fI" + roff(value) + "\\fR";
      std::string standard = o->get_default_str();
      if (!standard.empty()) standard = fmt::format(" (default: {})", standard);
      out += fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", roff(fmt::format("{}", fmt::join(names, ", "))), type,
                         roff(o->get_description() + standard));
    }
  });
  out += ".SH STACKS\n";
  for (const StackInfo& s : all_stacks()) out += fmt::format(".TP\n\\fB{}\\fR\n{}\n", roff(s.name), roff(s.what));
  out += fmt::format(
      ".SH ENVIRONMENT\n.TP\n.B FERRY_MODELS\n{}\n.TP\n.B FERRY_INSTRUCTIONS\n{}\n.SH EXIT STATUS\n{}\n",
      roff("A folder of models, which --model then finds by name."),
      roff("portable, avx2 or avx512: what the CPU multiplies with. By default the fastest that it has. Each "
           "rounds sums in an order of its own, so that a text may differ between two processors."),
      roff("0: done. 2: something that was given cannot be used; one line on standard error says what, "
           "where, and what was expected. 130, 143: interrupted, with what there was by then."));
  return out;
}

}  // namespace

void add_document_command(CLI::App& app, Action& chosen) {
  CLI::App* c = app.add_subcommand("document", "print the man page, or completions for a shell");
  const auto kind = std::make_shared<std::string>();
  c->add_option("kind", *kind, "man, bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"man", "bash", "zsh", "fish"}));
  c->footer(
      "ferry document bash > ~/.local/share/bash-completion/completions/ferry\n"
      "ferry document man | man -l -");
  c->callback([kind, &app, &chosen] {
    chosen = [kind, &app] {
      print(*kind == "man" ? man(app) : *kind == "bash" ? bash(app) : *kind == "zsh" ? zsh(app) : fish(app));
      return 0;
    };
  });
}

}  // namespace ferry::engine
