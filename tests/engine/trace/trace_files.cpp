// Trace files and imports: what is written is read again, bit for bit; files from strangers get one
// line each that says where and why.
#include "trace/trace_file.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <thread>

#include "engine/fixtures/refusal.hpp"
#include "engine/fixtures/tiny_checkpoint.hpp"
#include "engine/fixtures/tiny_shape.hpp"
#include "ferry/error.hpp"
#include "sim/simulate.hpp"
#include "support/errors.hpp"
#include "support/quick.hpp"

using namespace ferry;
using namespace ferry::engine;
using namespace ferry::test;

namespace {

using Path = std::filesystem::path;
using Shape64 = std::vector<std::uint64_t>;

std::size_t files_in(const Path& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

std::string read_bytes(const Path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <class T>
std::string raw_bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// Compares bits, so that -0 differs from 0.
bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

// A trace as its file has it, made without the code under test.

struct RawTensor {
  std::string name, type;
  Shape64 shape;
  std::string bytes;
};

/// 7 tokens in sequences of 4 and 3; 3 layers of 4 experts, top-2. Predictions reach 2 layers ahead.
struct RawTrace {
  Json model = {{"name", "made-up"},
                {"layers", 3},
                {"experts", 4},
                {"top_k", 2},
                {"renormalise", false},
                {"expert_bytes", {{0, 300, 500, 1000}}},
                {"work", {{4000, 2000, 1500}}}};
  Json metadata = {{"format", "ferry-trace 1"}, {"source", "a test"}, {"residency", "lru, 5 bytes"}};
  std::vector<RawTensor> tensors;
  std::size_t header_multiple = 64;  ///< the data begins at a multiple of this

  static constexpr std::uint64_t tokens = 7, layers = 3, experts = 4, top_k = 2, ahead = 2;

  /// The expert of a rank, best first.
  static std::uint8_t expert(std::uint64_t token, std::uint64_t layer, std::uint64_t rank) {
    return static_cast<std::uint8_t>((2 * token + layer + rank) % experts);
  }
  static float score(std::uint64_t token, std::uint64_t layer, std::uint64_t e) {
    if (e == expert(token, layer, 0)) return 0.5F;
    return e == expert(token, layer, 1) ? 0.25F : 0.125F;
  }
  /// A number that differs at every place.
  static float number(std::size_t at, float scale) { return scale * static_cast<float>(at + 1); }

  RawTrace() {
    std::vector<float> weights, scores, predicted(tokens * layers * ahead * experts),
        partial(tokens * layers * experts);
    std::vector<std::uint8_t> chosen;
    for (std::uint64_t t = 0; t < tokens; ++t) {
      for (std::uint64_t l = 0; l < layers; ++l) {
        for (std::uint64_t i = 0; i < top_k; ++i) {
          chosen.push_back(expert(t, l, i));
          weights.push_back(number(weights.size(), 0.01F));
        }
        for (std::uint64_t e = 0; e < experts; ++e) scores.push_back(score(t, l, e));
      }
    }
    for (std::size_t i = 0; i < predicted.size(); ++i) predicted[i] = number(i, 0.001F);
    for (std::size_t i = 0; i < partial.size(); ++i) partial[i] = number(i, -0.5F);
    tensors = {{"weights", "F32", {tokens, layers, top_k}, raw_bytes(weights)},
               {"scores", "F32", {tokens, layers, experts}, raw_bytes(scores)},
               {"predicted", "F32", {tokens, layers, ahead, experts}, raw_bytes(predicted)},
               {"partial", "F32", {tokens, layers, experts}, raw_bytes(partial)},
               {"token_ids", "I32", {tokens}, raw_bytes(std::vector<std::int32_t>{5, 6, 7, 8, 9, 10, 11})},
               {"sequence_start", "I32", {2}, raw_bytes(std::vector<std::int32_t>{0, 4})},
               {"experts", "U8", {tokens, layers, top_k}, raw_bytes(chosen)},
               {"phase", "U8", {tokens}, raw_bytes(std::vector<std::uint8_t>{0, 0, 1, 1, 0, 1, 1})}};
  }

  RawTensor& at(const std::string& name) {
    const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const RawTensor& t) { return t.name == name; });
    REQUIRE(found != tensors.end());
    return *found;
  }
  void leave_out(const std::string& name) {
    std::erase_if(tensors, [&](const RawTensor& t) { return t.name == name; });
  }
  /// Replaces the expert at a place.
  void set_expert(std::uint64_t token, std::uint64_t layer, std::uint64_t rank, unsigned value) {
    at("experts").bytes[(token * layers + layer) * top_k + rank] = static_cast<char>(value);
  }
  void set_starts(const std::vector<std::int32_t>& starts) {
    at("sequence_start") = {"sequence_start", "I32", {starts.size()}, raw_bytes(starts)};
  }
  void set_phase(std::uint64_t token, unsigned phase) { at("phase").bytes[token] = static_cast<char>(phase); }

  [[nodiscard]] std::string file() const {
    Json header = Json::object();
    if (!metadata.is_null()) {
      header["__metadata__"] = metadata;
      if (!model.is_null())
        header["__metadata__"]["model"] = model.is_string() ? model.get<std::string>() : model.dump();
    }
    std::string data;
    for (const RawTensor& t : tensors) {
      header[t.name] = {
          {"dtype", t.type}, {"shape", t.shape}, {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
      data += t.bytes;
    }
    std::string text = header.dump();
    while ((text.size() + 8) % header_multiple != 0) text += ' ';
    if (header_multiple == 1 && (text.size() + 8) % 2 == 0) text += ' ';  // odd
    return safetensors_file(text, data);
  }
};

std::string refused(const std::function<void(RawTrace&)>& damage) {
  const TemporaryFolder folder;
  RawTrace raw;
  damage(raw);
  write_file(folder.path() / "bad.safetensors", raw.file());
  return refusal("bad.safetensors", [&] { TraceFile file(folder.path() / "bad.safetensors"); });
}

/// A safetensors file by the format's own rules: 8 bytes of length, a JSON header, the data.
struct Parsed {
  Json header;
  std::string data;
  std::size_t begin = 0;

  explicit Parsed(const Path& path) {
    const std::string all = read_bytes(path);
    REQUIRE(all.size() >= 8);
    std::uint64_t length = 0;
    std::memcpy(&length, all.data(), 8);
    REQUIRE(length <= all.size() - 8);
    header = Json::parse(all.substr(8, length));
    begin = 8 + length;
    data = all.substr(begin);
  }
  [[nodiscard]] bool has(const std::string& name) const { return header.contains(name); }
  template <class T>
  [[nodiscard]] std::vector<T> values(const std::string& name) const {
    const std::size_t from = header.at(name).at("data_offsets").at(0), to = header.at(name).at("data_offsets").at(1);
    REQUIRE(to <= data.size());
    std::vector<T> v((to - from) / sizeof(T));
    if (!v.empty()) std::memcpy(v.data(), data.data() + from, to - from);
    return v;
  }
};

// Traces filled by hand.

struct Wanted {
  std::uint16_t experts = 6, top_k = 2, ahead = 0;
  bool weights = false, scores = false, choice = false, partial = false, phase = false, ids = false, unequal = false,
       gaps = false;
};

/// Sequences of 4, 1 and 3 tokens, of which 2, 0 and 1 are prompt; 3 layers.
std::unique_ptr<TraceFile> filled(const Wanted& w, std::uint64_t seed) {
  Random random(seed);
  auto f = std::make_unique<TraceFile>();
  constexpr std::uint16_t layers = 3;
  constexpr std::uint32_t tokens = 8;
  Trace& t = f->trace;
  t.name = "a \"model\"\n of M\xc3\xbcnchen";
  t.model.layers = layers;
  t.model.experts = w.experts;
  t.model.top_k = w.top_k;
  t.model.expert_bytes = {{0, 100, 200, 400, 800}};
  t.model.renormalise = renormalise_if(!w.unequal);
  t.model.scale = w.choice ? 2.5F : 1;
  t.model.least_sum = w.choice ? 0.25F : 0;
  t.model.added_to_sum = w.choice ? 1e-20F : 0;
  t.ahead = w.ahead;
  f->work = {{12'345, 678, 90}};
  if (w.unequal) {
    t.model.expert_bytes = {{0, 100, 200, 400, 800}, {0, 0, 201, 0, 1'000'000'000'000}, {0, 0, 0, 0, 1}};
    f->work = {{1, 2, 3}, {0, 0, 0}, {1'000'000'000'000'000, 4, 5}};
  }
  f->source = "made up";
  f->residency = w.partial ? "lru, 5 bytes" : "";
  f->sequence_start = {0, 4, 5};
  const std::vector<std::uint8_t> phases = {0, 0, 1, 1, 1, 0, 1, 1};
  if (w.phase) f->phase = phases;
  for (std::uint32_t token = 0; token < tokens; ++token) {
    for (std::uint16_t l = 0; l < layers; ++l) {
      const bool missing = w.gaps && phases[token] == 0 && l == 1;
      std::vector<std::uint16_t> all(w.experts);
      std::iota(all.begin(), all.end(), std::uint16_t{0});
      for (std::uint16_t i = 0; i < w.top_k; ++i) {
        const std::uint32_t other = random.between(i, w.experts - 1U);
        std::swap(all[i], all[other]);
        f->experts.push_back(missing ? no_expert : all[i]);
      }
    }
  }
  auto floats = [&](std::vector<float>& to, std::size_t each) {
    to = random.scores(tokens * layers * each);
    // Odd values are kept, too.
    const float odd[] = {1e-40F, -0.0F, std::numeric_limits<float>::infinity(),
                         std::numeric_limits<float>::denorm_min(), -1e38F};
    for (std::size_t i = 0; i < std::size(odd); ++i) to[i * 7 % to.size()] = odd[i];
  };
  if (w.weights) floats(f->weights, w.top_k);
  if (w.scores) floats(f->scores, w.experts);
  if (w.choice && w.scores) floats(f->choice_scores, w.experts);
  if (w.choice) floats(f->choice_predicted, std::size_t{w.ahead} * w.experts);
  if (w.choice && w.partial) floats(f->choice_partial, w.experts);
  if (w.ahead > 0) floats(f->predicted, std::size_t{w.ahead} * w.experts);
  if (w.partial) floats(f->partial, w.experts);
  for (std::uint32_t i = 0; w.ids && i < tokens; ++i) f->token_ids.push_back(1000 * i);
  f->view();
  return f;
}

void check_same(const TraceFile& a, const TraceFile& b) {
  CHECK(a.trace.name == b.trace.name);
  CHECK(a.source == b.source);
  CHECK(a.residency == b.residency);
  CHECK(a.trace.model.renormalise == b.trace.model.renormalise);
  CHECK(a.trace.model.scale == b.trace.model.scale);
  CHECK(a.trace.model.least_sum == b.trace.model.least_sum);
  CHECK(a.trace.model.added_to_sum == b.trace.model.added_to_sum);
  REQUIRE(a.trace.tokens == b.trace.tokens);
  REQUIRE(a.trace.model.layers == b.trace.model.layers);
  REQUIRE(a.trace.model.top_k == b.trace.model.top_k);
  CHECK(a.trace.model.experts == b.trace.model.experts);
  CHECK(a.trace.model.expert_bytes == b.trace.model.expert_bytes);
  REQUIRE(a.work.size() == b.work.size());
  for (std::size_t i = 0; i < a.work.size(); ++i) {
    CHECK(a.work[i].dense_bytes == b.work[i].dense_bytes);
    CHECK(a.work[i].dense_operations == b.work[i].dense_operations);
    CHECK(a.work[i].expert_operations == b.work[i].expert_operations);
    CHECK(a.work[i].activation_bytes == b.work[i].activation_bytes);
  }
  CHECK(std::ranges::equal(a.trace.sequence_start, b.trace.sequence_start));
  CHECK(std::ranges::equal(a.trace.phase, b.trace.phase));
  CHECK(a.trace.ahead == b.trace.ahead);
  CHECK(same_bits(a.trace.weights, b.trace.weights));
  CHECK(same_bits(a.trace.scores, b.trace.scores));
  CHECK(same_bits(a.trace.choice_scores, b.trace.choice_scores));
  CHECK(same_bits(a.trace.choice_predicted, b.trace.choice_predicted));
  CHECK(same_bits(a.trace.choice_partial, b.trace.choice_partial));
  CHECK(a.trace.model.scale == b.trace.model.scale);
  CHECK(same_bits(a.trace.predicted, b.trace.predicted));
  CHECK(same_bits(a.trace.partial, b.trace.partial));
  std::size_t different = 0;
  for (std::uint32_t t = 0; t < a.trace.tokens; ++t) {
    for (std::uint32_t l = 0; l < a.trace.model.layers; ++l) {
      for (std::uint32_t i = 0; i < a.trace.model.top_k; ++i) {
        different += a.trace.expert(t, l, i) == b.trace.expert(t, l, i) ? 0 : 1;
      }
    }
  }
  CHECK(different == 0);
}

const std::vector<Wanted> kinds = {
    {},
    {.weights = true},
    {.scores = true, .phase = true},
    {.ahead = 2, .scores = true, .choice = true, .partial = true},
    {.ahead = 1, .scores = true},
    {.ahead = 4,
     .weights = true,
     .scores = true,
     .partial = true,
     .phase = true,
     .ids = true,
     .unequal = true,
     .gaps = true},
    {.top_k = 6, .phase = true, .gaps = true},
    {.experts = 255, .weights = true, .phase = true, .ids = true, .gaps = true},
    {.experts = 256, .ahead = 2, .weights = true, .phase = true, .gaps = true},
    {.experts = 300,
     .top_k = 5,
     .ahead = 1,
     .weights = true,
     .scores = true,
     .partial = true,
     .phase = true,
     .unequal = true,
     .gaps = true},
    {.experts = 1, .top_k = 1, .weights = true, .ids = true},
};

Costs some_costs(const TraceFile& file) {
  Costs c;
  c.device = {1'000'000, 1'000'000, 10};
  c.host = {500'000, 500'000, 5};
  c.link_bytes_per_s = 100'000;
  c.link_latency_ns = 7;
  c.work = file.work;
  return c;
}

/// Replays some tokens, and checks that each request had one of the outcomes.
void replay(const TraceFile& file, const std::string& stack, Clairvoyance knows = Clairvoyance::none) {
  SimulateOptions o;
  o.stack = stack;
  o.knows = knows;
  o.budget_bytes = file.trace.model.all_bytes();
  o.prefill_chunk = 3;
  o.max_tokens = 6;
  const Simulated r = simulate(file.trace, some_costs(file), o);
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    const Outcomes& n = r.counters.of(phase);
    CHECK(n.hits + n.late_hits + n.misses + n.substituted + n.skipped + n.host_computed == n.requests);
  }
}

/// Simulates a full disk: while it lives, files cannot grow beyond so many bytes.
class FullDisk {
 public:
  explicit FullDisk(std::uint64_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit small{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit old_{};
  void (*handler_)(int);
};

// Other people's files.

/// A route trace of 3 tokens, the first 2 of them prompt, as its lines.
struct RouteTrace {
  std::vector<std::string> lines = {"# route_trace v1",
                                    "# model=tiny.gguf arch=tiny n_layer=2 n_expert=4 n_expert_used=2",
                                    "# layer=0 expert_bytes=20000 dense_bytes=111",
                                    "# layer=1 expert_bytes=8000 dense_bytes=0",
                                    "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes",
                                    "0,0,0,0,0,3,0.75,0,20000",  // line 6
                                    "0,0,0,0,1,1,0.25,0,20000",  // 7
                                    "0,0,1,0,0,2,0.5,1,20000",   // 8
                                    "0,0,1,0,1,0,0.5,0,20000",   // 9
                                    "0,0,0,1,0,1,0.625,0,8000",  // 10: layer 1 of the prompt, slots out of order
                                    "0,0,0,1,1,2,0.375,0,8000",  // 11
                                    "0,0,1,1,1,3,0.125,0,8000",  // 12
                                    "0,0,1,1,0,0,0.875,0,8000",  // 13
                                    "0,1,2,0,0,1,1,0,20000",     // 14
                                    "0,1,2,0,1,2,5.96046e-08,0,20000",
                                    "0,1,2,1,0,3,0.7,0,8000",
                                    "0,1,2,1,1,0,0.3"};  // more columns need not be there

  [[nodiscard]] std::string text(const std::string& end = "\n") const {
    std::string all;
    for (const std::string& l : lines) all += l + end;
    return all;
  }
};

std::unique_ptr<TraceFile> import_text(const std::string& name, const std::string& content) {
  const TemporaryFolder folder;
  write_file(folder.path() / name, content);
  return import_trace(folder.path() / name, read_tiny());
}

/// The message that refuses a route trace in which line `number` (from 1) is replaced.
std::string refused_line(std::size_t number, const std::string& line) {
  RouteTrace route;
  route.lines[number - 1] = line;
  return refusal("bad.csv", [&] { import_text("bad.csv", route.text()); });
}

std::string refused_import(const std::function<void(RawTrace&)>& damage) {
  // Files of others have different metadata, and no other tensors than these.
  RawTrace raw;
  for (const char* name : {"scores", "predicted", "partial", "token_ids", "weights"}) raw.leave_out(name);
  raw.metadata = {{"experts_per_layer", "4"}, {"source", "elsewhere"}};
  raw.model = nullptr;
  damage(raw);
  Json shape = tiny_shape();
  shape["layers"] = 3;
  const TemporaryFolder folder;
  write_file(folder.path() / "bad.safetensors", raw.file());
  return refusal("bad.safetensors", [&] { import_trace(folder.path() / "bad.safetensors", read_tiny(shape)); });
}

}  // namespace

TEST_CASE("a trace that is written and read again is the same, element for element") {
  const TemporaryFolder folder;
  const Path path = folder.path() / "t.safetensors", second = folder.path() / "u.safetensors";
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    CAPTURE(i);
    const auto made = filled(kinds[i], 10 + i);
    made->write(path);
    const TraceFile back(path);
    check_same(*made, back);
    CHECK(back.trace.experts16.empty() == (kinds[i].experts <= 255));
    // A trace that was read can be written, also over a file that is there.
    write_file(second, "\"ferry-trace 1\"");
    back.write(second);
    check_same(*made, TraceFile(second));
  }
  CHECK(files_in(folder.path()) == 2);
}

TEST_CASE("what a trace says of layers that differ is written and read again") {
  const TemporaryFolder folder;
  const Path path = folder.path() / "t.safetensors", second = folder.path() / "u.safetensors";
  Wanted kind = kinds[0];
  const auto made = filled(kind, 3);
  made->trace.model.layer_experts.assign(3, kind.experts);
  made->trace.model.layer_top_k.assign(3, kind.top_k);
  made->write(path);
  const TraceFile back(path);
  CHECK(back.trace.model.layer_experts == made->trace.model.layer_experts);
  CHECK(back.trace.model.layer_top_k == made->trace.model.layer_top_k);
  back.write(second);
  CHECK(read_bytes(path) == read_bytes(second));
}

TEST_CASE("a trace that was read is written again byte for byte, with its tokens' ids") {
  const TemporaryFolder folder;
  const Path path = folder.path() / "t.safetensors", second = folder.path() / "u.safetensors";
  for (const Wanted& kind : kinds) {
    filled(kind, 3)->write(path);
    TraceFile(path).write(second);
    CHECK(read_bytes(path) == read_bytes(second));
  }
}

TEST_CASE("a written trace is a plain safetensors file with the documented tensors") {
  const TemporaryFolder folder;
  const Path path = folder.path() / "t.safetensors";
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    CAPTURE(i);
    const Wanted& w = kinds[i];
    const auto made = filled(w, 20 + i);
    made->write(path);
    const Parsed file(path);
    const Json& metadata = file.header.at("__metadata__");
    CHECK(metadata.at("format") == "ferry-trace 2");
    for (const auto& [key, value] : metadata.items()) CHECK(value.is_string());
    const Json model = Json::parse(metadata.at("model").get<std::string>());
    CHECK(model.at("name") == made->trace.name);
    CHECK(model.at("layers") == 3);
    CHECK(model.at("experts") == w.experts);
    CHECK(model.at("top_k") == w.top_k);
    CHECK(model.at("renormalise") == !w.unequal);
    CHECK(model.at("expert_bytes").at(0) == Json({100, 200, 400, 800}));
    CHECK(model.at("expert_bytes").size() == (w.unequal ? 3 : 1));
    CHECK(model.at("work").size() == (w.unequal ? 3 : 1));

    struct Expected {
      const char* type;
      std::uint64_t each;
      Shape64 shape;
    };
    const bool wide = w.experts > 255;
    std::map<std::string, Expected> expected = {{"experts", {wide ? "U16" : "U8", wide ? 2U : 1U, {8, 3, w.top_k}}},
                                                {"sequence_start", {"I32", 4, {3}}}};
    if (w.weights) expected["weights"] = {"F32", 4, {8, 3, w.top_k}};
    if (w.scores) expected["scores"] = {"F32", 4, {8, 3, w.experts}};
    if (w.choice) {
      expected["choice_scores"] = expected["choice_partial"] = {"F32", 4, {8, 3, w.experts}};
      expected["choice_predicted"] = {"F32", 4, {8, 3, w.ahead, w.experts}};
    }
    if (w.ahead > 0) expected["predicted"] = {"F32", 4, {8, 3, w.ahead, w.experts}};
    if (w.partial) expected["partial"] = {"F32", 4, {8, 3, w.experts}};
    if (w.phase) expected["phase"] = {"U8", 1, {8}};
    if (w.ids) expected["token_ids"] = {"I32", 4, {8}};
    CHECK(file.header.size() == expected.size() + 1);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    for (const auto& entry : expected) {
      const std::string& name = entry.first;
      const Expected& e = entry.second;
      CAPTURE(name);
      REQUIRE(file.has(name));
      const Json& t = file.header.at(name);
      CHECK(t.at("dtype") == e.type);
      CHECK(t.at("shape") == Json(e.shape));
      const std::uint64_t from = t.at("data_offsets").at(0), to = t.at("data_offsets").at(1);
      std::uint64_t bytes = e.each;
      for (const std::uint64_t d : e.shape) bytes *= d;
      CHECK(to - from == bytes);
      CHECK((file.begin + from) % e.each == 0);  // aligned wherever the file is mapped
      ranges.emplace_back(from, to);
    }
    std::sort(ranges.begin(), ranges.end());
    std::uint64_t at = 0;
    for (const auto& [from, to] : ranges) {
      CHECK(from == at);
      at = to;
    }
    CHECK(at == file.data.size());  // 8 + header + data is all there is

    std::vector<std::uint16_t> ids = wide ? file.values<std::uint16_t>("experts") : std::vector<std::uint16_t>();
    if (!wide) {
      for (const std::uint8_t e : file.values<std::uint8_t>("experts")) ids.push_back(e == 255 ? no_expert : e);
    }
    CHECK(ids == made->experts);
    CHECK(file.values<std::uint32_t>("sequence_start") == made->sequence_start);
    if (w.weights) CHECK(same_bits(file.values<float>("weights"), made->weights));
    if (w.scores) CHECK(same_bits(file.values<float>("scores"), made->scores));
    if (w.choice) {
      CHECK(same_bits(file.values<float>("choice_scores"), made->choice_scores));
      CHECK(same_bits(file.values<float>("choice_predicted"), made->choice_predicted));
      CHECK(same_bits(file.values<float>("choice_partial"), made->choice_partial));
    }
    if (w.ahead > 0) CHECK(same_bits(file.values<float>("predicted"), made->predicted));
    if (w.partial) CHECK(same_bits(file.values<float>("partial"), made->partial));
    if (w.phase) CHECK(file.values<std::uint8_t>("phase") == made->phase);
    if (w.ids) CHECK(file.values<std::uint32_t>("token_ids") == made->token_ids);
  }
}

TEST_CASE("a trace made by another writer is read as it is") {
  const TemporaryFolder folder;
  write_file(folder.path() / "t.safetensors", RawTrace().file());
  const TraceFile f(folder.path() / "t.safetensors");
  const Trace& t = f.trace;
  CHECK(t.name == "made-up");
  CHECK(f.source == "a test");
  CHECK(f.residency == "lru, 5 bytes");
  CHECK_FALSE(t.model.renormalises());
  CHECK(t.tokens == 7);
  CHECK(t.sequences() == 2);
  CHECK(t.sequence_end(0) == 4);
  CHECK(t.ahead == 2);
  CHECK(t.model.bytes(2, Precision::int4) == 300);
  CHECK(t.model.bytes(0, Precision::full) == 1000);
  REQUIRE(f.work.size() == 1);
  CHECK(f.work[0].expert_operations == 1500);
  for (const std::span<const float> s : {t.weights, t.scores, t.predicted, t.partial}) {
    CHECK(reinterpret_cast<std::uintptr_t>(s.data()) % alignof(float) == 0);
  }
  CHECK(t.phase_of(3) == Phase::decode);
  CHECK(t.phase_of(4) == Phase::prefill);
  for (std::uint32_t token = 0; token < 7; ++token) {
    for (std::uint32_t l = 0; l < 3; ++l) {
      const std::size_t cell = token * 3 + l;
      for (std::uint32_t i = 0; i < 2; ++i) {
        CHECK(t.expert(token, l, i) == RawTrace::expert(token, l, i));
        CHECK(t.weight(token, l, i) == RawTrace::number(cell * 2 + i, 0.01F));
      }
      for (std::uint32_t e = 0; e < 4; ++e) {
        CHECK(t.scores_of(token, l)[e] == RawTrace::score(token, l, e));
        CHECK(t.partial_of(token, l)[e] == RawTrace::number(cell * 4 + e, -0.5F));
        for (std::uint32_t d = 1; d <= 2; ++d) {
          CHECK(t.predicted_of(token, l, d)[e] == RawTrace::number((cell * 2 + d - 1) * 4 + e, 0.001F));
        }
      }
    }
  }
  replay(f, "lru");
}

TEST_CASE("a trace is written whole or not at all") {
  const TemporaryFolder folder;
  const auto made = filled(kinds[4], 1);
  std::filesystem::create_directory(folder.path() / "folder");
  write_file(folder.path() / "plain", "x");
  ::mkfifo((folder.path() / "pipe").c_str(), 0600);
  auto refused_write = [&](const std::string& name) {
    return refusal(name, [&] { made->write(folder.path() / name); });
  };
  CHECK(says(refused_write("nowhere/t.safetensors"), {"cannot be written", "No such file"}));
  CHECK(says(refused_write("plain/t.safetensors"), {"cannot be written", "Not a directory"}));
  CHECK(says(refused_write("folder"), {"cannot be written", "not a regular file"}));
  CHECK(says(refused_write("pipe"), {"cannot be written", "not a regular file"}));
  CHECK(files_in(folder.path()) == 3);
  CHECK(std::filesystem::is_empty(folder.path() / "folder"));
  if (::geteuid() != 0) {  // root may write anywhere
    std::filesystem::permissions(folder.path() / "folder", std::filesystem::perms::owner_read);
    CHECK(says(refused_write("folder/t.safetensors"), {"cannot be written", "Permission denied"}));
    std::filesystem::permissions(folder.path() / "folder", std::filesystem::perms::owner_all);
  }
  // A disk that is full in the middle of the file: what stood there stays.
  const std::string old_trace = R"("format":"ferry-trace 1")";
  write_file(folder.path() / "old", old_trace);
  for (const char* name : {"old", "new"}) {
    std::string message;
    {
      const FullDisk full(1000);
      try {
        made->write(folder.path() / name);
      } catch (const InputError& e) {
        message = e.what();
      }
    }
    CHECK(says(message, {name, "cannot be written"}));
  }
  CHECK(read_bytes(folder.path() / "old") == old_trace);
  CHECK(files_in(folder.path()) == 4);
  CHECK(says(refused_write("plain"), {"is there, and is not a trace of ferry", "name another file"}));
  CHECK(read_bytes(folder.path() / "plain") == "x");
}

TEST_CASE("a trace cut off anywhere is refused") {
  const TemporaryFolder folder;
  const Path path = folder.path() / "cut.safetensors";
  const std::string whole = RawTrace().file();
  for (std::size_t bytes = 0; bytes < whole.size(); bytes += 97) {
    CAPTURE(bytes);
    write_file(path, whole.substr(0, bytes));
    CHECK(says(refusal("cut.safetensors", [&] { TraceFile file(path); }), {"not a usable safetensors file"}));
  }
  write_file(path, whole + "x");
  CHECK(says(refusal("cut.safetensors", [&] { TraceFile file(path); }), {"not a usable safetensors file"}));
}

TEST_CASE("what is no trace is refused") {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  auto message = [&](const std::string& name) { return refusal(name, [&] { TraceFile file(folder.path() / name); }); };
  TinyCheckpoint().write(folder.path());
  CHECK(says(message("model.safetensors"), {"no trace of ferry's", "\"pt\"", "expected \"ferry-trace 2\"", "import"}));
  CHECK(says(message("config.json"), {"not a usable safetensors file"}));
  write_file(folder.path() / "empty", "");
  CHECK(says(message("empty"), {"0 bytes, expected at least 8"}));
  std::filesystem::create_directory(folder.path() / "folder");
  CHECK(says(message("folder"), {"not a regular file"}));
  ::mkfifo((at + "/pipe").c_str(), 0600);
  CHECK(says(message("pipe"), {"not a regular file"}));
  CHECK(says(message("nowhere"), {"cannot open"}));
  CHECK(says(refused([](RawTrace& r) { r.metadata = nullptr; }), {"no trace of ferry's", "\"\""}));
  CHECK(says(refused([](RawTrace& r) { r.metadata["format"] = "ferry-trace 3"; }),
             {"\"ferry-trace 3\"", "expected \"ferry-trace 2\""}));
  CHECK(says(refused([](RawTrace& r) { r.metadata["format"] = "ferry-trace 2"; }), {"has no \"xxh3\""}));
}

TEST_CASE("a damaged description of the model names the field") {
  auto field = [](const std::string& name, const Json& value) {
    return refused([&](RawTrace& r) { r.model[name] = value; });
  };
  auto without = [](const std::string& name) { return refused([&](RawTrace& r) { r.model.erase(name); }); };
  for (const char* name : {"name", "layers", "experts", "top_k", "expert_bytes", "work"}) {
    CHECK(says(without(name), {"__metadata__ \"model\"", "field \"" + std::string(name) + "\" is missing"}));
    CHECK(says(field(name, true),
               {"__metadata__ \"model\"", "field \"" + std::string(name) + "\": expected", "got true"}));
  }
  CHECK(says(field("renormalise", "yes"), {"\"renormalise\": expected true or false"}));
  CHECK(says(field("layers", 0), {"\"layers\": expected a whole number from 1 to 65535, got 0"}));
  CHECK(says(field("layers", 65536), {"\"layers\": expected a whole number from 1 to 65535, got 65536"}));
  CHECK(says(field("layers", -3), {"\"layers\"", "got -3"}));
  CHECK(says(field("layers", 3.0), {"\"layers\"", "got 3.0"}));
  CHECK(says(field("experts", 65535), {"\"experts\": expected a whole number from 1 to 65534"}));
  CHECK(says(field("top_k", 5), {"\"top_k\": expected a whole number from 1 to 4, got 5"}));
  CHECK(
      says(field("layer_experts", {4, 4}), {"\"layer_experts\": expected 3 whole numbers from 1 to 4, one for each"}));
  CHECK(says(field("layer_experts", {4, 4, 5}), {"\"layer_experts\""}));
  CHECK(says(field("layer_experts", {4, 4, 0}), {"\"layer_experts\""}));
  CHECK(says(field("layer_top_k", {2, 2, 3}), {"\"layer_top_k\": expected 3 whole numbers from 1 to 2"}));
  CHECK(says(field("layer_top_k", {2, 1, 2}), {"layer 1: more than its 1 experts"}));
  CHECK(says(field("layers", 4), {"tensor \"experts\" is U8 [7, 3, 2], expected U8 [7, 4, 2]"}));
  CHECK(says(field("top_k", 3), {"tensor \"experts\" is U8 [7, 3, 2], expected U8 [7, 3, 3]"}));
  CHECK(says(field("experts", 300), {"tensor \"scores\" is F32 [7, 3, 4], expected F32 [7, 3, 300]"}));
  CHECK(says(refused([](RawTrace& r) {
               r.model["experts"] = 300;
               for (const char* name : {"scores", "predicted", "partial"}) r.leave_out(name);
             }),
             {"experts are U8, but the model has 300"}));

  const Json row = {0, 300, 500, 1000};
  CHECK(says(field("expert_bytes", {row, row}), {"\"expert_bytes\": expected a list for all layers, or one for each"}));
  CHECK(says(field("expert_bytes", Json::array()), {"\"expert_bytes\": expected a list for all layers"}));
  CHECK(says(field("expert_bytes", Json::array({7})), {"\"expert_bytes\": expected lists of 4 whole numbers"}));
  CHECK(says(field("expert_bytes", {{0, 0, 1000}}), {"\"expert_bytes\": expected lists of 4 whole numbers"}));
  CHECK(says(field("expert_bytes", {{0, 0, -1, 1000}}), {"\"expert_bytes\": expected whole numbers", "-1"}));
  CHECK(says(field("expert_bytes", {{0, 0, 0, 1e300}}), {"\"expert_bytes\": expected whole numbers", "1e+300"}));
  CHECK(says(field("expert_bytes", {{0, 0, 0, "1000"}}), {"\"expert_bytes\": expected whole numbers"}));
  CHECK(says(field("expert_bytes", {{0, 0, 0, 1'000'000'000'000'001}}),
             {"\"expert_bytes\": expected numbers up to 10^15"}));
  CHECK(says(field("expert_bytes", {{0, 0, 1000, 0}}), {"layer 0 has no bytes at full precision"}));
  CHECK(says(field("work", {{1, 2}}), {"\"work\": expected lists of 4 whole numbers"}));
  CHECK(says(field("work", {{1, 2, 3}, {1, 2, 3}}), {"\"work\": expected a list for all layers, or one for each"}));
  CHECK(says(field("work", {{1, 2, 1e20}}), {"\"work\": expected whole numbers"}));

  CHECK(says(refused([](RawTrace& r) { r.model = nullptr; }), {"__metadata__ \"model\"", "parse error"}));
  CHECK(says(refused([](RawTrace& r) { r.model = "{\"name\":"; }), {"__metadata__ \"model\"", "parse error"}));
  CHECK(says(refused([](RawTrace& r) { r.model = "[]"; }), {"__metadata__ \"model\"", "expected a JSON object"}));
  CHECK(says(refused([](RawTrace& r) { r.model = R"({"name":"a","name":"b"})"; }), {"\"name\" stands twice"}));
}

TEST_CASE("damaged tensors of a trace are named, with what was expected") {
  auto retyped = [](const std::string& name, const std::string& type, const Shape64& shape, std::size_t bytes) {
    return refused([&](RawTrace& r) { r.at(name) = {name, type, shape, std::string(bytes, '\1')}; });
  };
  CHECK(says(refused([](RawTrace& r) { r.leave_out("experts"); }), {"tensor \"experts\" is missing"}));
  CHECK(says(refused([](RawTrace& r) { r.leave_out("sequence_start"); }), {"tensor \"sequence_start\" is missing"}));
  CHECK(says(retyped("experts", "U8", {7, 6}, 42), {"tensor \"experts\": expected shape [tokens, layers, k]"}));
  CHECK(says(retyped("experts", "U8", {7, 2, 3}, 42), {"\"experts\" is U8 [7, 2, 3], expected U8 [7, 3, 2]"}));
  CHECK(says(retyped("experts", "I16", {7, 3, 2}, 84), {"\"experts\" is I16 [7, 3, 2], expected U16 [7, 3, 2]"}));
  CHECK(says(retyped("experts", "U8", {0, 3, 2}, 0), {"expected"}));
  CHECK(says(retyped("weights", "F16", {7, 3, 2}, 84), {"\"weights\" is F16 [7, 3, 2], expected F32 [7, 3, 2]"}));
  CHECK(says(retyped("weights", "F32", {7, 3}, 84), {"\"weights\" is F32 [7, 3], expected F32 [7, 3, 2]"}));
  CHECK(says(retyped("weights", "F32", {42}, 168), {"\"weights\" is F32 [42], expected F32 [7, 3, 2]"}));
  CHECK(says(retyped("scores", "F32", {7, 3, 2}, 168), {"\"scores\" is F32 [7, 3, 2], expected F32 [7, 3, 4]"}));
  CHECK(says(retyped("scores", "I32", {7, 3, 4}, 336), {"\"scores\" is I32 [7, 3, 4], expected F32 [7, 3, 4]"}));
  CHECK(says(retyped("partial", "BF16", {7, 3, 4}, 168), {"\"partial\" is BF16"}));
  CHECK(says(retyped("partial", "F32", {6, 3, 4}, 288), {"\"partial\" is F32 [6, 3, 4], expected F32 [7, 3, 4]"}));
  CHECK(says(retyped("predicted", "F32", {7, 3, 5, 4}, 1680),
             {"\"predicted\": expected shape [tokens, layers, 1 to 4, experts]"}));
  CHECK(says(retyped("predicted", "F32", {7, 3, 0, 4}, 0), {"\"predicted\": expected shape"}));
  CHECK(says(retyped("predicted", "F32", {7, 3, 4}, 336), {"\"predicted\": expected shape"}));
  CHECK(says(retyped("predicted", "F32", {7, 3, 2, 2}, 336),
             {"\"predicted\" is F32 [7, 3, 2, 2], expected F32 [7, 3, 2, 4]"}));
  CHECK(says(retyped("phase", "U8", {6}, 6), {"\"phase\" is U8 [6], expected U8 [7]"}));
  CHECK(says(retyped("phase", "BOOL", {7}, 7), {"\"phase\" is BOOL [7], expected U8 [7]"}));
  CHECK(says(retyped("sequence_start", "I64", {2}, 16), {"\"sequence_start\" is I64 [2], expected I32 [2]"}));
  CHECK(says(retyped("sequence_start", "I32", {}, 4), {"\"sequence_start\" is I32 []"}));
  CHECK(says(retyped("sequence_start", "I32", {2, 1}, 8), {"\"sequence_start\" is I32 [2, 1], expected I32 [2]"}));
  CHECK(says(retyped("sequence_start", "I32", {0}, 0), {"sequence_start must begin with token 0"}));
  CHECK(says(refused([](RawTrace& r) { r.header_multiple = 1; }), {"begins at an address that is no multiple of 4"}));
}

TEST_CASE("damaged ids of tokens are refused like any other tensor") {
  auto ids = [](const std::string& type, const Shape64& shape, std::size_t bytes) {
    return refused([&](RawTrace& r) { r.at("token_ids") = {"token_ids", type, shape, std::string(bytes, '\1')}; });
  };
  CHECK(says(ids("I32", {6}, 24), {"\"token_ids\" is I32 [6], expected I32 [7]"}));
  CHECK(says(ids("F32", {7}, 28), {"\"token_ids\" is F32 [7], expected I32 [7]"}));
}

TEST_CASE("routing that cannot have happened names token and layer") {
  CHECK(says(refused([](RawTrace& r) { r.set_expert(4, 1, 0, 4); }), {"token 4, layer 1: expert 4 of 4"}));
  CHECK(says(refused([](RawTrace& r) { r.set_expert(6, 2, 1, 254); }), {"token 6, layer 2: expert 254 of 4"}));
  CHECK(says(refused([](RawTrace& r) { r.set_expert(0, 0, 1, RawTrace::expert(0, 0, 0)); }),
             {"token 0, layer 0: expert 0 stands twice"}));
  CHECK(
      says(refused([](RawTrace& r) { r.set_expert(1, 1, 0, 255); }), {"token 1, layer 1: 1 of 2 experts are missing"}));
  const auto row_missing = [](std::uint64_t token) {
    return refused([&](RawTrace& r) {
      r.set_expert(token, 2, 0, 255);
      r.set_expert(token, 2, 1, 255);
    });
  };
  CHECK(row_missing(1).empty());  // allowed in a prompt
  CHECK(says(row_missing(2), {"token 2, layer 2: 2 of 2 experts are missing"}));
  CHECK(says(refused([](RawTrace& r) { r.set_phase(3, 0); }), {"prefill after decode at token 3"}));
  CHECK(says(refused([](RawTrace& r) { r.set_phase(5, 2); }), {"phase of token 5 is 2, expected 0 or 1"}));
  CHECK(refused([](RawTrace& r) { r.set_phase(4, 1); }).empty());  // a sequence without a prompt
  CHECK(says(refused([](RawTrace& r) { r.set_starts({1, 4}); }), {"sequence_start must begin with token 0"}));
  CHECK(says(refused([](RawTrace& r) { r.set_starts({0, 4, 4}); }), {"sequence_start[2] is 4 after 4"}));
  CHECK(says(refused([](RawTrace& r) { r.set_starts({0, 4, 3}); }), {"sequence_start[2] is 3 after 4"}));
  CHECK(says(refused([](RawTrace& r) { r.set_starts({0, 7}); }), {"sequence_start[1] is 7", "below 7"}));
  CHECK(says(refused([](RawTrace& r) { r.set_starts({0, -1}); }), {"sequence_start[1] is"}));
  CHECK(says(refused([](RawTrace& r) { r.set_starts({-1, 4}); }), {"sequence_start must begin with token 0"}));
}

TEST_CASE("scores that are no numbers are replayed like others") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const std::vector<std::function<float(std::size_t)>> fills = {
      [&](std::size_t) { return nan; }, [&](std::size_t) { return infinity; }, [&](std::size_t) { return -infinity; },
      [](std::size_t) { return 0.0F; },
      [&](std::size_t i) { return i % 3 == 0   ? nan
                                  : i % 3 == 1 ? infinity
                                               : -1e38F; }};
  for (const auto& fill : fills) {
    RawTrace raw;
    raw.model["expert_bytes"] = {{100, 300, 500, 1000}};
    const TemporaryFolder folder;
    write_file(folder.path() / "odd.safetensors", raw.file());
    TraceFile file(folder.path() / "odd.safetensors");
    std::vector<std::vector<float>> odd;
    for (auto* part : {&file.trace.weights, &file.trace.scores, &file.trace.predicted, &file.trace.partial}) {
      std::vector<float>& values = odd.emplace_back(part->size());
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = fill(i);
      *part = values;
    }
    for (const char* stack : {"lru", "cross-layer-lru", "moe-infinity", "hybrimoe", "fate", "hobbit+dynamic",
                              "hobbit-cooperative", "importance+ce", "importance+pre", "importance-driven"}) {
      CAPTURE(stack);
      try {
        replay(file, stack);
      } catch (const ConfigError& e) {
        // HOBBIT looks 3 layers ahead, this trace 2.
        CHECK(says(e.what(), {"predicts 2 layers ahead"}));
      }
    }
  }
}

TEST_CASE("a file whose scores or weights are no numbers is refused by the tensor's name") {
  for (const char* name : {"weights", "scores", "predicted", "partial"}) {
    RawTrace raw;
    std::vector<float> values(raw.at(name).bytes.size() / 4, 0.25F);
    values[5] = std::numeric_limits<float>::quiet_NaN();
    raw.at(name).bytes = raw_bytes(values);
    const TemporaryFolder folder;
    write_file(folder.path() / "odd.safetensors", raw.file());
    CHECK(says(refusal("odd.safetensors", [&] { const TraceFile file(folder.path() / "odd.safetensors"); }),
               {fmt::format("tensor \"{}\": [5] is no number", name)}));
  }
}

TEST_CASE("scores that contradict the recorded experts break no stack that knows the future") {
  RawTrace raw;
  std::vector<float> scores;  // the gate prefers other experts than those that are recorded
  for (std::size_t i = 0; i < RawTrace::tokens * RawTrace::layers * RawTrace::experts; ++i) {
    scores.push_back(static_cast<float>((i * 7) % 5));
  }
  raw.at("scores").bytes = raw_bytes(scores);
  const TemporaryFolder folder;
  write_file(folder.path() / "odd.safetensors", raw.file());
  const TraceFile file(folder.path() / "odd.safetensors");
  for (const Clairvoyance knows : {Clairvoyance::prediction, Clairvoyance::cache, Clairvoyance::demand}) {
    replay(file, "lru", knows);
    replay(file, "cross-layer-lru", knows);
  }
}

TEST_CASE("what is known of the future is what the scores will ask for, whatever experts a trace names") {
  // Four experts in turn, three slots. The second trace names the other of two equal scores' experts, as a framework does that
  // breaks ties another way.
  const auto hits = [&](bool named_rightly, Clairvoyance knows) {
    TraceFile f;
    f.trace.name = "ties";
    f.trace.model.layers = 1;
    f.trace.model.experts = 6;
    f.trace.model.top_k = 1;
    f.trace.model.renormalise = Renormalise::yes;
    f.trace.model.expert_bytes = {{0, 0, 0, 0, 1000}};
    f.work = {{1000, 1000, 1000}};
    f.sequence_start = {0};
    for (unsigned t = 0; t < 24; ++t) {
      f.phase.push_back(1);
      f.experts.push_back(static_cast<std::uint16_t>(named_rightly ? t % 4 : 5));
      f.weights.push_back(1);
      for (unsigned e = 0; e < 6; ++e) f.scores.push_back(e == t % 4 || e == 5 ? 1.F : 0.F);
    }
    f.view();
    SimulateOptions o;
    o.stack = "lru";
    o.knows = knows;
    o.budget_bytes = std::uint64_t{3} * 1024;
    return simulate(f.trace, some_costs(f), o).counters.of(Phase::decode).hits;
  };
  CHECK(hits(true, Clairvoyance::none) == 0);
  for (const Clairvoyance knows : {Clairvoyance::cache, Clairvoyance::demand}) {
    CHECK(hits(true, knows) > 0);
    CHECK(hits(false, knows) == hits(true, knows));
  }
}

TEST_CASE("a flipped bit anywhere in a trace of ferry's is found") {
  const TemporaryFolder folder;
  const Path path = folder.path() / "t.safetensors";
  write_file(path, RawTrace().file());
  const TraceFile raw(path);
  std::filesystem::remove(path);
  raw.write(path);
  const std::string good = read_bytes(path);
  CHECK_NOTHROW(TraceFile{path});
  const std::size_t step = quick() ? 31 : 5;
  for (std::size_t at = 0; at < good.size(); at += step) {
    CAPTURE(at);
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1 << at / step % 8);
    std::filesystem::remove(path);
    write_file(path, bad);
    CHECK_FALSE(refusal("t.safetensors", [&] { TraceFile{path}; }).empty());
    // Also as a mapped file, as which large traces are read.
    if (at % 16 == 0) CHECK_FALSE(refusal("t.safetensors", [&] { TraceFile(path, 0); }).empty());
  }
}

TEST_CASE("a trace that is overwritten or cut off while it is open stays what it was") {
  const TemporaryFolder folder;
  const Path path = folder.path() / "t.safetensors", again = folder.path() / "again.safetensors";
  const RawTrace raw;
  write_file(path, raw.file());
  const TraceFile file(path);
  TraceFile{path}.write(again);
  const std::string right = read_bytes(again);
  const std::size_t size = std::filesystem::file_size(path);
  const auto overwrite = [&] {
    std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
    out << std::string(size, '\xff');
  };
  overwrite();
  file.write(again);
  CHECK(read_bytes(again) == right);
  replay(file, "lru");
  std::filesystem::resize_file(path, 0);
  file.write(again);
  CHECK(read_bytes(again) == right);
  CHECK_NOTHROW(file.check_unchanged());
}

TEST_CASE("a trace that is too large to copy has its indices in memory, and says that it was changed") {
  const TemporaryFolder folder;
  const Path path = folder.path() / "t.safetensors";
  const RawTrace raw;
  write_file(path, raw.file());
  const TraceFile copied(path), file(path, 0);
  check_same(copied, file);
  CHECK_NOTHROW(file.check_unchanged());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  {
    std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
    out << std::string(std::filesystem::file_size(path), '\xff');
  }
  // Indices of experts that do not exist would reach beyond every array.
  CHECK(std::equal(file.trace.experts8.begin(), file.trace.experts8.end(), copied.trace.experts8.begin()));
  CHECK(std::equal(file.trace.phase.begin(), file.trace.phase.end(), copied.trace.phase.begin()));
  CHECK(std::equal(file.trace.sequence_start.begin(), file.trace.sequence_start.end(),
                   copied.trace.sequence_start.begin()));
  replay(file, "lru");
  CHECK(says(refusal("t.safetensors", [&] { file.check_unchanged(); }), {"has changed since it was opened"}));
}

TEST_CASE("thousands of damaged bytes: every trace is refused or can be replayed") {
  const std::string good = RawTrace().file();
  std::uint64_t header = 0;
  std::memcpy(&header, good.data(), 8);
  const std::string odd("\0\xff\"{}[],:-.0123456789eE \x7f", 26);
  const TemporaryFolder folder;
  const Path path = folder.path() / "bad.safetensors", again = folder.path() / "again.safetensors";
  const char* stacks[] = {"lru", "on-demand", "importance-driven", "cross-layer-lru"};
  Random random(2024);
  std::uint32_t refused = 0, cannot = 0, replayed = 0;
  const std::uint32_t traces = quick() ? 1000 : 4000;
  for (std::uint32_t i = 0; i < traces; ++i) {
    std::string bad = good;
    const std::uint32_t changes = random.between(1, 3);
    for (std::uint32_t c = 0; c < changes; ++c) {
      const bool in_header = random.chance(60);
      const std::uint32_t at = random.below(static_cast<std::uint32_t>(in_header ? 8 + header : bad.size()));
      const bool bit = random.chance(50);
      const std::uint32_t pick = random.below(bit ? 8 : static_cast<std::uint32_t>(odd.size()));
      bad[at] = bit ? static_cast<char>(bad[at] ^ (1 << pick)) : odd[pick];
    }
    std::filesystem::remove(path);  // some file systems wait for the disk where a file is cut to nothing
    write_file(path, bad);
    try {  // any other exception ends the test
      const TraceFile file(path);
      if (i % 64 == 0) {
        file.write(again);
        TraceFile{again};
      }
      replay(file, stacks[i % 4], i % 3 == 0 && i % 4 != 2 ? Clairvoyance::demand : Clairvoyance::none);
      ++replayed;
    } catch (const InputError&) {
      ++refused;
    } catch (const ConfigError&) {
      ++cannot;
    }
  }
  CHECK(refused > traces / 10);
  CHECK(replayed > traces / 10);
  CHECK(cannot > 0);
}

TEST_CASE("a route trace is imported with its weights, phases and unequal sizes") {
  for (const std::string end : {"\n", "\r\n"}) {
    std::string text = RouteTrace().text(end);
    if (end == "\n") text.pop_back();  // the last line may lack its end, too
    const auto made = import_text("routes.csv", text);
    const Trace& t = made->trace;
    CHECK(t.name == "tiny");
    CHECK(made->source == "routes.csv");
    REQUIRE(t.tokens == 3);
    CHECK(t.sequences() == 1);
    CHECK(t.model.layers == 2);
    CHECK(t.model.experts == 4);
    CHECK(t.model.top_k == 2);
    CHECK(t.ahead == 0);
    CHECK(t.scores.empty());
    CHECK(t.phase_of(0) == Phase::prefill);
    CHECK(t.phase_of(1) == Phase::prefill);
    CHECK(t.phase_of(2) == Phase::decode);
    const std::uint16_t experts[3][2][2] = {{{3, 1}, {1, 2}}, {{2, 0}, {0, 3}}, {{1, 2}, {3, 0}}};
    const float weights[3][2][2] = {
        {{0.75F, 0.25F}, {0.625F, 0.375F}}, {{0.5F, 0.5F}, {0.875F, 0.125F}}, {{1.0F, 5.96046e-08F}, {0.7F, 0.3F}}};
    for (std::uint32_t token = 0; token < 3; ++token) {
      for (std::uint32_t l = 0; l < 2; ++l) {
        for (std::uint32_t i = 0; i < 2; ++i) {
          CHECK(t.expert(token, l, i) == experts[token][l][i]);
          CHECK(t.weight(token, l, i) == weights[token][l][i]);
        }
      }
    }
    // At 8, 4 and 2 bits our layout takes, for each of 3 matrices of 64 x 64 weights, 4096, 2048 or 1024 bytes of codes
    // and 64 groups of 8: 13824, 7680, 4608. It is stored where it is smaller than the file's own expert.
    REQUIRE(t.model.expert_bytes.size() == 2);
    CHECK(t.model.expert_bytes[0] == ExpertBytes{0, 4608, 7680, 13824, 20000});
    CHECK(t.model.expert_bytes[1] == ExpertBytes{0, 4608, 7680, 0, 8000});
    // Dense weights have the file's bytes, if it states them; otherwise the shape's, 1000 + 64 * 4 at 16 bits.
    REQUIRE(made->work.size() == 2);
    CHECK(made->work[0].dense_bytes == 111);
    CHECK(made->work[1].dense_bytes == 2512);
    CHECK(made->work[1].dense_operations == 2512);
    CHECK(made->work[0].expert_operations == 6 * 64 * 64);

    const TemporaryFolder folder;
    made->write(folder.path() / "t.safetensors");
    check_same(*made, TraceFile(folder.path() / "t.safetensors"));
  }
}

TEST_CASE("a route trace with other experts a token than the shape keeps its own") {
  RouteTrace route;
  route.lines[1] = "# n_layer=2 n_expert=4 n_expert_used=1";
  std::erase_if(route.lines, [](const std::string& l) { return l.starts_with("0,") && l[8] == '1'; });  // slot 1
  const auto made = import_text("routes.csv", route.text());
  CHECK(made->trace.model.top_k == 1);
  CHECK(made->trace.expert(1, 1, 0) == 0);
}

TEST_CASE("damaged route traces are refused by the number of the line") {
  auto line = [](std::size_t number, const std::string& text, const std::vector<std::string>& parts) {
    const std::string message = refused_line(number, text);
    CHECK(says(message, {"line " + std::to_string(number) + ": "}));
    CHECK(says(message, parts));
  };
  line(3, "# layer=0 dense_bytes=111", {"expert_bytes"});
  line(3, "# layer=0 expert_bytes=0 dense_bytes=111", {"expert_bytes"});
  line(3, "# layer=0 expert_bytes=99999999999999999999 dense_bytes=111", {"\"expert_bytes=\" is not"});
  line(3, "# layer=1 expert_bytes=5 dense_bytes=111", {"layers out of order"});
  line(4, "# layer=0 expert_bytes=5 dense_bytes=111", {"layers out of order"});
  line(5, "turn,phase,step,layer,expert,slot", {"expected the header turn,phase,step,layer"});
  line(6, "# layer=2 expert_bytes=5 dense_bytes=111", {"the model is described behind its first rows"});
  line(6, "", {"expected six whole numbers first"});
  line(6, "hello", {"expected six whole numbers first"});
  line(6, "0,0,0,0,0", {"expected six whole numbers first"});
  line(6, "0,0,0,0,0,3", {"expected six whole numbers first"});
  line(6, "0,0,0,0,x,3,0.75", {"expected six whole numbers first"});
  line(6, "0,0,0,0,0,-3,0.75", {"expected six whole numbers first"});
  line(6, "0,0,0,0,0,99999999999,0.75", {"expected six whole numbers first"});
  line(6, "0,0,0,0,0,3.0,0.75", {"expected six whole numbers first"});
  line(6, "1,0,0,0,0,3,0.75", {"a second turn"});
  line(6, "0,2,0,0,0,3,0.75", {"phase is 2, expected 0 to 1"});
  line(6, "0,0,0,2,0,3,0.75", {"layer is 2, expected 0 to 1"});
  line(6, "0,0,0,0,2,3,0.75", {"slot is 2, expected 0 to 1"});
  line(6, "0,0,0,0,0,4,0.75", {"expert is 4, expected 0 to 3"});
  line(6, "0,0,1,0,0,3,0.75", {"token 1 comes after 0 tokens"});
  line(8, "0,0,2,0,0,3,0.75", {"token 2 comes after 1 tokens"});
  line(14, "0,1,4294967295,0,0,3,0.75", {"token 4294967295 comes after 2 tokens"});
  line(6, "0,0,0,0,0,3,heavy,0,20000", {"the seventh column is no weight"});
  for (const char* weight : {"1e99", "-1e39", "nan", "inf", "1e-"}) {
    line(6, fmt::format("0,0,0,0,0,3,{},0,20000", weight), {"the seventh column is no weight"});
  }
  CHECK(refused_line(6, "0,0,0,0,0,3,1e-60,0,20000").empty());
  for (const char* size : {"1e9", "1.7e7", "20,000", "20000x", "-1", "", "0x10"}) {
    line(3, fmt::format("# layer=0 expert_bytes={} dense_bytes=111", size),
         {"\"expert_bytes=\" is not followed by a whole"});
    line(3, fmt::format("# layer=0 expert_bytes=5 dense_bytes={}", size),
         {"\"dense_bytes=\" is not followed by a whole"});
  }
  line(2, "# x n_layer=2.5 n_expert=4 n_expert_used=2", {"\"n_layer=\" is not"});
  line(2, "# x n_layer=2 n_expert=4e0 n_expert_used=2", {"\"n_expert=\" is not"});
  line(7, "0,0,0,0,0,3,0.75", {"stood before"});
  line(8, "0,0,0,0,0,3,0.75", {"stood before"});

  RouteTrace route;
  route.lines.erase(route.lines.begin() + 3);
  CHECK(says(refusal("bad.csv", [&] { import_text("bad.csv", route.text()); }), {"line 4", "not every layer"}));
  route = {};
  for (std::size_t i = 5; i < 13; ++i) route.lines[i][2] = '1';  // the prompt becomes decode, the answer the prompt
  for (std::size_t i = 13; i < 17; ++i) route.lines[i][2] = '0';
  CHECK(says(refusal("bad.csv", [&] { import_text("bad.csv", route.text()); }), {"line 14: prefill after decode"}));
  route = {};
  route.lines.pop_back();
  CHECK(says(refusal("bad.csv", [&] { import_text("bad.csv", route.text()); }),
             {"token 2, layer 1: 1 of 2 experts are missing"}));
  route = {};
  route.lines[7] = "0,0,1,0,0,0,0.5";
  CHECK(says(refusal("bad.csv", [&] { import_text("bad.csv", route.text()); }),
             {"token 1, layer 0: expert 0 stands twice"}));
  CHECK(says(refused_line(2, "# x n_layer=3 n_expert=4 n_expert_used=2"), {"has 3 layers, but --shape tiny has 2"}));
  CHECK(says(refused_line(2, "# x n_layer=2 n_expert=8 n_expert_used=2"),
             {"has 8 experts a layer, but --shape tiny has 4"}));
  CHECK(says(refused_line(2, "# x n_layer=2 n_expert=4"), {"n_expert_used is 0"}));
  CHECK(says(refused_line(2, "# x n_layer=2 n_expert=4 n_expert_used=5"), {"expected 1 to 4"}));
  for (const char* text : {"", "# route_trace v1\n", "\n", "a,b,c\n"}) {
    CHECK_FALSE(refusal("bad.csv", [&] { import_text("bad.csv", text); }).empty());
  }
  route = {};
  route.lines.resize(5);
  CHECK(says(refusal("bad.csv", [&] { import_text("bad.csv", route.text()); }), {"no tokens are recorded"}));
}

TEST_CASE("a comment between the lines of a route trace does not change the model") {
  RouteTrace route;  // with 4 experts a token, places would lie beyond memory for 2
  route.lines.insert(route.lines.begin() + 7, "# again n_layer=2 n_expert=4 n_expert_used=4");
  route.lines[8] = "0,0,0,1,3,2,0.5";
  CHECK(says(refusal("bad.csv", [&] { import_text("bad.csv", route.text()); }), {"line 8: the model is described"}));
}

TEST_CASE("a route trace's weights and phases are not guessed") {
  CHECK(says(refused_line(6, "0,0,0,0,0,3,0.75x,0,20000"), {"line 6: the seventh column is no weight"}));
  CHECK(says(refused_line(6, "0,0,0,0,0,3,,0,20000"), {"line 6: the seventh column is no weight"}));
  CHECK(says(refused_line(11, "0,1,0,1,1,2,0.375,0,8000"), {"line 11"}));  // token 0 was prompt in layer 0
}

TEST_CASE("what is imported can be read again") {
  // Sizes that the trace format does not allow are refused on import.
  for (const char* comment : {"# layer=0 expert_bytes=2000000000000000 dense_bytes=1",
                              "# layer=0 expert_bytes=20000 dense_bytes=9000000000000000"}) {
    CHECK(says(refused_line(3, comment), {"line 3"}));
  }
}

TEST_CASE("others' safetensors are imported, halves exactly") {
  RawTrace raw;
  const auto experts = raw.at("experts"), starts = raw.at("sequence_start"), phase = raw.at("phase");
  // 1, -2, 1/3 as a half has it (1365 / 4096), the smallest, the largest, infinity.
  const std::vector<std::uint16_t> halves = {0x3C00, 0xC000, 0x3555, 0x0001, 0x7BFF, 0x7C00};
  const std::vector<float> floats = {
      1, -2, 1365.0F / 4096, 1.0F / (1 << 24), 65504, std::numeric_limits<float>::infinity()};
  std::vector<std::uint16_t> weights16;
  std::vector<float> weights32;
  for (std::size_t i = 0; i < 42; ++i) {
    weights16.push_back(halves[i % 6]);
    weights32.push_back(floats[i % 6]);
  }
  const RawTensor f16 = {"weights", "F16", {7, 3, 2}, raw_bytes(weights16)},
                  f32 = {"weights", "F32", {7, 3, 2}, raw_bytes(weights32)};
  Json shape = tiny_shape();
  shape["layers"] = 3;
  const ModelFacts facts = read_tiny(shape);
  const TemporaryFolder folder;
  const Path path = folder.path() / "theirs.safetensors";
  for (const RawTensor& weights : {f16, f32}) {
    raw.tensors = {experts, phase, weights, starts};  // nothing is aligned
    raw.header_multiple = 1;
    raw.model = nullptr;
    raw.metadata = {{"experts_per_layer", "4"}, {"source", "elsewhere"}};
    write_file(path, raw.file());
    const auto made = import_trace(path, facts);
    const Trace& t = made->trace;
    CHECK(made->source == "elsewhere");
    CHECK(t.name == "tiny");
    CHECK(t.model.renormalises());
    CHECK(t.tokens == 7);
    CHECK(same_bits(t.weights, weights32));
    CHECK(made->sequence_start == std::vector<std::uint32_t>{0, 4});
    CHECK(std::ranges::equal(t.phase, std::vector<std::uint8_t>{0, 0, 1, 1, 0, 1, 1}));
    CHECK(t.expert(5, 2, 1) == RawTrace::expert(5, 2, 1));
    CHECK(t.model.expert_bytes == std::vector<ExpertBytes>{{0, 4608, 7680, 13824, 24576}});
    made->write(folder.path() / "ours.safetensors");
    check_same(*made, TraceFile(folder.path() / "ours.safetensors"));
  }
  // Weights, phases and metadata may be absent.
  raw.tensors = {experts, starts};
  raw.metadata = nullptr;
  write_file(path, raw.file());
  const auto bare = import_trace(path, facts);
  CHECK(bare->source == "theirs.safetensors");
  CHECK(bare->trace.weights.empty());
  CHECK(bare->trace.weight(0, 0, 0) == 0.5F);
  CHECK(bare->trace.phase_of(0) == Phase::decode);
}

TEST_CASE("an expert numbered 255 is an expert where the model has as many") {
  RawTrace raw;
  const auto starts = raw.at("sequence_start");
  raw.tensors = {{"experts", "U8", {7, 1, 1}, "\xff\x01\xfe\xff\x01\x02\x03"}, starts};
  Json shape = tiny_shape();
  shape["layers"] = shape["top_k"] = 1;
  shape["experts"] = 256;
  const TemporaryFolder folder;
  write_file(folder.path() / "theirs.safetensors", raw.file());
  const auto made = import_trace(folder.path() / "theirs.safetensors", read_tiny(shape));
  CHECK(made->trace.expert(0, 0, 0) == 255);
  made->write(folder.path() / "ours.safetensors");
  CHECK(TraceFile(folder.path() / "ours.safetensors").trace.expert(3, 0, 0) == 255);
}

TEST_CASE("others may write experts and sequences as integers of any width") {
  const auto with = [](const std::string& name, const std::string& type, const auto& widened) {
    return refused_import([&](RawTrace& r) {
      const RawTensor was = r.at(name);
      r.at(name) = {name, type, was.shape, widened(was.bytes)};
    });
  };
  const auto as = [](auto number) {
    using Number = decltype(number);
    return [](const std::string& bytes) {
      std::vector<Number> all;
      for (const char c : bytes) all.push_back(static_cast<Number>(c));
      return raw_bytes(all);
    };
  };
  CHECK(with("experts", "U16", as(std::uint16_t{0})).empty());
  CHECK(with("experts", "I16", as(std::int16_t{0})).empty());
  CHECK(with("experts", "I32", as(std::int32_t{0})).empty());
  CHECK(with("experts", "I64", as(std::int64_t{0})).empty());
  const auto of = [](std::int64_t third) {
    return [third](const std::string& bytes) {
      std::vector<std::int64_t> all(bytes.begin(), bytes.end());
      all[2] = third;
      return raw_bytes(all);
    };
  };
  CHECK(says(with("experts", "I64", of(-1)), {"tensor \"experts\": [2] is -1, expected 0 to 65534"}));
  CHECK(says(with("experts", "I64", of(65535)), {"tensor \"experts\": [2] is 65535, expected 0 to 65534"}));
  CHECK(says(with("experts", "I64", of(4)), {"expert 4"}));
  const auto starts = [](std::int64_t second) {
    return [second](const std::string& /*bytes*/) { return raw_bytes(std::vector<std::int64_t>{0, second}); };
  };
  CHECK(with("sequence_start", "I64", starts(4)).empty());
  CHECK(says(with("sequence_start", "I64", starts(std::int64_t{1} << 40)), {"sequence_start[1] is 1099511627776"}));
}

TEST_CASE("damaged safetensors of others are refused by name") {
  CHECK(refused_import([](RawTrace&) {}).empty());
  auto retyped = [](const std::string& name, const std::string& type, const Shape64& shape, std::size_t bytes) {
    return refused_import([&](RawTrace& r) {
      r.leave_out(name);
      r.tensors.push_back({name, type, shape, std::string(bytes, '\0')});
    });
  };
  CHECK(says(retyped("experts", "U8", {7, 4, 2}, 56), {"has 4 layers, but --shape tiny has 3"}));
  CHECK(says(refused_import([](RawTrace& r) {
               std::vector<float> values(42, 0.5F);
               values[7] = std::numeric_limits<float>::quiet_NaN();
               r.tensors.push_back({"weights", "F32", {7, 3, 2}, raw_bytes(values)});
             }),
             {"tensor \"weights\": [7] is no number"}));
  CHECK(says(retyped("experts", "U8", {7, 3, 5}, 105), {"top_k is 5, expected 1 to 4"}));
  CHECK(says(retyped("experts", "U8", {7, 3, 0}, 0), {"k is 0"}));
  CHECK(says(refused_import([](RawTrace& r) {
               r.leave_out("phase");
               r.at("experts") = {"experts", "U8", {0, 3, 2}, ""};
             }),
             {"no tokens are recorded"}));
  CHECK(says(retyped("experts", "F32", {7, 3, 2}, 168), {"\"experts\": is F32, expected U8, U16, I16, I32 or I64"}));
  CHECK(says(retyped("experts", "U8", {7, 6}, 42), {"\"experts\": expected shape [tokens, layers, k]"}));
  CHECK(says(retyped("experts", "U8", {7, 3, 2}, 42), {"token 0, layer 0: expert 0 stands twice"}));
  CHECK(
      says(retyped("sequence_start", "U32", {2}, 8), {"\"sequence_start\": expected I32 or I64 of shape [sequences]"}));
  CHECK(says(retyped("sequence_start", "I32", {2}, 8), {"sequence_start[1] is 0 after 0"}));
  CHECK(says(retyped("sequence_start", "I32", {0}, 0), {"sequence_start must begin with token 0"}));
  CHECK(says(retyped("weights", "BF16", {7, 3, 2}, 84),
             {"\"weights\": expected F16 or F32 in the shape of \"experts\""}));
  CHECK(
      says(retyped("weights", "F32", {7, 3, 1}, 84), {"\"weights\": expected F16 or F32 in the shape of \"experts\""}));
  CHECK(says(retyped("phase", "U8", {6}, 6), {"\"phase\": expected U8 of shape [tokens]"}));
  CHECK(says(retyped("phase", "I8", {7}, 7), {"\"phase\": expected U8 of shape [tokens]"}));
  CHECK(says(refused_import([](RawTrace& r) { r.leave_out("experts"); }), {"tensor \"experts\" is missing"}));
  CHECK(says(refused_import([](RawTrace& r) { r.leave_out("sequence_start"); }), {"\"sequence_start\" is missing"}));
  CHECK(says(refused_import([](RawTrace& r) { r.metadata["experts_per_layer"] = "8"; }),
             {"has 8 experts a layer, but --shape tiny has 4"}));
  CHECK(says(refused_import([](RawTrace& r) { r.metadata["experts_per_layer"] = "many"; }), {"experts a layer"}));
  CHECK(says(refused_import([](RawTrace& r) { r.set_starts({0, -4}); }), {"sequence_start[1] is -4"}));
  CHECK(says(refused_import([](RawTrace& r) { r.set_expert(2, 1, 1, 200); }), {"token 2, layer 1: expert 200 of 4"}));
  CHECK(says(refused_import([](RawTrace& r) { r.set_phase(3, 0); }), {"prefill after decode at token 3"}));
  const TemporaryFolder folder;
  for (const char* name : {"folder", "folder.csv"}) {
    std::filesystem::create_directory(folder.path() / name);
    CHECK(says(refusal(name, [&] { import_trace(folder.path() / name, read_tiny()); }), {"not a regular file"}));
  }
  CHECK(says(refusal("x.csv", [&] { import_trace(folder.path() / "x.csv", read_tiny()); }), {"cannot open"}));
}
