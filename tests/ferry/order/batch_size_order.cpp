#include "ferry/order/batch_size_order.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "support/random.hpp"

using namespace ferry;

TEST_CASE("most rows first, in both phases, equal ones in the order in which they came") {
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    const std::uint32_t rows[] = {2, 5, 2, 1, 5, 3};
    Request r[6];
    for (std::uint16_t i = 0; i < 6; ++i) {
      r[i].want.id.expert = i;
      r[i].rows = rows[i];
    }
    BatchSizeOrder::order(phase, true, {r, 6});
    const int expected[] = {1, 4, 5, 0, 2, 3};
    for (int i = 0; i < 6; ++i) CHECK(r[i].want.id.expert == expected[i]);
    BatchSizeOrder::order(phase, true, {r, 0});
  }
}

TEST_CASE("of equally many rows, first what gains most") {
  const Nanoseconds gains[] = {0, -5, 7, 100, 7, 0};
  Request r[6];
  for (std::uint16_t i = 0; i < 6; ++i) {
    r[i].want.id.expert = i;
    r[i].rows = i < 5 ? 1 : 2;
    r[i].gain_ns = gains[i];
  }
  BatchSizeOrder::order(Phase::decode, true, {r, 6});
  const int expected[] = {5, 3, 2, 4, 0, 1};
  for (int i = 0; i < 6; ++i) CHECK(r[i].want.id.expert == expected[i]);
}

TEST_CASE("prefetches keep their order, the surest first") {
  Request r[2];
  r[0].rows = 1;
  r[1].rows = 2;
  BatchSizeOrder::order(Phase::decode, false, {r, 2});
  CHECK(r[0].rows == 1);
}

TEST_CASE("equals a stable sort") {
  test::Random random(41);
  for (int i = 0; i < 500; ++i) {
    std::vector<Request> r(random.below(30));
    for (std::size_t j = 0; j < r.size(); ++j) {
      r[j].want.id.expert = static_cast<std::uint16_t>(j);
      r[j].rows = random.below(6);
      r[j].gain_ns = random.below(3);
    }
    auto sorted = r;
    std::stable_sort(sorted.begin(), sorted.end(), [](const Request& a, const Request& b) {
      return std::pair(a.rows, a.gain_ns) > std::pair(b.rows, b.gain_ns);
    });
    BatchSizeOrder::order(Phase::decode, true, {r.data(), static_cast<std::uint32_t>(r.size())});
    CHECK(std::equal(r.begin(), r.end(), sorted.begin(),
                     [](const Request& a, const Request& b) { return a.want == b.want && a.rows == b.rows; }));
  }
}
