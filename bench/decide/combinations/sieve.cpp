#include "ferry/cache/sieve.hpp"

#include "combinations.hpp"

void ferry::bench::register_sieve() {
  register_combinations<Sieve>("sieve");
}
