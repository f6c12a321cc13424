// Experts at low precision: bytes worked by hand, a decoder written from the documented layout alone, and the errors of
// the public hqq package.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "checkpoint/safetensors.hpp"
#include "cpu/cpu_device.hpp"
#include "cpu/cpu_model.hpp"
#include "engine/fixtures/paths.hpp"
#include "engine/fixtures/prompts.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "ferry/codec/hqq.hpp"
#include "ferry/codec/round_to_nearest.hpp"
#include "inference/generate.hpp"
#include "math/expert_kernel.hpp"
#include "store/pack.hpp"
#include "support/errors.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;

constexpr Precision low_precisions[] = {Precision::int8, Precision::int4, Precision::int2};

std::filesystem::path folder_of(const std::string& model) {
  return test::model_folder(model);
}

template <class Fit>
std::vector<float> round_trip(const PackedLayout& layout, const std::vector<float>& weights, const Fit& fit) {
  std::vector<std::byte> packed(layout.bytes());
  REQUIRE(pack(layout, weights.data(), packed.data(), fit) == no_weight);
  std::vector<float> out(weights.size());
  for (std::uint32_t row = 0; row < layout.rows; ++row) {
    unpack_row(layout, packed.data(), row, out.data() + std::size_t{row} * layout.columns);
  }
  return out;
}

float float_at(const std::byte* bytes, std::size_t at) {
  float f = 0;
  std::memcpy(&f, bytes + at, sizeof(f));
  return f;
}

/// The documented layout, bit by bit. Returns the bytes of the matrix.
std::size_t decode(const std::byte* from, std::size_t rows, std::size_t columns, unsigned bits,
                   std::vector<float>& out) {
  const std::size_t row_bytes = (columns * bits + 7) / 8, row_groups = (columns + 63) / 64;
  const std::size_t groups_at = (rows * row_bytes + 63) / 64 * 64;
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      unsigned q = 0;
      for (unsigned b = 0; b < bits; ++b) {
        const std::size_t bit = c * bits + b;
        const auto byte = std::to_integer<unsigned>(from[r * row_bytes + bit / 8]);
        q += (byte >> (bit % 8) & 1U) << b;
      }
      const std::size_t group = groups_at + (r * row_groups + c / 64) * 8;
      const double scale = float_at(from, group), minimum = float_at(from, group + 4);
      out.push_back(static_cast<float>(minimum + q * scale));
    }
  }
  return groups_at + (rows * row_groups * 8 + 63) / 64 * 64;
}

/// One expert as floats: gate, up, down.
std::vector<float> decode_expert(View<const std::byte> bytes, const ExpertLayout& l, unsigned bits) {
  std::vector<float> out;
  std::size_t at = 0;
  at += decode(bytes.data + at, l.width, l.hidden, bits, out);
  at += decode(bytes.data + at, l.width, l.hidden, bits, out);
  at += decode(bytes.data + at, l.hidden, l.width, bits, out);
  REQUIRE(at == bytes.size);
  return out;
}

/// One expert at full precision as floats, read off the checkpoint.
std::vector<float> full_expert(const Checkpoint& checkpoint, const ModelConfig& c, ExpertId id) {
  const bool mixtral = c.architecture_name == "MixtralForCausalLM";
  const std::string at = "model.layers." + std::to_string(id.layer) +
                         (mixtral ? ".block_sparse_moe.experts." : ".mlp.experts.") + std::to_string(id.expert) + ".";
  std::vector<float> out;
  for (int part = 0; part < 3; ++part) {
    const char* ours[] = {"gate_proj", "up_proj", "down_proj"};
    const char* theirs[] = {"w1", "w3", "w2"};
    std::vector<std::uint64_t> shape{c.expert_width, c.hidden};
    if (part == 2) std::swap(shape[0], shape[1]);
    const auto floats = checkpoint.at(at + (mixtral ? theirs : ours)[part] + ".weight", shape).to_floats();
    out.insert(out.end(), floats.begin(), floats.end());
  }
  return out;
}

/// Checks that no weight moved by more than half a step of its group, give or take float's own rounding.
void check_error(const float* weights, const float* rounded, std::size_t rows, std::size_t columns, unsigned bits) {
  std::size_t beyond = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t first = 0; first < columns; first += 64) {
      const float* w = weights + r * columns + first;
      const float* d = rounded + r * columns + first;
      const std::size_t count = std::min<std::size_t>(64, columns - first);
      const double low = *std::min_element(w, w + count), high = *std::max_element(w, w + count);
      const double half_step = (high - low) / ((1 << bits) - 1) / 2;
      const double float_error = std::max(std::abs(low), std::abs(high)) * 0x1p-22;
      for (std::size_t i = 0; i < count; ++i) {
        if (!(std::abs(double{w[i]} - double{d[i]}) <= half_step + float_error)) ++beyond;
      }
    }
  }
  CHECK(beyond == 0);
}

TEST_CASE("bytes of an expert at each precision are those worked by hand") {
  // 64 x 128 weights have 64 * 128 codes and 64 * 2 groups of 8 bytes; 128 x 64 weights have 128 * 64 and 128 * 1.
  const ExpertLayout qwen{128, 64, DType::bf16};
  CHECK(qwen.bytes() == 3 * 8192 * 2);
  CHECK(qwen.bytes(Precision::full) == 3 * 8192 * 2);
  CHECK(qwen.bytes(Precision::int8) == 3 * (8192 + 1024));
  CHECK(qwen.bytes(Precision::int4) == 3 * (4096 + 1024));
  CHECK(qwen.bytes(Precision::int2) == 3 * (2048 + 1024));
  CHECK(qwen.bytes(Precision::skip) == 0);
  // 192 x 128: 192 * 2 groups; 128 x 192: 128 * 3 groups: the same.
  const ExpertLayout mixtral{128, 192, DType::bf16};
  CHECK(mixtral.bytes(Precision::full) == 3 * 24576 * 2);
  CHECK(mixtral.bytes(Precision::int8) == 3 * (24576 + 3072));
  CHECK(mixtral.bytes(Precision::int4) == 3 * (12288 + 3072));
  CHECK(mixtral.bytes(Precision::int2) == 3 * (6144 + 3072));
  CHECK(ExpertLayout{128, 192, DType::f32}.bytes(Precision::int4) == 3 * (12288 + 3072));
  // Differing matrices: 9 x 70 at 4 bits: 9 * 35 = 315 fill 320, 9 * 2 * 8 = 144 fill 192;
  // 70 x 9: 70 * 5 = 350 fill 384, 70 * 8 = 560 fill 576.
  CHECK(ExpertLayout{70, 9, DType::f32}.bytes(Precision::int4) == 2 * (320 + 192) + (384 + 576));
}

void check_expert(const ExpertStore& store, ExpertId id, const std::vector<float>& full) {
  const ExpertLayout& l = store.layout();
  const std::size_t matrix = std::size_t{l.hidden} * l.width;
  for (const Precision p : low_precisions) {
    const unsigned bits = p == Precision::int8 ? 8 : p == Precision::int4 ? 4 : 2;
    CAPTURE(bits);
    const View<const std::byte> bytes = store.bytes({id, p}).view;
    REQUIRE(bytes.size == l.bytes(p));
    const std::vector<float> rounded = decode_expert(bytes, l, bits);
    REQUIRE(rounded.size() == full.size());
    check_error(full.data(), rounded.data(), l.width, l.hidden, bits);
    check_error(full.data() + matrix, rounded.data() + matrix, l.width, l.hidden, bits);
    check_error(full.data() + 2 * matrix, rounded.data() + 2 * matrix, l.hidden, l.width, bits);

    // The same as an expert of a float32 checkpoint, except for the order of sums.
    ExpertKernel kernel(l), plain(ExpertLayout{l.hidden, l.width, DType::f32});
    test::Random random(23);
    for (const Eigen::Index rows : {1, 3, 12}) {
      Matrix x(rows, l.hidden), y, expected;
      for (float& v : x.reshaped()) v = random.unit() * 4 - 2;
      kernel.run(bytes.data, p, x, y);
      plain.run(reinterpret_cast<const std::byte*>(rounded.data()), Precision::full, x, expected);
      REQUIRE(y.allFinite());
      CHECK((y - expected).norm() < 1e-5F * expected.norm());
    }
  }
}

void check_store(const std::filesystem::path& folder) {
  const ModelConfig c = read_model_config(folder);
  const Checkpoint checkpoint(folder);
  MemoryStore store(checkpoint, c);
  for (const Precision p : low_precisions) store.add(p);
  const auto last_layer = static_cast<std::uint16_t>(c.layers - 1), last = static_cast<std::uint16_t>(c.experts - 1);
  for (const ExpertId id : {ExpertId{0, 0}, ExpertId{0, last}, ExpertId{1, 1}, ExpertId{last_layer, last}}) {
    CAPTURE(id.layer);
    CAPTURE(id.expert);
    check_expert(store, id, full_expert(checkpoint, c, id));
  }
}

TEST_CASE("tiny-qwen-moe: stored experts are within half a step, and run as if decoded by hand") {
  check_store(folder_of("tiny-qwen-moe"));
}
TEST_CASE("tiny-mixtral: stored experts are within half a step, and run as if decoded by hand") {
  check_store(folder_of("tiny-mixtral"));
}
TEST_CASE("ragged experts of every type are within half a step, and run as if decoded by hand") {
  for (const std::string type : {"F32", "F16", "BF16"}) {
    CAPTURE(type);
    const test::TemporaryFolder folder;
    test::TinyCheckpoint().write(folder.path(), type);
    check_store(folder.path());
  }
}

TEST_CASE("a store holds full precision and what was added, the same bytes each time") {
  const test::TemporaryFolder folder;
  test::TinyCheckpoint().write(folder.path(), "BF16");
  const ModelConfig c = read_model_config(folder.path());
  const Checkpoint checkpoint(folder.path());
  const MemoryStore plain(checkpoint, c);
  MemoryStore store(checkpoint, c), again(checkpoint, c);
  CHECK(plain.precisions() == 0b10000);
  CHECK(plain.bytes({{1, 3}, Precision::int4}).view.size == 0);
  store.add(Precision::int4);
  CHECK(store.precisions() == 0b10100);
  CHECK(store.bytes({{1, 3}, Precision::int8}).view.size == 0);
  store.add(Precision::skip);
  store.add(Precision::full);
  CHECK(store.precisions() == 0b10100);
  const std::byte* before = store.bytes({{0, 0}, Precision::int4}).view.data;
  store.add(Precision::int4);
  CHECK(store.bytes({{0, 0}, Precision::int4}).view.data == before);
  store.add(Precision::int2);
  store.add(Precision::int8);
  CHECK(store.precisions() == 0b11110);
  for (const Precision p : {Precision::int8, Precision::int4, Precision::int2}) again.add(p);  // in another order
  auto same = [](const HeldBytes& held, const HeldBytes& other) {
    const View<const std::byte> a = held.view, b = other.view;
    return a.size == b.size && a.size > 0 && std::memcmp(a.data, b.data, a.size) == 0;
  };
  for (std::uint16_t l = 0; l < 2; ++l) {
    for (std::uint16_t e = 0; e < 4; ++e) {
      CHECK(same(store.bytes({{l, e}, Precision::full}), plain.bytes({{l, e}, Precision::full})));
      for (const Precision p : low_precisions) CHECK(same(store.bytes({{l, e}, p}), again.bytes({{l, e}, p})));
    }
  }
  // Loaded at two precisions, and nothing else is held.
  std::uint64_t done = 0;
  LoadOptions o{.precisions = Precision::int8 | Precision::int2};
  o.progress = [&](std::uint64_t n, std::uint64_t all) { return all == 8 && n == done++; };
  MemoryStore low(checkpoint, c, o);
  CHECK(done == 9);
  CHECK(low.precisions() == 0b01010);
  CHECK(low.fixed_memory().size() == 2);
  for (std::uint16_t e = 0; e < 4; ++e) {
    for (const Precision p : {Precision::int8, Precision::int2}) {
      CHECK(same(low.bytes({{1, e}, p}), store.bytes({{1, e}, p})));
    }
  }
  low.add(Precision::int2);
  CHECK_THROWS_WITH_AS(low.add(Precision::int4), doctest::Contains("experts at int4 are needed"), InputError);
}

TEST_CASE("a checkpoint with a weight that is not finite is refused at low precision by the tensor's name") {
  const std::string name = "model.layers.1.block_sparse_moe.experts.2.w2.weight";  // [8, 6]
  test::TinyCheckpoint checkpoint;
  checkpoint.values[name][5 * 6 + 3] = -std::numeric_limits<float>::infinity();
  const test::TemporaryFolder folder;
  checkpoint.write(folder.path());
  MemoryStore store(Checkpoint(folder.path()), read_model_config(folder.path()));
  const std::string expected = "tensor \"" + name + "\": the weight at [5, 3] is -inf, which int4 cannot hold";
  CHECK_THROWS_WITH_AS(store.add(Precision::int4), expected.c_str(), InputError);
  CHECK(store.precisions() == 0b10000);

  PackOptions o;
  o.precisions = {"int4"};
  CHECK_THROWS_WITH_AS(static_cast<void>(pack_store(folder.path(), folder.path() / "s.ferry", o)), expected.c_str(),
                       InputError);
  CHECK_FALSE(std::filesystem::exists(folder.path() / "s.ferry.part"));  // nothing could come of it
}

/// A model's experts after a round trip through `bits`, as a store that holds them at full precision.
MemoryStore rounded_store(const std::filesystem::path& model, const ModelConfig& c, unsigned bits) {
  const test::TemporaryFolder folder;
  const Safetensors file(model / "model.safetensors");
  test::Json header = test::Json::object();
  std::string data;
  for (const auto& [name, t] : file.tensors()) {
    if (name.find(".experts.") == std::string::npos) continue;
    const PackedLayout layout{static_cast<std::uint32_t>(t.shape[0]), static_cast<std::uint32_t>(t.shape[1]), bits};
    const auto rounded = round_trip(layout, t.to_floats(), RoundToNearest{});
    const std::size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(rounded.data()), rounded.size() * sizeof(float));
    header[name] = {{"dtype", "F32"}, {"shape", t.shape}, {"data_offsets", {begin, data.size()}}};
  }
  test::write_file(folder.path() / "model.safetensors", test::safetensors_file(header.dump(), data));
  return MemoryStore(Checkpoint(folder.path()), c);
}

double bits_per_byte(CpuModel& model, const ExpertStore& store) {
  RunnerOptions o;
  o.stack = "resident";
  o.max_rows = 256;
  o.make_device = make_cpu_device;
  const auto runner = make_runner(model.config(), store, model.gates(), o);
  double nats = 0;
  std::size_t scored = 0;
  for (const std::string& text : test::prompts()) {
    const auto tokens = tokenize(model, text);
    std::vector<KvCache> caches;
    caches.push_back(model.make_cache(static_cast<std::uint32_t>(tokens.size())));
    std::vector<TokenRow> rows;
    for (std::uint32_t i = 0; i + 1 < tokens.size(); ++i) rows.push_back({0, tokens[i], i});
    const Matrix logits = model.forward(Phase::prefill, rows, caches, *runner, static_cast<std::uint32_t>(rows.size()));
    for (Eigen::Index i = 0; i < logits.rows(); ++i) {
      const Eigen::ArrayXd l = logits.row(i).cast<double>();
      const double top = l.maxCoeff();
      nats += top + std::log((l - top).exp().sum()) - l[tokens[static_cast<std::size_t>(i) + 1]];
      ++scored;
    }
  }
  return nats / std::log(2.0) / static_cast<double>(scored);
}

/// A loose check on a short text: what low precision costs stays small, and less precision costs more.
void check_quality(const std::string& name) {
  CpuModel model(folder_of(name));
  auto cost = [&](unsigned bits) { return bits_per_byte(model, rounded_store(folder_of(name), model.config(), bits)); };
  const double full = bits_per_byte(model, model.store()), int8 = cost(8), int4 = cost(4), int2 = cost(2);
  MESSAGE(name << ": bits a byte " << full << ", INT8 " << int8 << ", INT4 " << int4 << ", INT2 " << int2);
  constexpr double noise = 0.005;  // of the bits a byte
  CHECK(std::abs(int8 / full - 1) < 0.01);
  CHECK(int8 <= int4 * (1 + noise));
  CHECK(int4 <= int2 * (1 + noise));
  CHECK(int2 / full < 1.2);
}

TEST_CASE("tiny-qwen-moe: INT8 costs next to nothing, INT4 no less, INT2 no less") {
  check_quality("tiny-qwen-moe");
}
TEST_CASE("tiny-mixtral: INT8 costs next to nothing, INT4 no less, INT2 no less") {
  check_quality("tiny-mixtral");
}

/// Mean of |a - b|, and of its power.
std::pair<double, double> mean_errors(const std::vector<float>& a, const std::vector<float>& b, double power) {
  double sum = 0, powers = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(double{a[i]} - double{b[i]});
    sum += error;
    powers += std::pow(error, power);
  }
  return {sum / static_cast<double>(a.size()), powers / static_cast<double>(a.size())};
}

TEST_CASE("HQQ reconstructs the models' experts as the hqq package does, within 2%") {
  const test::Json golden = read_json(test::golden_file("hqq.json"));
  double furthest = 0;
  std::size_t compared = 0;
  for (const test::Json& matrix : golden["matrices"]) {
    const std::string model = matrix["model"], name = matrix["tensor"];
    CAPTURE(name);
    const Safetensors file(folder_of(model) / "model.safetensors");
    REQUIRE(file.at(name).shape == matrix["shape"].get<std::vector<std::uint64_t>>());
    const std::vector<float> stored = file.at(name).to_floats();
    const double magnitude = mean_errors(stored, std::vector<float>(stored.size()), 1).first;
    REQUIRE(std::abs(magnitude / matrix["mean_magnitude"].get<double>() - 1) < 1e-12);
    for (const test::Json& errors : matrix["errors"]) {
      CAPTURE(errors.dump());
      auto off = [&](double ours, const char* theirs) { return std::abs(ours / errors[theirs].get<double>() - 1); };
      const PackedLayout layout{matrix["shape"][0], matrix["shape"][1], errors["bits"], errors["group"]};
      std::vector<float> weights = stored;
      for (float& w : weights) w *= errors["factor"].get<float>();
      const auto [hqq, power] = mean_errors(weights, round_trip(layout, weights, Hqq{}), golden["power"]);
      const double nearest = mean_errors(weights, round_trip(layout, weights, RoundToNearest{}), 1).first;
      CHECK(off(hqq, "hqq_mean_error") < 0.02);
      CHECK(off(power, "hqq_mean_error_power") < 0.02);
      CHECK(off(nearest, "nearest_mean_error") < 1e-4);
      CHECK(hqq < nearest);
      furthest = std::max({furthest, off(hqq, "hqq_mean_error"), off(power, "hqq_mean_error_power")});
      ++compared;
    }
  }
  CHECK(compared == 96);
  MESSAGE("errors within " << 100 * furthest << "% of the package's");
}

}  // namespace
