#include "combinations.hpp"

void ferry::bench::register_fifo() {
  register_combinations<FifoCache>("fifo");
}
