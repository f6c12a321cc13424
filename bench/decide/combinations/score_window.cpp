#include "combinations.hpp"

void ferry::bench::register_score_window() {
  register_combinations<ScoreWindow>("score-window");
}
