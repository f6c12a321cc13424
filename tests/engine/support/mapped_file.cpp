// Files that others change while they are open.
#include "support/mapped_file.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "engine/fixtures/files.hpp"
#include "engine/fixtures/refusal.hpp"
#include "support/errors.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

namespace {

std::string content_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.data()), file.size()};
}

/// Overwrites a file in place; the pause makes sure that its time changes.
void overwrite(const std::filesystem::path& path, const std::string& content) {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  REQUIRE(::write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()));
  ::close(fd);
}

}  // namespace

TEST_CASE("a file that was copied stays as it was, whatever becomes of it") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "f";
  write_file(path, std::string(10'000, 'a'));
  const MappedFile file(path, MappedFile::Hold::copied);
  overwrite(path, "other");
  CHECK(content_of(file) == std::string(10'000, 'a'));
  std::filesystem::resize_file(path, 0);
  CHECK(content_of(file) == std::string(10'000, 'a'));
  std::string part(5, '\0');
  file.read(file.data() + 9'995, 5, reinterpret_cast<std::byte*>(part.data()), "part");
  CHECK(part == "aaaaa");
  CHECK_NOTHROW(file.check_unchanged());
  CHECK(content_of(MappedFile(path, MappedFile::Hold::copied)).empty());
}

TEST_CASE("a mapped file that is written to, cut off or replaced is noticed") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "f";
  write_file(path, std::string(10'000, 'a'));
  const MappedFile file(path);
  std::byte byte{};
  const auto read = [&](std::uint64_t at) {
    return refusal("f", [&] { file.read(file.data() + at, 1, &byte, "f: byte"); });
  };
  const auto check = [&] { return refusal("f", [&] { file.check_unchanged(); }); };
  CHECK(read(9'000).empty());
  CHECK(check().empty());
  SUBCASE("written to") {
    overwrite(path, "other");
    CHECK(says(read(9'000), {"f: byte cannot be used: the file has changed since it was opened"}));
    CHECK(says(check(), {"has changed since it was opened", "run this again"}));
  }
  SUBCASE("written to, and its time set back") {
    const auto time = std::filesystem::last_write_time(path);
    overwrite(path, "other");
    std::filesystem::last_write_time(path, time);
    CHECK(says(read(9'000), {"f: byte cannot be used: the file has changed since it was opened"}));
    CHECK(says(check(), {"has changed since it was opened", "run this again"}));
  }
  SUBCASE("under another name, or with other rights: what is written then is noticed as before") {
    SUBCASE("a second name") {
      std::filesystem::create_hard_link(path, folder.path() / "second");
    }
    SUBCASE("other rights") {
      std::filesystem::permissions(path, std::filesystem::perms::owner_read);
    }
    SUBCASE("another name") {
      std::filesystem::rename(path, folder.path() / "other");
    }
    CHECK(read(9'000).empty());
    CHECK(check().empty());
    if (!std::filesystem::exists(path)) std::filesystem::rename(folder.path() / "other", path);
    CHECK(read(9'000).empty());
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    CHECK(check().empty());
    const auto time = std::filesystem::last_write_time(path);
    overwrite(path, "other");
    std::filesystem::last_write_time(path, time);
    CHECK(says(read(9'000), {"f: byte cannot be used: the file has changed since it was opened"}));
  }
  SUBCASE("cut off") {
    std::filesystem::resize_file(path, 8'000);
    CHECK(says(read(9'000), {"f: byte cannot be read: the file has become shorter"}));
    CHECK(says(check(), {"has changed since it was opened"}));
  }
  SUBCASE("replaced by a file of the same size and time") {
    const std::filesystem::path other = folder.path() / "other";
    write_file(other, std::string(10'000, 'b'));
    std::filesystem::last_write_time(other, std::filesystem::last_write_time(path));
    std::filesystem::rename(other, path);
    CHECK(read(9'000).empty());
    CHECK(byte == std::byte{'a'});
    CHECK(says(check(), {"was replaced by another file"}));
  }
  SUBCASE("removed: it is whole as long as it is open") {
    std::filesystem::remove(path);
    CHECK(read(9'000).empty());
    CHECK(check().empty());
  }
}

TEST_CASE("a mapped file that becomes shorter ends the process with its name and status 2") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "model\n.safetensors", whole = folder.path() / "whole";
  write_file(path, std::string(100'000, 'a'));
  write_file(whole, std::string(100'000, 'a'));
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    report_lost_files();
    const MappedFile before(whole), file(path), after(whole);
    std::filesystem::resize_file(path, 0);
    const volatile auto read = file.data()[50'000];
    ::_exit(static_cast<int>(read));
  }
  ::close(ends[1]);
  std::string said(1'000, '\0');
  ssize_t n = 0;
  std::string all;
  while ((n = ::read(ends[0], said.data(), said.size())) > 0) all.append(said.data(), static_cast<std::size_t>(n));
  ::close(ends[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 2);
  CHECK(all == "ferry: " + (folder.path() / "model?.safetensors").string() +
                   ": became shorter while it was read: expected a file that stays whole: put it back and run this "
                   "again\n");
}
