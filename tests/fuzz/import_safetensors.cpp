// Other people's routing as safetensors.
#include "fuzz/fuzz.hpp"

namespace ferry::fuzz {

void read(const std::string& input) {
  use(*engine::import_trace(file("in.safetensors", input), small_model()), static_cast<std::uint32_t>(input.size()));
}

std::string mutate(const std::string& input, std::size_t most, std::uint64_t seed) {
  return mutate_safetensors(input, most, seed);
}

std::vector<std::string> seeds() {
  // 4 tokens of 2 layers, top-2: two sequences, the second of which begins with a prompt.
  const std::string experts("\0\1\2\3\1\2\3\0\2\0\1\3\0\3\2\1", 16), starts("\0\0\0\0\2\0\0\0", 8);
  auto tensor = [](const char* type, const std::vector<int>& shape, std::size_t begin, std::size_t end) {
    return Json{{"dtype", type}, {"shape", shape}, {"data_offsets", {begin, end}}};
  };
  Json header = {{"sequence_start", tensor("I32", {2}, 0, 8)}, {"experts", tensor("U8", {4, 2, 2}, 8, 24)}};
  std::vector<std::string> made{test::safetensors_file(header.dump(), starts + experts)};
  header["__metadata__"] = {{"experts_per_layer", "4"}, {"source", "a test"}};
  header["weights"] = tensor("F16", {4, 2, 2}, 24, 56);
  header["phase"] = tensor("U8", {4}, 56, 60);
  made.push_back(
      test::safetensors_file(header.dump(), starts + experts + std::string(32, '\x30') + std::string("\1\1\0\1", 4)));
  return made;
}

}  // namespace ferry::fuzz
