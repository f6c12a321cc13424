// ferry document: what shells and man make of it.
#include <doctest/doctest.h>

#include <sstream>
#include <string>

#include "engine/fixtures/command.hpp"
#include "stacks/stack_options.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

namespace {

/// What bash offers behind these words, separated by spaces.
std::string offered(const std::string& words) {
  const std::string script = "source <(" + ferry_program() + " document bash); COMP_WORDS=(" + words +
                             "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _ferry; echo \"${COMPREPLY[*]}\"";
  const TemporaryFolder folder;
  write_file(folder.path() / "script", script);
  const Shell s = shell("bash '" + (folder.path() / "script").string() + "'");
  CHECK(s.status == 0);
  return s.out;
}

}  // namespace

TEST_CASE("bash completes commands, options, names and lists of names") {
  CHECK(offered("ferry tra") == "trace\n");
  CHECK(offered("ferry trace rec") == "record\n");
  CHECK(offered("ferry run --repeat-p") == "--repeat-penalty\n");
  CHECK(offered("ferry run --stack hobbit-") == "hobbit-cooperative\n");
  CHECK(offered("ferry compare --stacks lru,hobbit-") == "lru,hobbit-cooperative\n");
  CHECK(offered("ferry run --machine rtx3090") == "rtx3090-pcie3\n");
  CHECK(offered("ferry simulate --bounds pro") == "proven\n");
  CHECK(offered("ferry run --json /proc/self/cmd") == "/proc/self/cmdline\n");
}

TEST_CASE("the man page has every command that help has, every stack, and no line that troff would take for its own") {
  const Shell man = shell(ferry_program() + " document man");
  CHECK(man.status == 0);
  const Shell help = shell(ferry_program() + " --help");
  std::istringstream lines(help.out.substr(help.out.find("Subcommands:")));
  std::string line;
  int commands = 0;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    if (line.size() < 3 || line[0] != ' ' || line[2] == ' ') continue;
    const std::string name = line.substr(2, line.find(' ', 2) - 2);
    CAPTURE(name);
    CHECK(man.out.find("\n.SS ferry " + name + "\n") != std::string::npos);
    ++commands;
  }
  CHECK(commands > 10);
  for (const StackInfo& s : all_stacks()) {
    std::string name;
    for (const char c : s.name) name += c == '-' ? "\\-" : std::string(1, c);
    CHECK(man.out.find("\\fB" + name + "\\fR\n") != std::string::npos);
  }
  std::istringstream all(man.out);
  while (std::getline(all, line)) {
    if (line.empty() || (line[0] != '.' && line[0] != '\'')) continue;
    const std::string macro = line.substr(1, line.find(' ') - 1);
    CAPTURE(line);
    const bool known = macro == "TH" || macro == "SH" || macro == "SS" || macro == "TP" || macro == "B" || macro == "I";
    CHECK(known);
  }
}

TEST_CASE("document refuses other kinds") {
  refuses("document pdf", {"pdf", "man,bash,zsh,fish"});
}
