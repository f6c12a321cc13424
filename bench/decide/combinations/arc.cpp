#include "combinations.hpp"

void ferry::bench::register_arc() {
  register_combinations<Arc>("arc");
}
