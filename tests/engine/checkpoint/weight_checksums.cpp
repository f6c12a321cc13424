// Checksums of weight files, as xxh128sum writes them.
#include "checkpoint/weight_checksums.hpp"

#include <doctest/doctest.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>
#include <string>

#include "engine/fixtures/command.hpp"
#include "engine/fixtures/files.hpp"
#include "engine/fixtures/refusal.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

namespace {

/// The line for a file, by xxHash's one-shot function.
std::string line_of(const std::filesystem::path& path) {
  const std::string content = read_file(path);
  const XXH128_hash_t sum = XXH3_128bits(content.data(), content.size());
  char digits[33];
  std::snprintf(digits, sizeof(digits), "%016llx%016llx", static_cast<unsigned long long>(sum.high64),
                static_cast<unsigned long long>(sum.low64));
  return digits + ("  " + path.filename().string()) + "\n";
}

bool go_on(std::uint64_t, std::uint64_t) {
  return true;
}

}  // namespace

TEST_CASE("a list of checksums has a line a weight file, and finds every change") {
  const TemporaryFolder folder;
  TinyCheckpoint().write_sharded(folder.path());
  const std::filesystem::path first = folder.path() / "model-00001-of-00002.safetensors",
                              second = folder.path() / "model-00002-of-00002.safetensors",
                              list = folder.path() / "list";
  const std::string text = weight_checksums(Checkpoint(folder.path()), go_on);
  CHECK(text == line_of(first) + line_of(second));
  CHECK(weight_checksums(Checkpoint(folder.path()), [](auto, auto) { return false; }).empty());
  const auto refused = [&](const std::string& content) {
    write_file(list, content);
    return refusal("", [&] { check_weight_checksums(Checkpoint(folder.path()), list, go_on); });
  };
  CHECK(refused(text).empty());
  CHECK(refused(line_of(folder.path() / "config.json") + line_of(second) + line_of(first)).empty());
  CHECK(says(refused(line_of(second)), {"list: has no line for model-00001-of-00002.safetensors", "2 weight files"}));
  CHECK(says(refused("hello\n"), {"list: line 1: expected 32 digits"}));
  CHECK(says(refused(text + line_of(first).replace(0, 4, "0000")), {"line 3", "stands twice"}));
  const std::string whole = read_file(second);
  std::string damaged = whole;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  write_file(second, damaged);
  CHECK(says(refused(text), {"model-00002-of-00002.safetensors: is not what", "copy or download it anew"}));
  write_file(first, read_file(first) + " ");  // refused as a checkpoint already
  CHECK_FALSE(refused(text).empty());
}

TEST_CASE("commands verify a model before they use it") {
  const TemporaryFolder folder;
  const std::filesystem::path model = folder.path() / "model", list = folder.path() / "list";
  std::filesystem::create_directory(model);
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(model_folder("tiny-mixtral") / file, model / file);
  }
  const std::string of_model = " --model '" + model.string() + "'",
                    verify = of_model + " --verify '" + list.string() + "'";
  CHECK(run_ferry("inspect --write-checksums '" + list.string() + "'" + of_model).status == 0);
  CHECK(read_file(list) == line_of(model / "model.safetensors"));
  CHECK(says(run_ferry("inspect" + verify).out, {"1 weight files are what"}));
  CHECK(run_ferry("run --prompt a --max-new-tokens 1" + verify).status == 0);
  std::string damaged = read_file(model / "model.safetensors");
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  write_file(model / "model.safetensors", damaged);
  for (const std::string& command :
       {std::string("run --prompt a"), "pack --out '" + (folder.path() / "s").string() + "'", std::string("inspect")}) {
    refuses(command + verify, {"model.safetensors: is not what", "copy or download it anew"});
  }
  CHECK_FALSE(std::filesystem::exists(folder.path() / "s"));
  refuses("inspect --store s" + verify, {"--verify", "--store"});
}
