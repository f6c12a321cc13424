#include "combinations.hpp"

void ferry::bench::register_lfu() {
  register_combinations<Lfu>("lfu");
}
