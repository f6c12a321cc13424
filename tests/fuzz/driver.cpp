// libFuzzer's entry points, and what the targets share.
//   TARGET --seeds FOLDER   writes the inputs to begin with
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>

#include "ferry/error.hpp"
#include "fuzz/check_simulated.hpp"
#include "fuzz/fuzz.hpp"
#include "profiles/machine.hpp"
#include "support/errors.hpp"
#include "trace/synthetic.hpp"

namespace ferry::fuzz {
namespace {

using test::Random;

/// Checks that a refusal is fit for a terminal: one line of limited length.
void check_refusal(const char* what) {
  const std::string line = what;
  const bool plain =
      std::none_of(line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
  if (line.empty() || line.size() > 1000 || !plain) throw Broken("a refusal is no short line of plain text");
}

/// Replaces one of the header's numbers.
std::string change_number(std::string header, Random& random) {
  static const std::vector<std::string> numbers = {"0",     "1",  "2",   "255",        "256",
                                                   "65535", "-1", "0.5", "4294967296", "18446744073709551615"};
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < header.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(header[i])) != 0;
    if (digit && (i == 0 || std::isdigit(static_cast<unsigned char>(header[i - 1])) == 0)) places.push_back(i);
  }
  if (places.empty()) return header;
  const std::size_t at = places[random.below(static_cast<std::uint32_t>(places.size()))];
  const std::size_t end = std::min(header.find_first_not_of("0123456789", at), header.size());
  return header.replace(at, end - at, numbers[random.below(static_cast<std::uint32_t>(numbers.size()))]);
}

/// Changes the shape of one tensor or of all that are alike, or the type of one, or removes one; offsets and data follow.
/// Throws if there is no header.
std::string lay_out_anew(const std::string& text, const std::string& data, std::size_t most, Random& random) {
  static const std::map<std::string, std::uint64_t> types = {{"U8", 1}, {"U16", 2}, {"I32", 4}, {"F16", 2}, {"F32", 4}};
  Json header = Json::parse(text);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : header.items()) {
    if (name != "__metadata__") names.push_back(name);
  }
  if (names.empty()) return test::safetensors_file(text, data);
  const std::string chosen = names[random.below(static_cast<std::uint32_t>(names.size()))];
  Json& shape = header.at(chosen).at("shape");
  if (random.chance(10)) {
    header.erase(chosen);
  } else if (random.chance(20) || shape.empty()) {
    const std::uint32_t nth = random.below(static_cast<std::uint32_t>(types.size()));
    header[chosen]["dtype"] = std::next(types.begin(), nth)->first;
  } else {
    const std::size_t axis = random.below(static_cast<std::uint32_t>(shape.size()));
    const Json was = shape[axis];
    const std::uint64_t size =
        random.chance(50) && was.is_number_unsigned() ? was.get<std::uint64_t>() + 1 : random.below(9);
    const bool all = random.chance(50);  // all tensors with this size there, as with another number of tokens
    for (const std::string& name : names) {
      Json& other = header[name].at("shape");
      if (name == chosen || (all && other.size() > axis && other[axis] == was)) other[axis] = size;
    }
  }
  std::string moved;
  for (auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    std::uint64_t bytes = types.at(tensor.at("dtype").get<std::string>());
    for (const Json& d : tensor.at("shape")) {
      if (!d.is_number_unsigned()) throw std::invalid_argument("no size");
      bytes = std::min<std::uint64_t>(bytes * std::min<std::uint64_t>(d.get<std::uint64_t>(), most), most + 1);
    }
    if (moved.size() + bytes > most) return test::safetensors_file(text, data);
    const Json& begin = tensor.at("data_offsets").at(0);
    if (!begin.is_number_unsigned() || begin.get<std::uint64_t>() > data.size())
      throw std::invalid_argument("no offset");
    std::string part = data.substr(begin.get<std::uint64_t>(), bytes);
    part.resize(bytes, '\1');
    tensor["data_offsets"] = {moved.size(), moved.size() + bytes};
    moved += part;
  }
  std::string made = header.dump();
  made.resize((made.size() + 7) / 8 * 8, ' ');
  return test::safetensors_file(made, moved);
}

/// Lists every value inside of `json`, and first `json` itself.
void list_values(Json& json, std::vector<Json*>& all) {
  all.push_back(&json);
  if (!json.is_structured()) return;
  for (Json& child : json) list_values(child, all);
}

/// Values that readers of numbers, names and lists seldom meet.
const std::vector<Json>& odd_values() {
  static const std::vector<Json> values = {nullptr,
                                           true,
                                           0,
                                           1,
                                           -1,
                                           2,
                                           65536,
                                           4294967296,
                                           18446744073709551615U,
                                           0.5,
                                           -0.0,
                                           1e300,
                                           1e-300,
                                           "",
                                           "a",
                                           "\u0000",
                                           std::string(300, 'x'),
                                           Json::array(),
                                           Json::object(),
                                           {0},
                                           {nullptr, ""},
                                           {{"value", 1}}};
  return values;
}

void change_value(Json& value, const Json& other, Random& random) {
  const std::vector<Json>& odd = odd_values();
  const auto nth = [&](const Json& of) { return random.below(static_cast<std::uint32_t>(of.size())); };
  const std::uint32_t way = random.below(6);
  if (way == 0) {
    value = odd[nth(odd)];
  } else if (way == 1) {
    value = Json(other);
  } else if (value.is_number()) {
    const double scale[] = {-1, 0.5, 2, 1000, 1.0000001};
    const auto whole = value.is_number_integer() ? value.get<std::uint64_t>() + (random.chance(50) ? 1U : ~0ULL) : 0;
    value = value.is_number_integer() && random.chance(70) ? Json(static_cast<std::int64_t>(whole))
                                                           : Json(value.get<double>() * scale[random.below(5)]);
  } else if (value.is_string()) {
    value = mutate_bytes(value.get<std::string>(), value.get_ref<const std::string&>().size() + 8);
  } else if (value.is_array() && !value.empty()) {
    if (way < 4)
      value.erase(nth(value));
    else
      value.push_back(Json(value[nth(value)]));
  } else if (value.is_object() && !value.empty()) {
    const auto child = std::next(value.begin(), nth(value));
    const std::string name = child.key();
    Json moved = *child;
    if (way < 5) value.erase(child);
    if (way > 3) value[mutate_bytes(name, name.size() + 4)] = std::move(moved);
  }
}

}  // namespace

std::string mutate_json(const std::string& text, std::size_t most, std::uint64_t seed) {
  Random random(seed);
  Json json = random.chance(30) ? Json(Json::value_t::discarded) : Json::parse(text, nullptr, false);
  if (json.is_discarded()) return mutate_bytes(text, most);
  std::vector<Json*> all;
  list_values(json, all);
  const auto any = [&]() -> Json& { return *all[random.below(static_cast<std::uint32_t>(all.size()))]; };
  Json& chosen = any();
  const Json other = any();
  change_value(chosen, other, random);
  std::string made = engine::json_text(json);
  return made.size() <= most ? made : mutate_bytes(text, most);
}

std::string mutate_bytes(std::string bytes, std::size_t most) {
  const std::size_t size = bytes.size();
  if (size > most) return bytes;
  bytes.resize(most + 1);  // never empty, so that there is an address
  bytes.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(bytes.data()), size, std::max<std::size_t>(most, 1)));
  return bytes;
}

std::string mutate_safetensors(const std::string& file, std::size_t most, std::uint64_t seed) {
  Random random(seed);
  std::uint64_t length = 0;
  if (file.size() >= 8) std::memcpy(&length, file.data(), 8);
  if (file.size() < 8 || length > file.size() - 8 || random.chance(5)) return mutate_bytes(file, most);
  const std::string header = file.substr(8, length), data = file.substr(8 + length);
  switch (random.below(4)) {
    case 0:
      return test::safetensors_file(mutate_bytes(header, most - 8 - data.size()), data);
    case 1:
      return test::safetensors_file(header, mutate_bytes(data, most - 8 - length));
    case 2:
      return test::safetensors_file(change_number(header, random), data);
    default:
      try {
        return lay_out_anew(header, data, most, random);
      } catch (const std::exception&) {
        return test::safetensors_file(change_number(header, random), data);
      }
  }
}

const std::filesystem::path& folder() {
  static const test::TemporaryFolder made;
  return made.path();
}

std::filesystem::path file(const std::string& name, const std::string& content) {
  // Overwrites an existing file, since a file system takes longer to free and find pages than to write a few.
  static std::map<std::string, int> files;
  const std::filesystem::path path = folder() / name;
  const auto [known, is_new] = files.emplace(name, -1);
  if (is_new) known->second = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  const auto size = static_cast<ssize_t>(content.size());
  if (::pwrite(known->second, content.data(), content.size(), 0) != size || ::ftruncate(known->second, size) != 0) {
    throw Broken("a file of the fuzzer's own cannot be written");
  }
  return path;
}

std::string content_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

engine::ModelFacts small_model() {
  engine::ModelFacts m;
  m.name = "small";
  m.model.layers = 2;
  m.model.experts = 4;
  m.model.top_k = 2;
  m.model.max_rows = 1;
  m.model.renormalise = Renormalise::yes;
  m.model.expert_bytes = {{0, 250'000, 400'000, 700'000, 1'000'000}};
  m.work = {{1'000'000, 500'000, 400'000}};
  return m;
}

std::unique_ptr<engine::TraceFile> small_trace(bool every_tensor, std::uint32_t sequences, std::uint32_t prompt,
                                               std::uint32_t tokens) {
  engine::SyntheticOptions o;
  o.sequences = sequences;
  o.prompt = prompt;
  o.tokens = tokens;
  o.shallow = 1;
  auto made = engine::synthesize(small_model(), o);
  if (!every_tensor) {
    made->weights.clear();
    made->scores.clear();
    made->predicted.clear();
    made->partial.clear();
    made->phase.clear();
    made->trace.ahead = 0;
    made->view();
  }
  return made;
}

void use(const engine::TraceFile& read, std::uint32_t choice) {
  const Trace& trace = read.trace;
  trace.validate();
  std::vector<bool> seen(trace.tokens);
  for (TraceSteps steps(trace, 2, 3); steps.next();) {
    for (const std::uint32_t t : steps.tokens()) {
      if (seen.at(t)) throw Broken("a token is in two steps");
      seen[t] = true;
    }
  }
  if (std::find(seen.begin(), seen.end(), false) != seen.end()) throw Broken("a token is in no step");

  const std::filesystem::path copy = folder() / "copy.safetensors";
  read.write(copy);
  try {
    const engine::TraceFile again(copy);
    if (again.trace.tokens != trace.tokens || again.trace.ahead != trace.ahead) throw Broken("a copy differs");
  } catch (const engine::InputError& e) {
    throw Broken(std::string("a trace that was read and written is refused: ") + e.what());
  }
  std::filesystem::remove(copy);  // replacing a file would take longer

  if (std::size_t{trace.model.layers} * trace.model.experts > 4096 || trace.tokens > 4096) return;
  static_cast<void>(engine::measure(trace));
  static const engine::Machine machine = engine::read_machine("rtx3090-pcie3");
  const auto& stacks = engine::all_stacks();
  for (const std::string& stack : {std::string("lru"), stacks[choice % stacks.size()].name}) {
    engine::SimulateOptions o;
    o.stack = stack;
    o.budget_bytes = trace.model.all_bytes() / 4;
    o.batch = 2;
    o.prefill_chunk = 8;
    o.max_tokens = 64;
    o.log = true;
    try {
      check(engine::simulate(trace, machine.costs(read.work, engine::CostSource::effective), o), trace);
    } catch (const ConfigError&) {  // the other stack may work
    }
  }
}

}  // namespace ferry::fuzz

using namespace ferry;

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  if (*count != 3 || std::string((*arguments)[1]) != "--seeds") return 0;
  int number = 0;
  for (const std::string& seed : fuzz::seeds()) {
    test::write_file(std::filesystem::path((*arguments)[2]) / ("seed-" + std::to_string(number++)), seed);
  }
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    fuzz::read({reinterpret_cast<const char*>(data), size});
  } catch (const engine::InputError& e) {
    fuzz::check_refusal(e.what());
  } catch (const ConfigError&) {  // the command makes these fit for a terminal
  }
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  const std::string made = fuzz::mutate({reinterpret_cast<const char*>(data), size}, most, seed);
  const std::size_t n = std::min(made.size(), most);
  std::memcpy(data, made.data(), n);
  return n;
}
