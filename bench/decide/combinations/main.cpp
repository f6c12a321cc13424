// Every sensible combination of policies as a whole-layer decision.
#include "combinations.hpp"
#include "decide/sorted_report.hpp"

int main(int argc, char** argv) {
  using namespace ferry::bench;
  register_fifo();
  register_lru();
  register_lfu();
  register_arc();
  register_sieve();
  register_multidimensional();
  register_score_window();
  register_score_average();
  return run_and_report("combinations", argc, argv);
}
