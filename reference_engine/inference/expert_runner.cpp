#include "inference/expert_runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "ferry/error.hpp"
#include "inference/pipeline_runner.hpp"
#include "support/clock.hpp"
#include "support/errors.hpp"
#include "support/suggest.hpp"

namespace ferry::engine {
namespace {

const std::vector<RunnerEntry>& entries() {
  static const std::vector<RunnerEntry> all = [] {
    std::vector<RunnerEntry> list = baseline_runners();
    for (auto* more : {fate_runners, hobbit_runners, importance_runners}) {
      for (RunnerEntry& e : more()) list.push_back(std::move(e));
    }
    return list;
  }();
  return all;
}

const RunnerEntry& entry(const std::string& name) {
  std::vector<std::string> names;
  for (const RunnerEntry& e : entries()) {
    if (name == e.info.name) return e;
    names.push_back(e.info.name);
  }
  throw InputError(unknown_name("stack", name, names));
}

/// How fast one thread copies memory here, measured once.
double memory_bytes_per_s() {
  static const double measured = [] {
    const std::vector<std::byte> from(std::size_t{4} << 20U, std::byte{1});
    std::vector<std::byte> to(from.size());
    Nanoseconds least = 0;
    for (int i = 0; i < 4; ++i) {  // the first one touches the pages
      const Nanoseconds begin = now_ns();
      std::memcpy(to.data(), from.data(), from.size());
      const Nanoseconds took = std::max<Nanoseconds>(1, now_ns() - begin);
      if (i > 0 && (least == 0 || took < least)) least = took;
    }
    return static_cast<double>(from.size()) * 1e9 / static_cast<double>(least);
  }();
  return measured;
}

}  // namespace

Nanoseconds copy_cost(const RunnerOptions& o, const ExpertStore& store, std::uint64_t bytes) {
  if (o.virtual_costs) return o.virtual_costs->copy(bytes);
  const double per_s = o.link_bytes_per_s > 0 ? static_cast<double>(o.link_bytes_per_s) : memory_bytes_per_s();
  const double disk = store.read_bytes_per_s(), s = 1 / per_s + (disk > 0 ? 1 / disk : 0);
  return static_cast<Nanoseconds>(static_cast<double>(bytes) * 1e9 * s);
}

const std::vector<StackInfo>& all_stacks() {
  static const std::vector<StackInfo> all = [] {
    std::vector<StackInfo> list;
    for (const RunnerEntry& e : entries()) list.push_back(e.info);
    return list;
  }();
  return all;
}

const StackInfo& find_stack(const std::string& name) {
  return entry(name).info;
}

Precision precision_of_bits(std::uint32_t bits, const char* option) {
  switch (bits) {
    case 2:
      return Precision::int2;
    case 4:
      return Precision::int4;
    case 8:
      return Precision::int8;
    default:
      throw InputError(fmt::format("{} {}: expected 2, 4 or 8", option, bits));
  }
}

void check_pair(Precision low, Precision high) {
  if (low < high) return;
  const char* names[] = {"", "INT2", "INT4", "INT8", "the model's own"};
  throw ConfigError(
      fmt::format("precisions of a stack: low is {} and high is {}, expected fewer bits for low than for "
                  "high (--low-bits, --high-bits)",
                  names[static_cast<unsigned>(low)], names[static_cast<unsigned>(high)]));
}

PrecisionSet precisions_for(const StackOptions& o) {
  const StackInfo& info = find_stack(o.stack);
  const bool pair = std::find(info.parameters.begin(), info.parameters.end(), "--low-bits") != info.parameters.end();
  if (!pair || (!o.low_bits && !o.high_bits)) return info.precisions;
  const unsigned set = info.precisions.bits;  // two of them: the lower and the higher
  const Precision low = o.low_bits ? precision_of_bits(*o.low_bits) : static_cast<Precision>(std::countr_zero(set));
  const Precision high =
      o.high_bits ? precision_of_bits(*o.high_bits, "--high-bits") : static_cast<Precision>(std::bit_width(set) - 1);
  check_pair(low, high);
  return low | high;
}

ModelShape model_shape(const ModelConfig& config, const ExpertStore& store, std::uint32_t max_rows) {
  ModelShape m;
  m.renormalise = renormalise_if(config.renormalise);
  m.layers = static_cast<std::uint16_t>(config.layers);
  m.experts = static_cast<std::uint16_t>(config.experts);
  m.top_k = static_cast<std::uint16_t>(config.top_k);
  m.max_rows = max_rows;
  m.expert_bytes.resize(1);
  for (std::uint32_t p = 1; p < precision_count; ++p) {
    // The model's own is what budgets are shares of, stored or not.
    const bool sized = (store.precisions() >> p & 1U) != 0 || static_cast<Precision>(p) == Precision::full;
    if (sized) m.expert_bytes[0][p] = store.layout().bytes(static_cast<Precision>(p));
  }
  return m;
}

std::unique_ptr<ExpertRunner> make_runner(const ModelConfig& config, const ExpertStore& store, GateBank& gates,
                                          const RunnerOptions& options) {
  return entry(options.stack).build(config, store, gates, options);
}

}  // namespace ferry::engine
