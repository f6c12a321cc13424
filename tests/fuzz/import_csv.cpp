// Route traces of BigMoeOnEdge.
#include "fuzz/fuzz.hpp"

namespace ferry::fuzz {

void read(const std::string& input) {
  use(*engine::import_trace(file("in.csv", input), small_model()), static_cast<std::uint32_t>(input.size()));
}

std::string mutate(const std::string& input, std::size_t most, std::uint64_t) {
  return mutate_bytes(input, most);
}

std::vector<std::string> seeds() {
  const std::string shape = "# route_trace v1\n# model=small n_layer=2 n_expert=4 n_expert_used=2\n";
  const std::string layers = "# layer=0 expert_bytes=500000 dense_bytes=1000\n# layer=1 expert_bytes=400000\n";
  const std::string header = "turn,phase,step,layer,slot,expert,weight,residency\n";
  std::string rows;
  for (int token = 0; token < 4; ++token) {
    for (int layer = 0; layer < 2; ++layer) {
      for (int slot = 0; slot < 2; ++slot) {
        rows += "0," + std::to_string(token / 2) + ',' + std::to_string(token) + ',' + std::to_string(layer) + ',' +
                std::to_string(slot) + ',' + std::to_string((token + 2 * slot) % 4) + ",0.5,0\n";
      }
    }
  }
  return {shape + layers + header + rows,
          layers + header + "0,1,0,0,0,3,0.75\n0,1,0,0,1,2,0.25\n0,1,0,1,0,1,1\n0,1,0,1,1,0,0\n"};
}

}  // namespace ferry::fuzz
