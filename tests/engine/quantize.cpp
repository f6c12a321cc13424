// Experts at low precision: bytes and groups worked by hand, and a decoder written from the documented layout alone.
#include "quantize.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/prompts.hpp"
#include "engine/tiny_checkpoint.hpp"
#include "generate.hpp"

namespace {

using namespace ferry;
using namespace ferry::engine;

constexpr Precision low_precisions[] = {Precision::int8, Precision::int4, Precision::int2};

std::filesystem::path folder_of(const std::string& model) {
  return std::filesystem::path(FERRY_MODELS) / model;
}

std::vector<std::byte> coded(const QuantizedLayout& layout, const std::vector<float>& weights) {
  std::vector<std::byte> out(layout.bytes(), std::byte{0xee});
  quantize(layout, weights.data(), out.data());
  return out;
}

std::vector<float> decoded(const QuantizedLayout& layout, const std::vector<std::byte>& bytes) {
  std::vector<float> out(std::size_t{layout.rows} * layout.columns);
  dequantize(layout, bytes.data(), out.data());
  return out;
}

std::vector<float> round_trip(const QuantizedLayout& layout, const std::vector<float>& weights) {
  return decoded(layout, coded(layout, weights));
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
  const bool mixtral = c.architecture == Architecture::mixtral;
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

/// No weight is moved by more than half a step of its group, give or take float's own rounding.
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
  // Ragged: 70 columns are a group of 64 and one of 6. 3 * 70 = 210 bytes fill 256, 3 * 2 groups of 8 fill 64.
  CHECK(QuantizedLayout{3, 70, 8}.bytes() == 256 + 64);
  CHECK(QuantizedLayout{3, 70, 4}.bytes() == 128 + 64);  // 3 * 35 = 105
  CHECK(QuantizedLayout{3, 70, 2}.bytes() == 64 + 64);   // 70 * 2 = 140 bits are 18 bytes, 3 * 18 = 54
  // Differing matrices: 9 x 70 at 4 bits: 9 * 35 = 315 fill 320, 9 * 2 * 8 = 144 fill 192;
  // 70 x 9: 70 * 5 = 350 fill 384, 70 * 8 = 560 fill 576.
  CHECK(ExpertLayout{70, 9, DType::f32}.bytes(Precision::int4) == 2 * (320 + 192) + (384 + 576));
}

TEST_CASE("groups worked by hand: codes, packing, scale and minimum") {
  struct Known {
    unsigned bits;
    std::vector<float> weights;
    float scale, minimum;
    std::vector<unsigned> codes;  // bytes
    std::vector<float> rounded;
  };
  const Known all[] = {
      {2, {0, 1, 2, 3}, 1, 0, {0b11'10'01'00}, {0, 1, 2, 3}},
      {2, {3, 2, 1, 0, 3}, 1, 0, {0b00'01'10'11, 0b11}, {3, 2, 1, 0, 3}},
      // (0.5 + 1) / 1 = 1.5 is half way and goes up; (0.25 + 1) / 1 = 1.25 goes down.
      {2, {-1, 0.5, 2, 0.25}, 1, -1, {0b01'11'10'00}, {-1, 1, 2, 0}},
      {2, {-0.75, -0.5, 0.75}, 0.5, -0.75, {0b11'01'00}, {-0.75, -0.25, 0.75}},
      {4, {-8, 7, 0.25}, 1, -8, {0xf0, 0x08}, {-8, 7, 0}},
      {4, {30, 0, 13}, 2, 0, {0x0f, 0x07}, {30, 0, 14}},  // 13 / 2 = 6.5 goes up
      {8, {0, 255, 100.25, 100.5}, 1, 0, {0, 255, 100, 101}, {0, 255, 100, 101}},
      {8, {-2, 125.5, 3}, 0.5, -2, {0, 255, 10}, {-2, 125.5, 3}},
  };
  for (const Known& k : all) {
    CAPTURE(k.bits);
    CAPTURE(k.weights[0]);
    const QuantizedLayout layout{1, static_cast<std::uint32_t>(k.weights.size()), k.bits};
    const auto bytes = coded(layout, k.weights);
    REQUIRE(bytes.size() == 128);
    for (std::size_t i = 0; i < 64; ++i) {
      CHECK(std::to_integer<unsigned>(bytes[i]) == (i < k.codes.size() ? k.codes[i] : 0));
    }
    CHECK(float_at(bytes.data(), 64) == k.scale);
    CHECK(float_at(bytes.data(), 68) == k.minimum);
    for (std::size_t i = 72; i < 128; ++i) CHECK(bytes[i] == std::byte{0});
    CHECK(decoded(layout, bytes) == k.rounded);
  }
}

TEST_CASE("ragged rows: where each row and group lies") {
  // Two rows of 66 at 4 bits: 33 bytes of codes a row, groups at 128: (0, 0), (0, 1), (1, 0), (1, 1).
  const QuantizedLayout layout{2, 66, 4};
  std::vector<float> weights(132, 0.0F);
  weights[1] = 15;                      // row 0, group 0: scale 1, minimum 0
  weights[64] = -1, weights[65] = 6.5;  // row 0, group 1: scale 0.5, minimum -1
  weights[66] = 45;                     // row 1, group 0: scale 3, minimum 0
  weights[130] = 7, weights[131] = 7;   // row 1, group 1: scale 0, minimum 7
  const auto bytes = coded(layout, weights);
  REQUIRE(bytes.size() == 192);
  std::vector<unsigned> codes(66, 0);
  codes[0] = 0xf0;
  codes[32] = 0xf0;
  codes[33] = 0x0f;
  for (std::size_t i = 0; i < 128; ++i) CHECK(std::to_integer<unsigned>(bytes[i]) == (i < 66 ? codes[i] : 0));
  const float groups[] = {1, 0, 0.5, -1, 3, 0, 0, 7};
  for (std::size_t i = 0; i < 8; ++i) CHECK(float_at(bytes.data(), 128 + 4 * i) == groups[i]);
  for (std::size_t i = 160; i < 192; ++i) CHECK(bytes[i] == std::byte{0});
  CHECK(decoded(layout, bytes) == weights);
}

TEST_CASE("random matrices of any shape are within half a step, and decode as documented") {
  test::Random random(5);
  for (const std::uint32_t columns : {1U, 3U, 5U, 63U, 64U, 65U, 127U, 129U, 200U}) {
    for (const unsigned bits : {8U, 4U, 2U}) {
      CAPTURE(columns);
      CAPTURE(bits);
      const QuantizedLayout layout{3, columns, bits};
      std::vector<float> weights(3 * columns);
      for (float& w : weights) w = random.unit() - 0.5F;
      const auto bytes = coded(layout, weights);
      const auto rounded = decoded(layout, bytes);
      check_error(weights.data(), rounded.data(), 3, columns, bits);
      std::vector<float> naive;
      CHECK(decode(bytes.data(), 3, columns, bits, naive) == bytes.size());
      CHECK(rounded == naive);
    }
  }
}

TEST_CASE("equal weights are exact, and so are the largest floats, the smallest are no trouble") {
  constexpr float most = std::numeric_limits<float>::max(), least = std::numeric_limits<float>::denorm_min();
  for (const unsigned bits : {8U, 4U, 2U}) {
    CAPTURE(bits);
    for (const float w : {0.1F, -3.7F, 0.0F, most, -most, least}) {
      const std::vector<float> weights(64, w);
      CHECK(round_trip({1, 64, bits}, weights) == weights);
    }
    const std::vector<float> ends{-most, most, -most};  // their distance is no float
    CHECK(round_trip({1, 3, bits}, ends) == ends);
    // The step between these is no float: every code is 0.
    CHECK(round_trip({1, 2, bits}, {0, least}) == std::vector<float>{0, 0});
  }
  // A step of 4/3 becomes 1, the nearest float: 4 is then beyond the last code.
  CHECK(round_trip({1, 3, 2}, {0, 4 * least, 0}) == std::vector<float>{0, 3 * least, 0});
}

TEST_CASE("a group with a NaN or an infinity becomes NaN, its neighbours do not") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const unsigned bits : {8U, 4U, 2U}) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
      for (const std::size_t at : {0U, 64U, 100U, 127U, 129U}) {
        CAPTURE(bits);
        CAPTURE(bad);
        CAPTURE(at);
        std::vector<float> weights(130, 0.5F);
        weights[at] = bad;
        const auto rounded = round_trip({1, 130, bits}, weights);
        for (std::size_t i = 0; i < weights.size(); ++i) {
          if (i / 64 == at / 64) {
            CHECK(std::isnan(rounded[i]));
          } else {
            CHECK(rounded[i] == 0.5F);
          }
        }
      }
    }
    const QuantizedLayout layout{2, 70, bits};  // a poisoned slot
    for (const float w : decoded(layout, std::vector<std::byte>(layout.bytes(), std::byte{0xff}))) {
      CHECK(std::isnan(w));
    }
  }
}

void check_expert(const ExpertStore& store, ExpertId id, const std::vector<float>& full) {
  const ExpertLayout& l = store.layout();
  const std::size_t matrix = std::size_t{l.hidden} * l.width;
  for (const Precision p : low_precisions) {
    const unsigned bits = p == Precision::int8 ? 8 : p == Precision::int4 ? 4 : 2;
    CAPTURE(bits);
    const View<const std::byte> bytes = store.bytes({id, p});
    REQUIRE(bytes.size == l.bytes(p));
    const std::vector<float> rounded = decode_expert(bytes, l, bits);
    REQUIRE(rounded.size() == full.size());
    check_error(full.data(), rounded.data(), l.width, l.hidden, bits);
    check_error(full.data() + matrix, rounded.data() + matrix, l.width, l.hidden, bits);
    check_error(full.data() + 2 * matrix, rounded.data() + 2 * matrix, l.hidden, l.width, bits);

    // The same floats as an expert of a float32 checkpoint.
    ExpertKernel kernel(l), plain(ExpertLayout{l.hidden, l.width, DType::f32});
    test::Random random(23);
    for (const Eigen::Index rows : {1, 3, 12}) {
      Matrix x(rows, l.hidden), y, expected;
      for (float& v : x.reshaped()) v = random.unit() * 4 - 2;
      kernel.run(bytes.data, p, x, y);
      plain.run(reinterpret_cast<const std::byte*>(rounded.data()), Precision::full, x, expected);
      REQUIRE(y.allFinite());
      CHECK(y == expected);
    }
  }
}

void check_store(const std::filesystem::path& folder) {
  const ModelConfig c = read_model_config(folder);
  const Checkpoint checkpoint(folder);
  ExpertStore store(checkpoint, c);
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
  const ExpertStore plain(checkpoint, c);
  ExpertStore store(checkpoint, c), again(checkpoint, c);
  CHECK(ExpertStore().precisions() == 0);
  CHECK(plain.precisions() == 0b10000);
  CHECK(plain.bytes({{1, 3}, Precision::int4}).size == 0);
  store.add(Precision::int4);
  CHECK(store.precisions() == 0b10100);
  CHECK(store.bytes({{1, 3}, Precision::int8}).size == 0);
  store.add(Precision::skip);
  store.add(Precision::full);
  CHECK(store.precisions() == 0b10100);
  const std::byte* before = store.bytes({{0, 0}, Precision::int4}).data;
  store.add(Precision::int4);
  CHECK(store.bytes({{0, 0}, Precision::int4}).data == before);
  store.add(Precision::int2);
  store.add(Precision::int8);
  CHECK(store.precisions() == 0b11110);
  for (const Precision p : {Precision::int8, Precision::int4, Precision::int2}) again.add(p);  // in another order
  auto same = [](View<const std::byte> a, View<const std::byte> b) {
    return a.size == b.size && a.size > 0 && std::memcmp(a.data, b.data, a.size) == 0;
  };
  for (std::uint16_t l = 0; l < 2; ++l) {
    for (std::uint16_t e = 0; e < 4; ++e) {
      CHECK(same(store.bytes({{l, e}, Precision::full}), plain.bytes({{l, e}, Precision::full})));
      for (const Precision p : low_precisions) CHECK(same(store.bytes({{l, e}, p}), again.bytes({{l, e}, p})));
    }
  }
}

/// The experts of a model after a round trip, as a store whose full precision they are.
ExpertStore rounded_store(const std::filesystem::path& model, const ModelConfig& c, unsigned bits) {
  const test::TemporaryFolder folder;
  const Safetensors file(model / "model.safetensors");
  test::Json header = test::Json::object();
  std::string data;
  for (const auto& [name, t] : file.tensors()) {
    if (name.find(".experts.") == std::string::npos) continue;
    const QuantizedLayout layout{static_cast<std::uint32_t>(t.shape[0]), static_cast<std::uint32_t>(t.shape[1]), bits};
    const auto rounded = round_trip(layout, t.to_floats());
    const std::size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(rounded.data()), rounded.size() * sizeof(float));
    header[name] = {{"dtype", "F32"}, {"shape", t.shape}, {"data_offsets", {begin, data.size()}}};
  }
  test::write_file(folder.path() / "model.safetensors", test::safetensors_file(header.dump(), data));
  return ExpertStore(Checkpoint(folder.path()), c);
}

double bits_per_byte(HostModel& model, const ExpertStore& store) {
  RunnerOptions o;
  o.stack = "resident";
  o.max_rows = 256;
  const auto runner = make_runner(model.config(), store, model.gates(), o);
  double nats = 0;
  std::size_t scored = 0;
  for (const std::string& text : test::prompts()) {
    const auto tokens = tokenize(model.config(), text);
    std::vector<KvCache> caches;
    caches.emplace_back(model.config(), static_cast<std::uint32_t>(tokens.size()));
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
  HostModel model(folder_of(name));
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

}  // namespace
