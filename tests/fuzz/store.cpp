// Expert stores: opens them, and reads every expert of those that are accepted.
#include "fuzz/fuzz.hpp"
#include "store/disk_store.hpp"
#include "store/pack.hpp"
#include "support/errors.hpp"

namespace ferry::fuzz {

using namespace engine;

void read(const std::string& input) {
  const auto path = file("in.ferry", input);
  DiskStore store(open_blocks(path), path.string(), input.size() % 3 * 2000);
  for (const Precision p : store.facts().stored()) store.add(p);
  for (const Precision p : store.facts().stored()) {
    for (std::uint64_t n = 0; n < store.facts().numbers.all(); ++n) {
      try {
        static_cast<void>(store.bytes({store.facts().numbers.id(n), p}));
      } catch (const InputError&) {  // the next one may be whole
      }
    }
  }
}

/// Mutates the header's text, which is parsed before its checksum is compared, or any bytes.
std::string mutate(const std::string& input, std::size_t most, std::uint64_t seed) {
  const std::size_t text = 24, end = std::min<std::size_t>(input.size(), 600);
  if (seed % 2 == 0 || input.size() < text) return mutate_bytes(input, most);
  std::string header = mutate_bytes(input.substr(text, end - text), end - text);
  header.resize(end - text, ' ');
  return input.substr(0, text) + header + input.substr(end);
}

std::vector<std::string> seeds() {
  std::vector<std::string> made;
  test::TinyCheckpoint c;
  c.config["num_hidden_layers"] = 1;
  c.write(folder());
  for (const char* precision : {"int2", "f32"}) {
    const auto path = folder() / "seed.ferry";
    pack_store(folder(), path, {.precisions = {precision}});
    made.push_back(content_of(path));
  }
  return made;
}

}  // namespace ferry::fuzz
