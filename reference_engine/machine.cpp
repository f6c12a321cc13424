#include "machine.hpp"

#include <algorithm>
#include <cmath>

#include "errors.hpp"
#include "generate.hpp"
#include "json.hpp"
#include "suggest.hpp"

namespace ferry::engine {

std::filesystem::path data_directory() {
  std::error_code none;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", none);
  const auto installed = self.parent_path().parent_path() / "share" / "ferry";
  return std::filesystem::exists(installed / "machines", none) ? installed : std::filesystem::path(FERRY_DATA_DIR);
}

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& file : std::filesystem::directory_iterator(data_directory() / "machines", none)) {
    if (file.path().extension() == ".json") names.push_back(file.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  if (names.empty()) throw InputError((data_directory() / "machines").string() + ": no machine files are there");
  return names;
}

Machine read_machine(const std::string& name_or_path) {
  std::filesystem::path path = name_or_path;
  if (name_or_path.find('/') == std::string::npos && path.extension() != ".json") {
    const auto names = machine_names();
    if (std::find(names.begin(), names.end(), name_or_path) == names.end()) {
      throw InputError(unknown_name("machine", name_or_path, names));
    }
    path = data_directory() / "machines" / (name_or_path + ".json");
  }
  const Json root = read_json(path);
  const Fields f(root, path.string());
  auto measured = [&](const char* field) {
    const Fields value(f.at(field), path.string() + ": " + field);
    static_cast<void>(value.text("source"));
    return value.number("value", 0);
  };
  return {f.text("name"), f.text("reference_model"), f.text("precision"), measured("expert_transfer_s"),
          measured("layer_compute_s")};
}

double measure_decode_layer_s(HostModel& model) {
  RunnerOptions o;
  o.stack = "resident";
  const auto runner = make_runner(model.config(), model.store(), model.gates(), o);
  GenerateOptions g;
  g.prompts = {"The time that a layer takes"};
  g.max_new_tokens = 16;
  double least = 0;
  for (int i = 0; i < 4; ++i) {  // the first warms up; of the others the least disturbed counts
    const Generated r = generate(model, *runner, g);
    if (r.decode_steps == 0) continue;
    const double s = r.decode_s / static_cast<double>(r.decode_steps) / model.config().layers;
    if (i > 0 && (least == 0 || s < least)) least = s;
  }
  if (least == 0) throw InputError("the model ends its text at once, so no decode step can be measured");
  return least;
}

std::uint64_t throttle_bytes_per_s(const Machine& machine, std::uint64_t expert_bytes, double decode_layer_s) {
  return static_cast<std::uint64_t>(
      std::max(1.0, std::round(static_cast<double>(expert_bytes) / (machine.ratio() * decode_layer_s))));
}

}  // namespace ferry::engine
