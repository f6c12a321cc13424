/// @file
/// How much of a server one client gets.
#pragma once
#include <cstdint>

namespace ferry::engine {

struct ClientLimits {
  std::uint32_t clients = 64;            ///< connections served at a time; as many wait, and more are told to come back
  std::uint64_t most_bytes = 8U << 20U;  ///< of a request's body
  double request_seconds = 30;           ///< from a request's first byte to its last
  double hurried_seconds = 2;            ///< the same, while others wait to be served
  double idle_seconds = 5;  ///< before a request's first byte; between two no time at all while others wait
};

}  // namespace ferry::engine
