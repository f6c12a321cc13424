#include "math/host_math.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "support/random.hpp"

using namespace ferry;
using namespace ferry::engine;

TEST_CASE("rows get the same bits wherever they lie and whatever lies beside them") {
  test::Random random(3);
  for (const Eigen::Index columns : {1, 3, 6, 7, 16, 37, 60, 64}) {
    CAPTURE(columns);
    constexpr Eigen::Index rows = 9;
    const auto some = [&](Eigen::Index n) {
      Matrix m(n, columns);
      for (Eigen::Index i = 0; i < m.size(); ++i) m.data()[i] = (random.unit() - 0.5F) * 16;
      return m;
    };
    const Matrix x = some(rows), up = some(rows);
    const Vector weight = some(1).row(0), bias = some(1).row(0);
    const std::pair<const char*, std::function<Matrix(const Matrix&, const Matrix&)>> all[] = {
        {"softmax_rows", [](Matrix m, const Matrix&) { return softmax_rows(m), m; }},
        {"swiglu", [](Matrix m, const Matrix& u) { return swiglu(m, u), m; }},
        {"geglu", [](Matrix m, const Matrix& u) { return geglu(m, u), m; }},
        {"rms_norm",
         [&](const Matrix& m, const Matrix&) {
           Matrix y;
           return rms_norm(m, weight, 1e-6F, y), y;
         }},
        {"layer_norm",
         [&](const Matrix& m, const Matrix&) {
           Matrix y;
           return layer_norm(m, weight, bias, 1e-6F, y), y;
         }},
    };
    for (const auto& [label, function] : all) {
      const std::string name = label;
      CAPTURE(name);
      const Matrix together = function(x, up);
      REQUIRE(together.rows() == rows);
      REQUIRE(together.allFinite());
      for (Eigen::Index i = 0; i < rows; ++i) {
        const Matrix alone = function(x.row(i), up.row(i));
        REQUIRE(std::memcmp(alone.data(), together.row(i).data(), sizeof(float) * static_cast<std::size_t>(columns)) ==
                0);
      }
    }
  }
}
