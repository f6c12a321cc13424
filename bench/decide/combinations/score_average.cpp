#include "combinations.hpp"

void ferry::bench::register_score_average() {
  register_combinations<ScoreAverage>("score-average");
}
