#include "inference/gate_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "checkpoint/safetensors.hpp"
#include "math/matrix.hpp"
#include "support/errors.hpp"

namespace ferry::engine {
namespace {

constexpr std::uint32_t most_depth = 4;  ///< as `ferry calibrate gates` trains

}  // namespace

std::string gate_tensor(std::uint32_t layer, std::uint32_t distance) {
  return fmt::format("layers.{}.from.{}", layer, layer - distance);
}

void read_gates(const std::filesystem::path& path, const ModelConfig& config, GateBank& bank) {
  const Safetensors file(path, MappedFile::Hold::copied);
  const auto refuse = [&](const std::string& what) { throw InputError(fmt::format("{}: {}", path.string(), what)); };
  const auto format = file.metadata().find("format");
  if (format == file.metadata().end() || format->second != gate_format) {
    refuse(fmt::format("its metadata has no \"format\" of \"{}\", expected a file of `ferry calibrate gates`",
                       gate_format));
  }
  std::uint32_t depth = 0;
  while (depth < most_depth && depth + 1 < config.moe_layer_count() &&
         file.tensors().contains(gate_tensor(depth + 1, depth + 1))) {
    ++depth;
  }
  if (depth == 0) refuse(fmt::format("has no tensor \"{}\"", gate_tensor(1, 1)));
  const auto each = [&](const auto& call) {
    for (std::uint32_t layer = 1; layer < config.moe_layer_count(); ++layer) {
      for (std::uint32_t distance = 1; distance <= std::min(depth, layer); ++distance) call(layer, distance);
    }
  };
  std::size_t known = 0;
  each([&](std::uint32_t layer, std::uint32_t distance) {  // checks the whole file before it allocates
    const std::string name = gate_tensor(layer, distance);
    const Tensor& t = file.at(name);
    if (t.shape != std::vector<std::uint64_t>{config.experts, config.hidden} || t.dtype != DType::f32) {
      refuse(fmt::format("tensor \"{}\": expected F32 [{}, {}], {} experts and a hidden state of {}", name,
                         config.experts, config.hidden, config.experts, config.hidden));
    }
    ++known;
  });
  if (known != file.tensors().size()) {
    refuse(fmt::format("has {} tensors, expected {}: {} layers, each predicted from up to {} before",
                       file.tensors().size(), known, config.moe_layer_count(), depth));
  }
  bank.expect_learned(depth);
  each([&](std::uint32_t layer, std::uint32_t distance) {
    const std::string name = gate_tensor(layer, distance);
    const std::vector<float> values = file.at(name).to_floats();
    const Eigen::Map<const Matrix> gate(values.data(), config.experts, config.hidden);
    if (!gate.allFinite()) refuse(fmt::format("tensor \"{}\" has a value that is not finite", name));
    bank.set_learned(layer, distance, gate);
  });
}

}  // namespace ferry::engine
