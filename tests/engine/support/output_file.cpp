#include "support/output_file.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <vector>

#include "engine/fixtures/files.hpp"
#include "engine/fixtures/refusal.hpp"
#include "support/errors.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

namespace {

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("an output takes its place whole, and nothing else is ever seen in the folder") {
  for (const auto kind : {OutputFile::Names::none, OutputFile::Names::random}) {
    const TemporaryFolder folder;
    const std::filesystem::path path = folder.path() / "out.json";
    OutputFile file(path, kind);
    CHECK(names_in(folder.path()).empty());
    file.commit("first");
    CHECK(read_file(path.string()) == "first");
    CHECK(names_in(folder.path()) == Names{"out.json"});
    OutputFile again(path, kind);
    again.commit(std::vector<std::string_view>{"sec", "ond"});
    CHECK(read_file(path.string()) == "second");
    CHECK(names_in(folder.path()) == Names{"out.json"});
  }
}

TEST_CASE("an output that cannot be there is refused before anything is computed") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(OutputFile(folder.path() / std::string(256, 'a')),
                       doctest::Contains("File name too long: expected a name of at most 255 bytes"), InputError);
  CHECK_NOTHROW(OutputFile(folder.path() / std::string(255, 'a')));

  const std::filesystem::path path = folder.path() / "printed";
  write_file(path, "");
  const int printed = ::dup(STDOUT_FILENO);
  REQUIRE(printed >= 0);
  const int to = ::open(path.c_str(), O_WRONLY);
  ::dup2(to, STDOUT_FILENO);
  std::string said;
  try {
    OutputFile file(path);
  } catch (const InputError& e) {
    said = e.what();
  }
  ::dup2(printed, STDOUT_FILENO);
  ::close(printed);
  ::close(to);
  CHECK(says(said, {"printed: is where what is printed goes, expected another file, or -"}));
}

TEST_CASE("links that were planted under a temporary file's name empty nobody's file") {
  const TemporaryFolder folder;
  write_file(folder.path() / "precious", "kept");
  const std::filesystem::path path = folder.path() / "out.json";
  // The names that earlier versions wrote to, and that this one might.
  const std::string planted[] = {"out.json." + std::to_string(::getpid()) + ".tmp", ".out.json.ferry-0123456789abcdef"};
  for (const std::string& name : planted) std::filesystem::create_symlink("precious", folder.path() / name);
  for (const auto kind : {OutputFile::Names::none, OutputFile::Names::random}) {
    OutputFile(path, kind).commit("new");
    CHECK(read_file((folder.path() / "precious").string()) == "kept");
    for (const std::string& name : planted) CHECK(std::filesystem::is_symlink(folder.path() / name));
  }
}

TEST_CASE("what a killed run left behind is removed by the next, unless somebody still writes it") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "out.json";
  const std::string dead = ".out.json.ferry-00000000000000aa", alive = ".out.json.ferry-00000000000000bb";
  for (const std::string& name : {dead, alive, std::string(".other.ferry-00000000000000cc")}) {
    write_file(folder.path() / name, "half");
  }
  const int holder = ::open((folder.path() / alive).c_str(), O_RDWR);
  REQUIRE(holder >= 0);
  REQUIRE(::flock(holder, LOCK_EX) == 0);
  OutputFile(path).commit("whole");
  CHECK(names_in(folder.path()) == Names{".other.ferry-00000000000000cc", alive, "out.json"});
  ::close(holder);
  OutputFile(path).commit("whole");
  CHECK(names_in(folder.path()) == Names{".other.ferry-00000000000000cc", "out.json"});
}

TEST_CASE("a run that is killed while it writes leaves the old file, and no other") {
  for (const auto kind : {OutputFile::Names::none, OutputFile::Names::random}) {
    const TemporaryFolder folder;
    const std::filesystem::path path = folder.path() / "out.json";
    write_file(path, "old");
    const std::string much(1 << 20U, 'x');
    const std::vector<std::string_view> parts(512, much);  // 512 MiB: longer than the parent waits
    const pid_t child = ::fork();
    if (child == 0) {
      OutputFile(path, kind).commit(parts);
      ::_exit(0);
    }
    ::usleep(20'000);
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    if (WIFSIGNALED(status)) CHECK(read_file(path.string()) == "old");
    OutputFile(path, kind).commit("new");
    CHECK(read_file(path.string()) == "new");
    CHECK(names_in(folder.path()) == Names{"out.json"});
  }
}

TEST_CASE("what goes to a terminal neither commands it nor turns its text around") {
  CHECK(printable("plain, ümläut, 漢字, 🙂") == "plain, ümläut, 漢字, 🙂");
  CHECK(printable("a\x1b[31mb\nc\td\x7f") == "a?[31mb?c?d?");
  CHECK(printable("\xc2\x9b"
                  "31m") == "?31m");                       // U+009B, a control sequence's beginning in one character
  CHECK(printable("gpj\xe2\x80\xae.exe") == "gpj?.exe");   // U+202E
  CHECK(printable("\xe2\x81\xa6x\xe2\x81\xa9") == "?x?");  // U+2066, U+2069
  CHECK(printable("\xff\xfe a\xc3") == "?? a?");           // not UTF-8
  CHECK(printable("\x9b") == "?");                         // a lone byte that 8-bit terminals take for U+009B
  CHECK(printable("\xef\xbf\xbd") == "\xef\xbf\xbd");      // the replacement character itself is allowed
  CHECK(printable("\xe2\x80\xa8") == "?");                 // U+2028
}
