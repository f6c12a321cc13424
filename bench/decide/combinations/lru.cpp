#include "combinations.hpp"

void ferry::bench::register_lru() {
  register_combinations<Lru>("lru");
}
