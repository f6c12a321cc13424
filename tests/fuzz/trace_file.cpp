// ferry's own traces.
#include "trace/trace_file.hpp"

#include "fuzz/fuzz.hpp"

namespace ferry::fuzz {

void read(const std::string& input) {
  const engine::TraceFile trace(file("in.safetensors", input));
  std::uint32_t sum = 0;
  for (const char c : input) sum += static_cast<unsigned char>(c);
  use(trace, sum);
}

std::string mutate(const std::string& input, std::size_t most, std::uint64_t seed) {
  return mutate_safetensors(input, most, seed);
}

std::vector<std::string> seeds() {
  std::vector<std::string> made;
  const auto path = folder() / "seed.safetensors";
  for (const bool every_tensor : {true, false}) {
    for (const std::uint32_t sequences : {1U, 3U}) {
      const auto trace = small_trace(every_tensor, sequences, 2, 3);
      if (every_tensor) trace->token_ids.assign(trace->trace.tokens, 7);
      if (sequences == 3) trace->trace.name = "two\nlines";  // a refusal must not have them
      trace->write(path);
      std::string content = content_of(path);
      const std::string own = "ferry-trace 2",
                        unchecked = "ferry-trace 1";  // a checksum would refuse all that is changed
      content.replace(content.find(own), own.size(), unchecked);
      made.push_back(std::move(content));
    }
  }
  return made;
}

}  // namespace ferry::fuzz
