#include "trace/trace_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "ferry/error.hpp"
#include "support/checksum.hpp"
#include "support/errors.hpp"
#include "support/json.hpp"
#include "support/mapped_file.hpp"
#include "support/memory.hpp"
#include "support/output_file.hpp"

namespace ferry::engine {
namespace {

constexpr const char* format_name = "ferry-trace 2";
constexpr const char* format_without_checksum = "ferry-trace 1";

std::atomic<std::uint64_t> copied_bytes = 0;  ///< of files in memory, of all traces

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& what) {
  throw InputError(file.string() + ": " + what);
}

const char* bytes_of(const std::byte* data) {
  return reinterpret_cast<const char*>(data);
}

/// Refuses NaN, from which a policy would make decisions that look plausible.
template <class T>
void check_numbers(const std::filesystem::path& path, const std::string& name, std::span<const T> all) {
  const auto odd = std::find_if(all.begin(), all.end(), [](T value) { return std::isnan(value); });
  if (odd != all.end()) refuse(path, fmt::format("tensor \"{}\": [{}] is no number", name, odd - all.begin()));
}

/// A tensor of a Ferry trace, as a span of the mapped file.
template <class T>
std::span<const T> span_of(const Safetensors& file, const std::string& name, const char* type,
                           const std::vector<std::uint64_t>& shape) {
  const auto found = file.tensors().find(name);
  if (found == file.tensors().end()) return {};
  const Tensor& t = found->second;
  if (t.dtype_name != type || t.shape != shape) {
    refuse(file.path(), fmt::format("tensor \"{}\" is {} [{}], expected {} [{}]", name, t.dtype_name,
                                    fmt::join(t.shape, ", "), type, fmt::join(shape, ", ")));
  }
  if (reinterpret_cast<std::uintptr_t>(t.data) % alignof(T) != 0) {
    refuse(file.path(),
           fmt::format("tensor \"{}\" begins at an address that is no multiple of {}: write the trace with "
                       "ferry, which pads the header",
                       name, alignof(T)));
  }
  const std::span<const T> all(reinterpret_cast<const T*>(t.data), t.elements());
  if constexpr (std::is_floating_point_v<T>) check_numbers(file.path(), name, all);
  return all;
}

/// Copies numbers that arrays are indexed by out of a mapped file before they are checked, since the file could change after
/// the check. Floats need no copy: no value of them can do harm.
template <class T>
std::span<const T> copy_of(std::span<const T> mapped, std::vector<T>& own) {
  own.assign(mapped.begin(), mapped.end());
  return own;
}

void check_checksum(const Safetensors& file, bool expected) {
  const std::string_view all(bytes_of(file.content().data()), file.content().size());
  std::uint64_t header = 0;
  std::memcpy(&header, all.data(), sizeof(header));
  header += sizeof(header);  // `Safetensors` has checked that it fits the file
  const Seal found = seal_of(all.substr(0, header), {all.substr(header)});
  if (!expected || found == Seal::right) return;
  refuse(file.path(), found == Seal::none
                          ? "has no \"xxh3\" in its metadata: the file is damaged"
                          : "its checksum differs: the file is damaged: record it again, or copy it anew");
}

/// Validates a trace. Refusals get the file's name.
void check(const Trace& trace, const std::filesystem::path& file) {
  try {
    trace.validate();
  } catch (const ConfigError& e) {
    const std::string what = e.what();
    refuse(file, what.starts_with("trace: ") ? what.substr(7) : what);
  }
}

std::uint16_t small(const std::filesystem::path& file, const std::string& name, std::uint64_t value) {
  if (value == 0 || value >= no_expert) refuse(file, fmt::format("{} is {}, expected 1 to 65534", name, value));
  return static_cast<std::uint16_t>(value);
}

/// Refuses a foreign file that contradicts the model that the user named.
void must_be(const std::filesystem::path& file, const ModelFacts& shape, const char* what, std::uint64_t here,
             std::uint64_t there) {
  if (here == there) return;
  refuse(file, fmt::format("has {} {}, but --shape {} has {}", here, what, shape.name, there));
}

std::unique_ptr<TraceFile> begin(const std::filesystem::path& path, const ModelFacts& shape) {
  auto made = std::make_unique<TraceFile>();
  made->trace.name = shape.name;
  made->trace.model = shape.model;
  made->work = shape.work;
  made->source = path.filename().string();
  return made;
}

/// Numbers of experts, in whatever integers they are.
std::vector<std::uint16_t> expert_numbers(const std::filesystem::path& path, const Tensor& tensor) {
  std::vector<std::uint16_t> all(tensor.elements());
  const auto read = [&]<class T>(T value) {
    for (std::uint64_t i = 0; i < all.size(); ++i) {
      std::memcpy(&value, tensor.data + i * sizeof(value), sizeof(value));
      if (std::cmp_less(value, 0) || std::cmp_greater_equal(value, no_expert)) {
        refuse(path, fmt::format("tensor \"experts\": [{}] is {}, expected 0 to 65534", i, value));
      }
      all[i] = static_cast<std::uint16_t>(value);
    }
  };
  const std::string& type = tensor.dtype_name;
  if (type == "U8") {
    read(std::uint8_t{0});
  } else if (type == "U16") {
    read(std::uint16_t{0});
  } else if (type == "I16") {
    read(std::int16_t{0});
  } else if (type == "I32") {
    read(std::int32_t{0});
  } else if (type == "I64") {
    read(std::int64_t{0});
  } else {
    refuse(path, fmt::format("tensor \"experts\": is {}, expected U8, U16, I16, I32 or I64", printable(type)));
  }
  return all;
}

std::unique_ptr<TraceFile> import_safetensors(const std::filesystem::path& path, const ModelFacts& shape) {
  const Safetensors file(path);
  const Tensor& experts = file.at("experts");
  const Tensor& starts = file.at("sequence_start");
  if (experts.shape.size() != 3) refuse(path, "tensor \"experts\": expected shape [tokens, layers, k]");
  const bool wide = starts.dtype_name == "I64";
  if ((starts.dtype_name != "I32" && !wide) || starts.shape.size() != 1) {
    refuse(path, "tensor \"sequence_start\": expected I32 or I64 of shape [sequences]");
  }
  auto made = begin(path, shape);
  Trace& t = made->trace;
  must_be(path, shape, "layers", experts.shape[1], t.model.layers);
  t.model.top_k = small(path, "k", experts.shape[2]);
  if (experts.shape[0] > 0x7fffffffU) refuse(path, fmt::format("{} tokens are too many", experts.shape[0]));
  t.tokens = static_cast<std::uint32_t>(experts.shape[0]);
  made->experts = expert_numbers(path, experts);
  for (std::uint64_t i = 0; i < starts.elements(); ++i) {
    std::int64_t start = 0;
    if (std::int32_t narrow = 0; wide) {
      std::memcpy(&start, starts.data + i * sizeof(start), sizeof(start));
    } else {
      std::memcpy(&narrow, starts.data + i * sizeof(narrow), sizeof(narrow));
      start = narrow;
    }
    if (start < 0 || start > 0x7fffffff) refuse(path, fmt::format("sequence_start[{}] is {}", i, start));
    made->sequence_start.push_back(static_cast<std::uint32_t>(start));
  }
  if (file.tensors().contains("weights")) {
    const Tensor& weights = file.at("weights");
    if (weights.shape != experts.shape || (weights.dtype != DType::f16 && weights.dtype != DType::f32)) {
      refuse(path, "tensor \"weights\": expected F16 or F32 in the shape of \"experts\"");
    }
    made->weights = weights.to_floats();
    check_numbers<float>(path, "weights", made->weights);
  }
  if (file.tensors().contains("phase")) {
    const Tensor& phase = file.at("phase");
    if (phase.dtype_name != "U8" || phase.shape != std::vector<std::uint64_t>{experts.shape[0]}) {
      refuse(path, "tensor \"phase\": expected U8 of shape [tokens]");
    }
    const auto* data = reinterpret_cast<const std::uint8_t*>(phase.data);
    made->phase.assign(data, data + phase.bytes);
  }
  if (const auto said = file.metadata().find("experts_per_layer"); said != file.metadata().end()) {
    must_be(path, shape, "experts a layer", std::strtoull(said->second.c_str(), nullptr, 10), t.model.experts);
  }
  if (const auto said = file.metadata().find("source"); said != file.metadata().end()) made->source = said->second;
  file.check_unchanged();
  return made;
}

/// The whole number after `key` in a line; 0 without the key, nothing if no such number follows it.
std::optional<std::uint64_t> field(std::string_view line, std::string_view key) {
  const std::size_t at = line.find(key);
  if (at == std::string_view::npos) return 0;
  const std::string_view rest = line.substr(at + key.size()), said = rest.substr(0, rest.find_first_of(" \t"));
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(said.data(), said.data() + said.size(), value);
  if (error != std::errc{} || end != said.data() + said.size()) return std::nullopt;
  return value;
}

constexpr std::uint64_t largest_number = 1'000'000'000'000'000;  // of bytes or anything else in a file

/// Routes recorded by another program: comments that describe the model, a header, and a row for each chosen expert.
class RouteCsv {
 public:
  RouteCsv(const std::filesystem::path& path, const ModelFacts& shape)
      : path_(path), shape_(shape), made_(begin(path, shape)) {
    model().expert_bytes.clear();
  }

  std::unique_ptr<TraceFile> read() {
    const MappedFile file(path_, MappedFile::Hold::copied);
    std::string_view text(bytes_of(file.data()), file.size());
    for (; !text.empty(); ++number_) {
      line_ = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(text.size(), line_.size() + 1));
      if (line_.ends_with('\r')) line_.remove_suffix(1);
      if (line_.starts_with('#')) {
        describe();
      } else if (!header_) {
        begin_rows();
      } else {
        add_row();
      }
    }
    if (!header_) refuse(path_, "no line begins with turn,phase,step,layer,slot,expert: this is no route trace");
    made_->sequence_start = {0};
    made_->work = std::move(work_);
    return std::move(made_);
  }

 private:
  ModelShape& model() { return made_->trace.model; }
  [[noreturn]] void bad(const std::string& what) const { refuse(path_, fmt::format("line {}: {}", number_, what)); }
  [[nodiscard]] std::uint64_t whole(std::string_view key) const {
    const std::optional<std::uint64_t> value = field(line_, key);
    if (!value) bad(fmt::format("\"{}\" is not followed by a whole number", key.substr(key.find_first_not_of("# "))));
    return *value;
  }

  void describe() {
    const bool whole_model = line_.find(" n_layer=") != std::string_view::npos;
    const bool one_layer = !whole_model && line_.starts_with("# layer=");
    if (header_ && (whole_model || one_layer)) bad("the model is described behind its first rows");
    if (whole_model) {
      must_be(path_, shape_, "layers", whole(" n_layer="), model().layers);
      must_be(path_, shape_, "experts a layer", whole(" n_expert="), model().experts);
      model().top_k = small(path_, "n_expert_used", whole(" n_expert_used="));
      if (model().top_k > model().experts) {
        bad(fmt::format("n_expert_used is {}, expected 1 to {}", model().top_k, model().experts));
      }
    } else if (one_layer) {
      describe_layer();
    }
  }

  void describe_layer() {
    if (whole("# layer=") != work_.size() || work_.size() == model().layers) bad("layers out of order");
    ExpertBytes bytes{};
    bytes[static_cast<unsigned>(Precision::full)] = whole(" expert_bytes=");
    if (bytes.back() == 0 || bytes.back() > largest_number) bad("expert_bytes must be 1 to 10^15");
    for (std::uint32_t p = 1; p < precision_count - 1; ++p) {  // our own sizes if they are smaller
      const std::uint64_t ours = shape_.model.bytes(0, static_cast<Precision>(p));
      if (ours < bytes.back()) bytes[p] = ours;
    }
    model().expert_bytes.push_back(bytes);
    LayerWork w = shape_.work[0];
    if (const std::uint64_t dense = whole(" dense_bytes="); dense > 0) w.dense_bytes = dense;
    if (w.dense_bytes > largest_number) bad("dense_bytes must be 0 to 10^15");
    work_.push_back(w);
  }

  void begin_rows() {
    if (!line_.starts_with("turn,phase,step,layer,slot,expert,weight")) {
      bad("expected the header turn,phase,step,layer,slot,expert,weight,...");
    }
    if (work_.size() != model().layers) bad("not every layer has its \"# layer=\" line");
    header_ = true;
  }

  void add_row() {
    std::uint32_t column[6] = {};  // turn, phase, step, layer, slot, expert
    const char* at = line_.data();
    const char* const end = at + line_.size();
    for (std::uint32_t& value : column) {
      const auto [next, error] = std::from_chars(at, end, value);
      if (error != std::errc{} || next == end || *next != ',') bad("expected six whole numbers first");
      at = next + 1;
    }
    const auto [turn, phase, token, layer, slot, expert] = column;
    if (turn != 0) bad("a second turn: one prompt and its answer are expected");
    const std::tuple<const char*, std::uint32_t, std::uint32_t> ranges[] = {{"phase", phase, 2},
                                                                            {"layer", layer, model().layers},
                                                                            {"slot", slot, model().top_k},
                                                                            {"expert", expert, model().experts}};
    for (const auto& [name, value, most] : ranges) {
      if (value >= most) bad(fmt::format("{} is {}, expected 0 to {}", name, value, most - 1));
    }
    const float weight = weight_of(at, end);
    Trace& t = made_->trace;
    if (token > t.tokens) bad(fmt::format("token {} comes after {} tokens", token, t.tokens));
    const std::size_t of_token = std::size_t{model().layers} * model().top_k;
    if (token == t.tokens) {
      if (t.tokens > 0 && phase < made_->phase.back()) bad("prefill after decode");
      ++t.tokens;
      made_->phase.push_back(static_cast<std::uint8_t>(phase));
      made_->experts.resize(made_->experts.size() + of_token, no_expert);
      made_->weights.resize(made_->weights.size() + of_token, 0.0F);
    }
    if (made_->phase[token] != phase) bad("this token was of the other phase before");
    const std::size_t place = token * of_token + std::size_t{layer} * model().top_k + slot;
    if (made_->experts[place] != no_expert) bad("this token, layer and slot stood before");
    made_->experts[place] = static_cast<std::uint16_t>(expert);
    made_->weights[place] = weight;
  }

  [[nodiscard]] float weight_of(const char* at, const char* end) const {
    float weight = 0;
    const auto [next, error] = std::from_chars(at, end, weight);
    double exact = 1;  // tells too small from too large for a float
    const bool tiny = error == std::errc::result_out_of_range && std::from_chars(at, end, exact).ec == std::errc{} &&
                      std::abs(exact) < 1;
    if ((error != std::errc{} && !tiny) || (next != end && *next != ',') || !std::isfinite(weight)) {
      bad("the seventh column is no weight, expected a finite number");
    }
    return weight;
  }

  const std::filesystem::path& path_;
  const ModelFacts& shape_;
  std::unique_ptr<TraceFile> made_;
  std::vector<LayerWork> work_;
  std::string_view line_;
  std::size_t number_ = 1;  ///< of the line
  bool header_ = false;     ///< whether the names of columns have been read
};

/// A number for each layer; empty if the file has none.
std::vector<std::uint16_t> by_layer(const Fields& f, const char* field, std::uint16_t most, std::uint16_t layers) {
  std::vector<std::uint16_t> all;
  if (!f.has(field)) return all;
  const Json& list = f.at(field);
  const auto good = [&](const Json& n) { return n.is_number_unsigned() && n >= 1U && n <= most; };
  if (!list.is_array() || list.size() != layers || !std::all_of(list.begin(), list.end(), good)) {
    f.refuse(field, fmt::format("{} whole numbers from 1 to {}, one for each layer", layers, most));
  }
  for (const Json& n : list) all.push_back(n.get<std::uint16_t>());
  return all;
}

/// Lists of `least` to `most` numbers, one for all layers or one for each.
std::vector<std::vector<std::uint64_t>> number_lists(const Fields& f, const char* field, std::size_t least,
                                                     std::size_t most, std::uint16_t layers) {
  const Json& list = f.at(field);
  if (!list.is_array() || (list.size() != 1 && list.size() != layers)) {
    f.refuse(field, "a list for all layers, or one for each");
  }
  std::vector<std::vector<std::uint64_t>> all;
  for (const Json& item : list) {
    if (!item.is_array() || item.size() < least || item.size() > most) {
      f.refuse(field, fmt::format("lists of {} whole numbers", most));
    }
    auto& row = all.emplace_back();
    for (const Json& n : item) {
      if (!n.is_number_unsigned()) f.refuse(field, "whole numbers");
      row.push_back(n.get<std::uint64_t>());
      if (row.back() > largest_number) f.refuse(field, "numbers up to 10^15");
    }
  }
  return all;
}

ModelShape model_of(const Fields& f, const std::string& where) {
  ModelShape model;
  model.renormalise = renormalise_if(f.flag("renormalise", true));
  if (f.has("scale")) model.scale = static_cast<float>(f.number("scale", 0));
  if (f.has("least_sum")) model.least_sum = static_cast<float>(f.number("least_sum", 0));
  if (f.has("added_to_sum")) model.added_to_sum = static_cast<float>(f.number("added_to_sum", 0));
  model.layers = static_cast<std::uint16_t>(f.whole("layers", 1, 65535));
  model.experts = static_cast<std::uint16_t>(f.whole("experts", 1, no_expert - 1));
  model.top_k = static_cast<std::uint16_t>(f.whole("top_k", 1, model.experts));
  model.max_rows = 1;
  check_size(model, where);
  model.layer_experts = by_layer(f, "layer_experts", model.experts, model.layers);
  model.layer_top_k = by_layer(f, "layer_top_k", model.top_k, model.layers);
  for (const auto& row : number_lists(f, "expert_bytes", precision_count - 1, precision_count - 1, model.layers)) {
    ExpertBytes bytes{};
    std::copy(row.begin(), row.end(), bytes.begin() + 1);
    model.expert_bytes.push_back(bytes);
  }
  return model;
}

}  // namespace

std::uint64_t TraceFile::memory_for_copies() {
  return physical_memory() / 16;  // little, since ranks of a sweep share a machine
}

TraceFile::TraceFile(const std::filesystem::path& path, std::uint64_t memory) {
  std::error_code none;  // on an error, opening the file says what is wrong
  const std::uint64_t bytes = std::filesystem::file_size(path, none);
  const bool copied = !none && copied_bytes + bytes <= memory;
  file_ = std::make_unique<Safetensors>(path, copied ? MappedFile::Hold::copied : MappedFile::Hold::mapped);
  const auto& metadata = file_->metadata();
  auto said = [&](const char* key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::string() : found->second;
  };
  if (said("format") != format_name && said("format") != format_without_checksum) {
    refuse(path,
           fmt::format("no trace of ferry's (its \"format\" is \"{}\", expected \"{}\"): `ferry trace import` reads "
                       "other people's",
                       said("format"), format_name));
  }
  const std::string where = path.string() + ": __metadata__ \"model\"";
  const Json json = parse_json(said("model"), where);
  const Fields f(json, where);
  trace.name = f.text("name");
  trace.model = model_of(f, where);
  // Older files lack the size of activations.
  for (const auto& row : number_lists(f, "work", 3, 4, trace.model.layers)) {
    work.push_back({row[0], row[1], row[2], row.size() == 4 ? row[3] : 0});
  }
  source = said("source");
  residency = said("residency");

  const Tensor& ids = file_->at("experts");
  if (ids.shape.size() != 3 || ids.shape[0] > 0x7fffffffU) {
    refuse(path, "tensor \"experts\": expected shape [tokens, layers, k]");
  }
  const std::uint64_t n = ids.shape[0], layers = trace.model.layers, experts_each = trace.model.experts;
  trace.tokens = static_cast<std::uint32_t>(n);
  if (ids.dtype_name == "U8") {
    trace.experts8 = span_of<std::uint8_t>(*file_, "experts", "U8", {n, layers, trace.model.top_k});
    if (!copied) trace.experts8 = copy_of(trace.experts8, narrow_experts_);
  } else {
    trace.experts16 = span_of<std::uint16_t>(*file_, "experts", "U16", {n, layers, trace.model.top_k});
    if (!copied) trace.experts16 = copy_of(trace.experts16, experts);
  }
  trace.weights = span_of<float>(*file_, "weights", "F32", {n, layers, trace.model.top_k});
  trace.scores = span_of<float>(*file_, "scores", "F32", {n, layers, experts_each});
  trace.partial = span_of<float>(*file_, "partial", "F32", {n, layers, experts_each});
  trace.choice_scores = span_of<float>(*file_, "choice_scores", "F32", {n, layers, experts_each});
  trace.choice_partial = span_of<float>(*file_, "choice_partial", "F32", {n, layers, experts_each});
  trace.phase = span_of<std::uint8_t>(*file_, "phase", "U8", {n});
  if (!copied) trace.phase = copy_of(trace.phase, phase);
  if (const auto found = file_->tensors().find("predicted"); found != file_->tensors().end()) {
    const std::uint64_t ahead = found->second.shape.size() == 4 ? found->second.shape[2] : 0;
    if (ahead < 1 || ahead > 4) refuse(path, "tensor \"predicted\": expected shape [tokens, layers, 1 to 4, experts]");
    trace.ahead = static_cast<std::uint16_t>(ahead);
    trace.predicted = span_of<float>(*file_, "predicted", "F32", {n, layers, ahead, experts_each});
    trace.choice_predicted = span_of<float>(*file_, "choice_predicted", "F32", {n, layers, ahead, experts_each});
  }
  // Both are I32 in the file, which numpy and torch support better than unsigned numbers. Starts that pass `check` are not
  // negative; ids are not checked.
  const auto ids_said = span_of<std::uint32_t>(*file_, "token_ids", "I32", {n});
  token_ids.assign(ids_said.begin(), ids_said.end());
  const std::vector<std::uint64_t> starts = file_->at("sequence_start").shape;
  trace.sequence_start =
      span_of<std::uint32_t>(*file_, "sequence_start", "I32", {starts.empty() ? std::uint64_t{0} : starts[0]});
  if (!copied) trace.sequence_start = copy_of(trace.sequence_start, sequence_start);
  check(trace, path);
  check_checksum(*file_, said("format") == format_name);
  file_->check_unchanged();
  if (!copied) return;
  copied_bytes_ = bytes;
  copied_bytes += bytes;
}

TraceFile::~TraceFile() {
  copied_bytes -= copied_bytes_;
}

void TraceFile::check_unchanged() const {
  if (file_) file_->check_unchanged();
}

std::uint64_t TraceFile::content_checksum() const {
  return checksum(file_->content().data(), file_->content().size());
}

void TraceFile::view() {
  trace.experts16 = experts;
  trace.weights = weights;
  trace.scores = scores;
  trace.predicted = predicted;
  trace.partial = partial;
  trace.choice_scores = choice_scores;
  trace.choice_predicted = choice_predicted;
  trace.choice_partial = choice_partial;
  trace.phase = phase;
  trace.sequence_start = sequence_start;
  trace.tokens = trace.model.layers == 0 || trace.model.top_k == 0
                     ? 0
                     : static_cast<std::uint32_t>(experts.size() / trace.model.layers / trace.model.top_k);
  trace.validate();
  if (!token_ids.empty() && token_ids.size() != trace.tokens) {
    throw ConfigError("trace: token_ids has " + std::to_string(token_ids.size()) + " elements, expected " +
                      std::to_string(trace.tokens));
  }
}

void TraceFile::write(const std::filesystem::path& path) const {
  OutputFile out(path, trace_kind);
  write(out);
}

void TraceFile::write(OutputFile& out) const {
  Json model = {{"name", trace.name},
                {"layers", trace.model.layers},
                {"experts", trace.model.experts},
                {"top_k", trace.model.top_k},
                {"renormalise", trace.model.renormalises()},
                {"scale", trace.model.scale},
                {"expert_bytes", Json::array()},
                {"work", Json::array()}};
  for (const ExpertBytes& b : trace.model.expert_bytes) model["expert_bytes"].push_back({b[1], b[2], b[3], b[4]});
  for (const LayerWork& w : work) {
    model["work"].push_back({w.dense_bytes, w.dense_operations, w.expert_operations, w.activation_bytes});
  }
  if (trace.model.least_sum > 0) model["least_sum"] = trace.model.least_sum;
  if (trace.model.added_to_sum > 0) model["added_to_sum"] = trace.model.added_to_sum;
  if (!trace.model.layer_experts.empty()) model["layer_experts"] = trace.model.layer_experts;
  if (!trace.model.layer_top_k.empty()) model["layer_top_k"] = trace.model.layer_top_k;
  const std::map<std::string, std::string> metadata = {{"format", format_name},     {"ferry", FERRY_VERSION},
                                                       {"model", json_text(model)}, {"source", source},
                                                       {"residency", residency},    {"xxh3", unsealed}};
  // The widest types come first, so that every tensor is aligned to its type.
  std::vector<std::uint8_t> narrow;
  SafetensorsWriter file;
  auto add = [&](const char* name, const char* type, auto span, const std::vector<std::uint64_t>& shape) {
    if (span.empty()) return;
    file.add(name, type, shape, {reinterpret_cast<const char*>(span.data()), span.size_bytes()});
  };
  const std::uint64_t n = trace.tokens, layers = trace.model.layers, each = trace.model.experts;
  const std::uint64_t k = trace.model.top_k;
  add("weights", "F32", trace.weights, {n, layers, k});
  add("scores", "F32", trace.scores, {n, layers, each});
  add("predicted", "F32", trace.predicted, {n, layers, trace.ahead, each});
  add("partial", "F32", trace.partial, {n, layers, each});
  add("choice_scores", "F32", trace.choice_scores, {n, layers, each});
  add("choice_predicted", "F32", trace.choice_predicted, {n, layers, trace.ahead, each});
  add("choice_partial", "F32", trace.choice_partial, {n, layers, each});
  add("token_ids", "I32", std::span<const std::uint32_t>(token_ids), {n});
  add("sequence_start", "I32", trace.sequence_start, {trace.sequence_start.size()});
  if (!trace.experts8.empty()) {
    add("experts", "U8", trace.experts8, {n, layers, k});
  } else if (trace.model.experts > 255) {
    add("experts", "U16", trace.experts16, {n, layers, k});
  } else {
    narrow.reserve(trace.experts16.size());
    for (const std::uint16_t e : trace.experts16) narrow.push_back(static_cast<std::uint8_t>(e));  // missing: 255
    add("experts", "U8", std::span<const std::uint8_t>(narrow), {n, layers, k});
  }
  add("phase", "U8", trace.phase, {n});
  file.commit(out, metadata);
}

std::unique_ptr<TraceFile> import_trace(const std::filesystem::path& path, const ModelFacts& shape) {
  auto made = path.extension() == ".csv" ? RouteCsv(path, shape).read() : import_safetensors(path, shape);
  try {
    made->view();
  } catch (const ConfigError& e) {
    const std::string what = e.what();
    refuse(path, what.starts_with("trace: ") ? what.substr(7) : what);
  }
  return made;
}

}  // namespace ferry::engine
