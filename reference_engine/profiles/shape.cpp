#include "profiles/shape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ferry/error.hpp"
#include "math/expert.hpp"
#include "support/bundled_files.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"
#include "support/suggest.hpp"

namespace ferry::engine {
namespace {

std::uint64_t bytes_of(std::uint64_t weights, double bits) {
  return static_cast<std::uint64_t>(std::ceil(static_cast<double>(weights) * bits / 8));
}

}  // namespace

void check_size(const ModelShape& model, const std::string& where) {
  constexpr std::uint64_t most = 1U << 24U;
  if (std::uint64_t{model.layers} * model.experts <= most) return;
  throw InputError(fmt::format("{}: {} layers of {} experts, expected at most {} experts in all", where, model.layers,
                               model.experts, most));
}

std::vector<std::string> shape_names() {
  return data_names("shapes");
}

ModelFacts read_shape(const std::string& name_or_path, std::optional<double> bits) {
  const std::filesystem::path path = data_file("shapes", "model shape", name_or_path);
  const Json root = read_json(path);
  const Fields f(root, path.string());
  constexpr std::uint32_t most = 1U << 20U;
  ModelFacts m;
  m.name = f.text("name");
  m.model.layers = static_cast<std::uint16_t>(f.whole("layers", 1, 65535));
  m.model.experts = static_cast<std::uint16_t>(f.whole("experts", 1, no_expert - 1));
  m.model.top_k = static_cast<std::uint16_t>(f.whole("top_k", 1, m.model.experts));
  m.model.max_rows = 1;
  check_size(m.model, path.string());
  m.model.renormalise = renormalise_if(f.flag("renormalise", true));
  auto weight_bits = [&](const char* name) {
    const double value = f.number(name, 0);
    if (value > 64) f.refuse(name, "at most 64 bits");
    return bits.value_or(value);
  };
  const std::uint32_t hidden = f.whole("hidden", 1, most), width = f.whole("expert_width", 1, most);
  m.model.expert_bytes = {expert_bytes(hidden, width, weight_bits("bits_per_weight"))};
  m.work = {layer_work(hidden, m.model.experts, f.whole("attention_params", 1, 0xffffffffU),
                       f.whole("shared_width", 0, most), width, weight_bits("dense_bits_per_weight"))};
  f.refuse_others({"source", "attention_source", "note"});
  try {
    m.model.validate();
  } catch (const ConfigError& e) {
    throw InputError(fmt::format("{}: {}", path.string(), e.what()));
  }
  return m;
}

LayerWork layer_work(std::uint64_t hidden, std::uint64_t experts, std::uint64_t attention_weights,
                     std::uint64_t shared_width, std::uint64_t expert_width, double dense_bits) {
  const std::uint64_t dense = attention_weights + hidden * experts + 3 * hidden * shared_width;
  return {bytes_of(dense, dense_bits), 2 * dense, 6 * hidden * expert_width, hidden * sizeof(float)};
}

std::uint64_t mean_expert_bytes(const ModelShape& model, Precision precision) {
  std::uint64_t sum = 0;
  for (std::uint32_t l = 0; l < model.layers; ++l) {
    const std::uint64_t bytes = model.bytes(l, precision);
    if (bytes == 0) return 0;
    sum += bytes * model.experts_of(l);
  }
  return sum / model.all_experts();
}

ExpertBytes expert_bytes(std::uint64_t hidden, std::uint64_t expert_width, double bits) {
  ExpertBytes bytes{};
  const std::uint64_t full = bytes_of(3 * hidden * expert_width, bits);
  const ExpertLayout layout{static_cast<std::uint32_t>(hidden), static_cast<std::uint32_t>(expert_width), DType::bf16};
  for (const Precision p : {Precision::int2, Precision::int4, Precision::int8}) {
    if (layout.bytes(p) < full) bytes[static_cast<unsigned>(p)] = layout.bytes(p);
  }
  bytes[static_cast<unsigned>(Precision::full)] = full;
  return bytes;
}

}  // namespace ferry::engine
