/// @file
/// Google Benchmark as these programs begin it.
#pragma once
#include <benchmark/benchmark.h>

#include <cstdio>

namespace ferry::bench {

/// Takes Google Benchmark's arguments. False, after one line on standard error, if there is another one.
inline bool read_arguments(const char* name, int argc, char** argv) {
  ::benchmark::Initialize(&argc, argv);
  if (argc == 1) return true;
  std::fprintf(stderr, "%s: unknown argument: %s (see --help)\n", name, argv[1]);
  return false;
}

}  // namespace ferry::bench
