#include "routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>

#include "errors.hpp"
#include "ferry/router/best.hpp"
#include "generate.hpp"
#include "machine.hpp"
#include "safetensors.hpp"

namespace ferry::bench {
namespace {

using engine::InputError;

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& what) {
  throw InputError(file.string() + ": " + what);
}

/// Every row has k distinct experts that exist in every layer; of a prompt's rows, those at all that were recorded.
void check(const Routing& r, const std::filesystem::path& file) {
  if (r.steps.empty()) refuse(file, "no tokens are recorded");
  for (const Routing::Step& step : r.steps) {
    for (std::uint32_t at = 0; at < step.rows * r.layers; ++at) {
      const std::uint32_t token = step.first + at / r.layers, layer = at % r.layers;
      const std::uint16_t* row = r.of(token, layer);
      auto bad = [&](const std::string& what) {
        refuse(file, fmt::format("token {}, layer {}: {}", token, layer, what));
      };
      const auto missing = std::count(row, row + r.top_k, no_expert);
      if (missing == r.top_k && step.phase == Phase::prefill) continue;
      if (missing > 0) bad(fmt::format("{} of {} experts are missing", missing, r.top_k));
      for (std::uint32_t i = 0; i < r.top_k; ++i) {
        if (row[i] >= r.experts) bad(fmt::format("expert {} of {}", row[i], r.experts));
        if (std::find(row, row + i, row[i]) != row + i) bad(fmt::format("expert {} stands twice", row[i]));
      }
    }
  }
}

std::uint16_t small(const std::filesystem::path& file, const std::string& name, std::uint64_t value) {
  if (value == 0 || value >= no_expert) refuse(file, fmt::format("{} is {}, expected 1 to 65534", name, value));
  return static_cast<std::uint16_t>(value);
}

Routing read_safetensors(const std::filesystem::path& path, std::uint32_t tokens) {
  const engine::Safetensors file(path);
  const engine::Tensor& experts = file.at("experts");
  const engine::Tensor& starts = file.at("sequence_start");
  if (experts.dtype_name != "U8" || experts.shape.size() != 3) {
    refuse(path, "tensor \"experts\": expected U8 of shape [tokens, layers, k]");
  }
  if (starts.dtype_name != "I32" || starts.shape.size() != 1) {
    refuse(path, "tensor \"sequence_start\": expected I32 of shape [sequences]");
  }
  Routing r;
  r.layers = small(path, "the number of layers", experts.shape[1]);
  r.top_k = small(path, "k", experts.shape[2]);
  const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(tokens, experts.shape[0]));
  const auto* data = reinterpret_cast<const std::uint8_t*>(experts.data);
  r.chosen.assign(data, data + std::size_t{count} * r.layers * r.top_k);
  const auto said = file.metadata().find("experts_per_layer");
  std::uint64_t number = 0;
  if (said != file.metadata().end()) {
    std::from_chars(said->second.data(), said->second.data() + said->second.size(), number);
  } else {
    for (const std::uint16_t e : r.chosen) number = std::max<std::uint64_t>(number, e + 1U);
  }
  r.experts = small(path, "the number of experts", number);
  for (std::uint32_t row = 0; row < count; ++row) r.steps.push_back({Phase::decode, row, 1, false});
  std::int32_t last = -1;
  for (std::uint64_t i = 0; i < starts.elements(); ++i) {
    std::int32_t start = 0;
    std::memcpy(&start, starts.data + i * sizeof(start), sizeof(start));
    if (start <= last || static_cast<std::uint64_t>(start) >= experts.shape[0] || (i == 0 && start != 0)) {
      refuse(path, fmt::format("sequence_start[{}] is {}: expected ascending tokens from 0 on", i, start));
    }
    last = start;
    if (static_cast<std::uint32_t>(start) < count) r.steps[static_cast<std::uint32_t>(start)].begins = true;
  }
  return r;
}

/// `key=` followed by a whole number, anywhere in a line.
std::uint64_t field(std::string_view line, std::string_view key) {
  const std::size_t at = line.find(key);
  std::uint64_t value = 0;
  if (at != std::string_view::npos) std::from_chars(line.data() + at + key.size(), line.data() + line.size(), value);
  return value;
}

Routing read_csv(const std::filesystem::path& path, std::uint32_t tokens) {
  std::ifstream in(path);
  if (!in) refuse(path, "cannot be read");
  Routing r;
  std::uint64_t layers = 0, experts = 0, k = 0;
  std::string line;
  bool header = false;
  for (std::size_t number = 1; std::getline(in, line); ++number) {
    auto bad = [&](const std::string& what) { refuse(path, fmt::format("line {}: {}", number, what)); };
    if (line.starts_with('#')) {
      if (line.find(" n_layer=") != std::string::npos) {
        layers = field(line, " n_layer=");
        experts = field(line, " n_expert=");
        k = field(line, " n_expert_used=");
      } else if (line.starts_with("# layer=")) {
        if (field(line, "# layer=") != r.expert_bytes.size()) bad("layers out of order");
        r.expert_bytes.push_back(field(line, " expert_bytes="));
        if (r.expert_bytes.back() == 0) bad("no expert_bytes");
      }
      continue;
    }
    if (!header) {
      if (!line.starts_with("turn,phase,step,layer,slot,expert,")) bad("expected the header turn,phase,step,layer,...");
      r.layers = small(path, "n_layer", layers);
      r.experts = small(path, "n_expert", experts);
      r.top_k = small(path, "n_expert_used", k);
      if (r.expert_bytes.size() != layers) bad("not every layer has its \"# layer=\" line");
      header = true;
      continue;
    }
    std::uint32_t column[6] = {};  // turn, phase, step, layer, slot, expert
    const char* at = line.data();
    const char* end = at + line.size();
    for (std::uint32_t& value : column) {
      const auto [next, error] = std::from_chars(at, end, value);
      if (error != std::errc{} || next == end || *next != ',') bad("expected six whole numbers first");
      at = next + 1;
    }
    const auto [turn, phase, token, layer, slot, expert] = column;
    if (turn != 0) bad("a second turn: one prompt and its answer are expected");
    if (phase > 1 || layer >= r.layers || slot >= r.top_k || expert >= r.experts) bad("a number is out of range");
    if (token >= tokens) continue;
    if (token > r.rows()) bad(fmt::format("token {} comes after {} tokens", token, r.rows()));
    if (token == r.rows()) {
      const bool begins = r.steps.empty();
      if (phase == 0 && !begins) {
        if (r.steps.size() > 1) bad("prefill after decode");
        ++r.steps[0].rows;
      } else {
        r.steps.push_back({phase == 0 ? Phase::prefill : Phase::decode, token, 1, begins});
      }
      r.chosen.resize(r.chosen.size() + std::size_t{r.layers} * r.top_k, no_expert);
    }
    r.chosen[(std::size_t{token} * r.layers + layer) * r.top_k + slot] = static_cast<std::uint16_t>(expert);
  }
  return r;
}

}  // namespace

std::uint32_t Routing::most_rows() const {
  std::uint32_t most = 0;
  for (const Step& s : steps) most = std::max(most, s.rows);
  return most;
}

std::uint32_t Routing::sequences() const {
  std::uint32_t n = 0;
  for (const Step& s : steps) n += s.begins ? 1 : 0;
  return n;
}

void Routing::asked(const Step& step, std::uint32_t layer, std::vector<std::uint16_t>& out) const {
  out.clear();
  for (std::uint32_t row = step.first; row < step.first + step.rows; ++row) {
    const std::uint16_t* experts_of_row = of(row, layer);
    for (std::uint32_t i = 0; i < top_k; ++i) {
      const std::uint16_t e = experts_of_row[i];
      if (e == no_expert) continue;
      if (step.rows > 1) std::erase(out, e);
      out.push_back(e);
    }
  }
}

Routing read_routing(const std::filesystem::path& file, std::uint32_t tokens) {
  Routing r = file.extension() == ".csv" ? read_csv(file, tokens) : read_safetensors(file, tokens);
  r.name = file.stem().stem().string();
  check(r, file);
  return r;
}

Routing record_routing(const std::string& name, const std::filesystem::path& text, std::uint32_t tokens) {
  constexpr std::uint32_t window = 256;
  std::ifstream in(text, std::ios::binary);
  std::stringstream content;
  content << in.rdbuf();
  if (!in) refuse(text, "cannot be read");
  const std::string bytes = content.str();
  std::error_code none;
  const auto bundled = engine::data_directory() / "models" / name;
  engine::HostModel model(std::filesystem::is_directory(name, none) ? std::filesystem::path(name) : bundled);
  const engine::ModelConfig& c = model.config();
  if (c.context <= window) {
    throw InputError(fmt::format("{}: its context is {}, sequences of {} are needed", name, c.context, window + 1));
  }
  engine::RunnerOptions options;
  options.stack = "resident";
  options.max_rows = window + 1;
  const auto runner = engine::make_runner(c, model.store(), model.gates(), options);

  Routing r;
  r.name = std::filesystem::path(name).filename().string();
  r.layers = static_cast<std::uint16_t>(c.layers);
  r.experts = static_cast<std::uint16_t>(c.experts);
  r.top_k = static_cast<std::uint16_t>(c.top_k);
  std::vector<Route> best(r.top_k);
  for (std::size_t at = 0; at < bytes.size() && r.rows() < tokens; at += window) {
    std::vector<std::uint32_t> sequence = engine::tokenize(c, bytes.substr(at, window));
    sequence.resize(std::min<std::size_t>(sequence.size(), tokens - r.rows()));
    const auto rows = static_cast<std::uint32_t>(sequence.size()), first = r.rows();
    std::vector<engine::TokenRow> in_model;
    for (std::uint32_t i = 0; i < rows; ++i) {
      in_model.push_back({0, sequence[i], i});
      r.steps.push_back({Phase::decode, first + i, 1, i == 0});
    }
    r.chosen.resize(std::size_t{first + rows} * r.layers * r.top_k);
    r.scores.resize(std::size_t{first + rows} * r.layers * r.experts);
    std::vector<engine::KvCache> caches;
    caches.emplace_back(c, rows);
    model.forward(Phase::prefill, in_model, caches, *runner, 1,
                  [&](std::uint32_t layer, const engine::Matrix&, const engine::Matrix& scores) {
                    for (std::uint32_t i = 0; i < rows; ++i) {
                      const std::size_t place = std::size_t{first + i} * r.layers + layer;
                      float* row = r.scores.data() + place * r.experts;
                      Eigen::Map<Eigen::RowVectorXf>(row, r.experts) = scores.row(i);
                      best_of(row, r.experts, r.top_k, best.data());
                      for (std::uint32_t b = 0; b < r.top_k; ++b) r.chosen[place * r.top_k + b] = best[b].expert;
                    }
                  });
    runner->end_sequence(0);
    if (at / window % 16 == 0) std::fprintf(stderr, "%s: %u tokens recorded\n", r.name.c_str(), r.rows());
  }
  check(r, text);
  return r;
}

}  // namespace ferry::bench
