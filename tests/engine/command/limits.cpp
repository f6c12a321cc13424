// What a system may refuse, limit or hold, such as names that are not UTF-8. Each ends in one line, or does not matter.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "engine/fixtures/command.hpp"
#include "engine/fixtures/files.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"

using namespace ferry::test;

namespace {

/// One line with all `parts`, and exit status 2.
void refuses_under(const std::string& limit, const std::string& arguments, const std::vector<std::string>& parts) {
  CAPTURE(limit);
  const Shell r = shell("{ " + limit + "; </dev/null " + ferry_program() + " " + arguments + "; }");
  CHECK(r.status == 2);
  CHECK(std::count(r.out.begin(), r.out.end(), '\n') == 1);
  CHECK(says(r.out, parts));
}

}  // namespace

TEST_CASE("models and texts whose names are not UTF-8 are run, recorded, packed and reported") {
  const TemporaryFolder folder;
  const std::filesystem::path model = folder.path() / "m\xff", text = folder.path() / "t\xfe.txt";
  std::filesystem::create_directory(model);
  TinyCheckpoint().write(model);
  write_file(text, "the sea, the ferry, the sea");
  const std::string with = " --model '" + model.string() + "'", out = (folder.path() / "out\xfd").string();
  const std::string escaped = "m\xef\xbf\xbd";  // U+FFFD, the replacement character
  for (const std::string& command :
       {"run --max-new-tokens 1 --prompt-file '" + text.string() + "' --json",
        "compare --stacks lru --max-new-tokens 1 --prompt-file '" + text.string() + "' --json",
        std::string("bench --prompt-tokens 4 --generate 0 --repeat 1 --json"),
        "eval --stack lru --window 16 --text '" + text.string() + "' --json",
        "tokenize --file '" + text.string() + "' --json"}) {
    CAPTURE(command);
    std::filesystem::remove(out);
    const Outputs r = run_ferry(command + " '" + out + "'" + with);
    CHECK(r.status == 0);
    CHECK(Json::accept(read_file(out)));
  }
  std::filesystem::remove(out);
  const std::string record = "trace record --window 16 --prompt-tokens 4 --text '" + text.string() + "' --out '";
  CHECK(run_ferry(record + out + "'" + with).status == 0);
  const Outputs shown = run_ferry("trace inspect '" + out + "'");
  CHECK(shown.status == 0);
  CHECK(says(shown.out, {escaped}));
  std::filesystem::remove(out);
  CHECK(run_ferry("pack --precisions int4 --out '" + out + "'" + with).status == 0);
  CHECK(run_ferry("inspect --store '" + out + "'").status == 0);
}

#ifndef FERRY_SANITIZED  // they need /proc to look for leaks
TEST_CASE("without /proc, as in some containers, outputs are written all the same") {
  const std::string hidden = "unshare -rm bash -c 'mount -t tmpfs none /proc && exec \"$@\"' - ";
  if (shell(hidden + "true").status != 0) {
    MESSAGE("not tried: this system lets nobody but root mount");
    return;
  }
  const TemporaryFolder folder;
  const std::string out = (folder.path() / "out").string();
  const Shell r = shell(hidden + ferry_program() + " run --max-new-tokens 2 --prompt a --json '" + out + "'");
  CAPTURE(r.out);
  CHECK(r.status == 0);
  CHECK(Json::accept(read_file(out)));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

#endif

TEST_CASE("a sweep that comes to nothing leaves nothing, and what another left as it was") {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  REQUIRE(run_ferry("trace generate --shape mixtral-8x7b --sequences 1 --tokens 4 --prompt-tokens 2 --out '" + at +
                    "/t.safetensors'")
              .status == 0);
  const std::string sweep =
      "sweep --traces '" + at + "/t.safetensors' --machines rtx3090-pcie3 --stacks lru --out '" + at + "/s.jsonl'";
  refuses_under("ulimit -f 0", sweep, {"s.jsonl", "File too large"});
  CHECK(!std::filesystem::exists(at + "/s.jsonl"));
  CHECK(run_ferry(sweep).status == 0);
  const std::string lines = read_file(at + "/s.jsonl");
  CHECK(!lines.empty());
  refuses_under("ulimit -f 0", sweep + " --budgets 25%,30%", {"s.jsonl", "File too large"});
  CHECK(read_file(at + "/s.jsonl") == lines);
}

TEST_CASE("what is mounted cannot be replaced, and is refused before anything is computed") {
  const std::string mounted = "unshare -rm bash -c 'mount --bind \"$1\" \"$1\" && shift && exec \"$@\"' - ";
  const TemporaryFolder folder;
  const std::string out = (folder.path() / "out").string();
  write_file(out, "old");
  if (shell(mounted + "'" + out + "' true").status != 0) {
    MESSAGE("not tried: this system lets nobody but root mount");
    return;
  }
  const Shell r =
      shell(mounted + "'" + out + "' " + ferry_program() + " run --max-new-tokens 2 --prompt a --json '" + out + "'");
  CHECK(r.status == 2);
  CHECK(says(r.out, {out, "it is a mount point"}));
  CHECK(std::count(r.out.begin(), r.out.end(), '\n') == 1);
  CHECK(read_file(out) == "old");
}

TEST_CASE("a folder that is gone is named where a file was to be written to it") {
  const TemporaryFolder folder;
  const std::string at = "'" + (folder.path() / "g").string() + "'";
  const Shell r = shell("mkdir " + at + " && cd " + at + " && rmdir " + at + " && " + ferry_program() +
                        " pack --model tiny-mixtral --out x.ferry");
  CHECK(r.status == 2);
  CHECK(says(r.out, {"x.ferry: cannot be written: the current folder is gone"}));
}

TEST_CASE("limits of the system end a command in one line that names them") {
  const TemporaryFolder folder;
  const std::string out = (folder.path() / "out").string();
  refuses_under("ulimit -s 256", "list", {"the stack may have 256 KiB", "ulimit -s 2048"});
  refuses_under("ulimit -f 0", "help run >'" + out + "'", {"standard output: cannot be written: File too large"});
  refuses_under("true", "help run >/dev/full", {"standard output: cannot be written: No space left on device"});
  refuses_under("ulimit -f 0", "trace generate --shape mixtral-8x7b --tokens 1 --sequences 1 --out '" + out + ".t'",
                {"out.t: cannot be written: File too large"});
  CHECK_FALSE(std::filesystem::exists(out + ".t"));
}
