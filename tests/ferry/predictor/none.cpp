#include "ferry/predictor/none.hpp"

#include <doctest/doctest.h>

using namespace ferry;

TEST_CASE("predicts nothing") {
  Request memory[4];
  Out<Request> out{memory, 4, 0};
  const float s[] = {1, 0, 0, 0};
  NoPrediction::predict(Phase::decode, {1, {s, 4}, {s, 4}}, out);
  CHECK(out.size == 0);
}
