// ferry list: what has a name.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "checkpoint/model_config.hpp"
#include "command/command.hpp"
#include "profiles/machine.hpp"
#include "support/bundled_files.hpp"
#include "support/print.hpp"
#include "support/terminal.hpp"

namespace ferry::engine {
namespace {

std::string entry(const std::string& name, const std::string& what) {
  return fmt::format("  {:<20}  {}\n", name, what);
}

std::string size(double bytes) {
  return bytes >= 1e9 ? fmt::format("{:.1f} GB", bytes * 1e-9) : fmt::format("{:.1f} MB", bytes * 1e-6);
}

std::string machines() {
  std::string text = "Machines, for --machine (or a file of your own, see `ferry calibrate machine`):\n";
  for (const std::string& name : machine_names()) {
    const Machine m = read_machine(name);
    text += entry(name, fmt::format("link {:.1f} GB/s, an expert crosses in {:.2f} of a layer's time ({})",
                                    m.link.effective * 1e-9, m.ratio(), m.reference_model()));
  }
  return text;
}

std::string shape_line(const Shape& s, double expert_bytes) {
  return fmt::format("{} layers of {} experts, top-{}; an expert has {}, all {}", s.layers, s.experts, s.top_k,
                     size(expert_bytes), size(expert_bytes * s.layers * s.experts));
}

std::string shapes() {
  std::string text = "Shapes of models, for --shape and --as (or a file of your own):\n";
  for (const std::string& name : shape_names()) {
    const ModelShape m = read_shape(name).model;
    text += entry(name, shape_line(m, static_cast<double>(m.bytes(0, Precision::full))));
  }
  return text;
}

std::string models() {
  std::string text = "Models, for --model (or a folder with config.json and safetensors, or a GGUF file):\n";
  for (const std::string& name : model_names()) {
    const ModelConfig c = read_model_config(find_model(name));
    text += entry(name, fmt::format("{}: {} layers of {} experts, top-{}, context {}", c.architecture_name, c.layers,
                                    c.experts, c.top_k, c.context));
  }
  for (const std::string& name : own_model_names()) text += entry(name, "in " + models_folder().string());
  if (models_folder().empty()) text += "FERRY_MODELS can name a folder with more of them.\n";
  return text;
}

}  // namespace

void add_list_command(CLI::App& app, Action& chosen) {
  CLI::App* c = app.add_subcommand("list", "print what has a name: stacks, machines, shapes, models");
  const auto what = std::make_shared<std::string>();
  c->add_option("what", *what, "which of them; without, all")
      ->type_name("")
      ->check(CLI::IsMember({"stacks", "machines", "shapes", "models"}));
  c->callback([what, &chosen] {
    chosen = [what] {
      std::string text;
      auto part = [&](const char* name, std::string (*made)()) {
        if (!what->empty() && *what != name) return;
        if (!text.empty()) text += '\n';
        text += made();
      };
      part("stacks", stacks_help);
      part("machines", machines);
      part("shapes", shapes);
      part("models", models);
      print(wrapped(text, terminal_columns()));
      return 0;
    };
  });
}

}  // namespace ferry::engine
