/// @file
/// Gates at random.
#pragma once
#include "ferry/gate/gate_bank.hpp"
#include "support/random.hpp"

namespace ferry::test {

using Matrix = GateBank::Matrix;

inline Matrix random_matrix(Random& random, Eigen::Index rows, Eigen::Index columns) {
  Matrix m(rows, columns);
  for (Eigen::Index i = 0; i < m.size(); ++i) m.data()[i] = random.unit() - 0.5F;
  return m;
}

inline GateBank random_bank(Random& random, std::uint32_t layers, std::uint32_t experts, std::uint32_t hidden) {
  GateBank bank(layers, experts, hidden);
  for (std::uint32_t l = 0; l < layers; ++l) bank.set(l, random_matrix(random, experts, hidden));
  return bank;
}

}  // namespace ferry::test
