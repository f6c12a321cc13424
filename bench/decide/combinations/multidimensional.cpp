#include "combinations.hpp"

void ferry::bench::register_multidimensional() {
  register_combinations<Multidimensional>("multidimensional");
}
