// Stack files that come with ferry, with parameters that were calibrated for a model.
#include "stacks/stack_file.hpp"
#include "profiles/shape.hpp"

#include <doctest/doctest.h>

#include <filesystem>

#include "engine/fixtures/command.hpp"
#include "engine/fixtures/files.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/shell.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "profiles/shape.hpp"
#include "support/bundled_files.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;
using ferry::test::ferry_command;

TEST_CASE("every file of calibrated parameters is one that its stack takes, and says how it was made") {
  std::size_t files = 0;
  for (const auto& model : std::filesystem::directory_iterator(data_directory() / "calibrated")) {
    for (const auto& file : std::filesystem::directory_iterator(model.path())) {
      CAPTURE(file.path());
      ++files;
      const NamedStack stack = read_stack(file.path().string());
      CHECK(stack.policies == file.path().stem().string());
      CHECK(!stack.parameters.empty());
      const Json made = read_json(file.path().string())["calibrated"];
      const std::string name = model.path().filename().string();
      if (made.contains("model")) {
        CHECK(made["model"] == name);
      } else {  // a shape, for traces that were made up for it
        REQUIRE_FALSE(made["traces"].empty());
        for (const Json& trace : made["traces"]) CHECK(trace.get<std::string>().starts_with(name));
        CHECK_NOTHROW(static_cast<void>(read_shape(name)));
      }
      CHECK(!made["criterion"].get<std::string>().empty());
      const NamedStack found = read_stack(stack.policies, model.path().filename().string());
      CHECK(found.parameters == stack.parameters);
      CHECK(found.file.empty());
      CHECK(found.calibrated ==
            (std::filesystem::path("calibrated") / model.path().filename() / file.path().filename()));
    }
  }
  CHECK(files >= 4);
  for (const char* unknown : {"", "..", ".", "no-such-model", "../calibrated/tiny-mixtral", "/"}) {
    CHECK(read_stack("hobbit", unknown).calibrated.empty());
  }
}

TEST_CASE("who gives one threshold does not get the other of a calibration") {
  const NamedStack mine{"", "hobbit", "hobbit", Json{{"t1", 0.1}, {"t2", 0.3}, {"low-pool", 4U}},
                        "calibrated/m/hobbit.json"};
  CHECK(own_parameters(mine, Json::object()) == mine.parameters);
  CHECK(own_parameters(mine, Json{{"depth", 1U}}) == mine.parameters);
  CHECK(own_parameters(mine, Json{{"t1", 0.5}}) == Json{{"low-pool", 4U}});
  CHECK(parameters_of(mine, Json{{"t2", 0.05}}) == Json{{"low-pool", 4U}, {"t2", 0.05}});
  NamedStack file = mine;  // what a file of the user's own says is not questioned
  file.file = "mine.json";
  file.calibrated.clear();
  CHECK(own_parameters(file, Json{{"t1", 0.2}}) == mine.parameters);
  const test::TemporaryFolder folder;
  for (const std::string& flag : {std::string("--t1 0.95"), std::string("--t2 0.01"), std::string("--t1 0.5")}) {
    CAPTURE(flag);
    const bool can_be = flag == "--t1 0.5";  // beside the paper's own 0.6 and 0.9
    CHECK((ferry_command("run --model tiny-mixtral --stack hobbit --max-new-tokens 2 --prompt a " + flag).status ==
           0) == can_be);
  }
}

TEST_CASE("a run takes what was calibrated for its model, says so, and goes without on request") {
  const test::TemporaryFolder folder;
  const std::string json = (folder.path() / "r.json").string();
  const std::string command = "run --model tiny-mixtral --stack hobbit --max-new-tokens 2 --prompt a --json " + json;
  test::Shell r = ferry_command(command);
  CHECK(r.status == 0);
  CHECK(r.out.find("hobbit: calibrated for tiny-mixtral: cache-weights ") != std::string::npos);
  Json run = read_json(json);
  CHECK(run["calibrated"] == "calibrated/tiny-mixtral/hobbit.json");
  CHECK(run["parameters"].contains("cache-weights"));
  r = ferry_command(command + " --defaults paper");
  CHECK(r.out.find("calibrated for") == std::string::npos);
  run = read_json(json);
  CHECK(!run.contains("calibrated"));
  CHECK(run["parameters"] == Json::object());
  r = ferry_command(command + " --cache-weights 1000,0,0,0");
  CHECK(r.out.find("calibrated for tiny-mixtral: cache-weights") == std::string::npos);
  CHECK(read_json(json)["parameters"]["cache-weights"] == Json({1000, 0, 0, 0}));
}

}  // namespace
