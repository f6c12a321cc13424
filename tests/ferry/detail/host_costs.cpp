#include "ferry/detail/host_costs.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "support/random.hpp"

using namespace ferry;

namespace {

/// Experts of so many rows each.
std::vector<Task> tasks_of(const std::vector<std::uint32_t>& rows) {
  std::vector<Task> tasks(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) tasks[i].rows = rows[i];
  return tasks;
}
/// Notes the time of a host that takes `expert` for each expert and `row` for each of its rows.
void note(detail::HostCosts& costs, const std::vector<std::uint32_t>& rows, double expert, double row) {
  const std::vector<Task> tasks = tasks_of(rows);
  double all = 0;
  for (const std::uint32_t r : rows) all += r;
  costs.note({tasks.data(), static_cast<std::uint32_t>(tasks.size())},
             static_cast<Nanoseconds>((expert * static_cast<double>(rows.size()) + row * all) / all));
}
LayerCosts told(const detail::HostCosts& costs) {
  LayerCosts c;
  costs.tell(c);
  return c;
}
Nanoseconds one(const detail::HostCosts& costs) {
  return told(costs).host_ns[static_cast<unsigned>(Precision::full)];
}

}  // namespace

TEST_CASE("with one row an expert its time is known, and until rows differ each counts like the first") {
  detail::HostCosts costs{LayerCosts{}};
  CHECK(one(costs) == 0);
  CHECK(told(costs).host_row_ns == 0);
  note(costs, {1, 1}, 20'000, 5'000);
  CHECK(one(costs) == doctest::Approx(25'000).epsilon(0.001));
  CHECK(told(costs).host_row_ns == doctest::Approx(25'000).epsilon(0.001));
  CHECK(told(costs).host_ns[static_cast<unsigned>(Precision::int4)] == one(costs));
}

TEST_CASE("what an expert takes and what its rows take are told apart, and the latter is kept") {
  detail::HostCosts costs{LayerCosts{}};
  note(costs, {1, 1, 1}, 20'000, 5'000);
  note(costs, {3, 8, 1, 4}, 20'000, 5'000);
  CHECK(one(costs) == doctest::Approx(25'000).epsilon(0.001));
  CHECK(told(costs).host_row_ns == doctest::Approx(5'000).epsilon(0.001));
  for (int i = 0; i < 3000; ++i) note(costs, {1, 1}, 20'000, 5'000);
  for (int i = 0; i < 3000; ++i) note(costs, {1, 1}, 30'000, 5'000);  // long after rows differed
  CHECK(one(costs) == doctest::Approx(35'000).epsilon(0.001));
  CHECK(told(costs).host_row_ns == doctest::Approx(5'000).epsilon(0.001));
}

TEST_CASE("times that vary by a third leave the mean, and one that is far off moves it little") {
  detail::HostCosts costs{LayerCosts{}};
  test::Random rng(7);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::uint32_t> rows(1 + rng.below(8));
    for (std::uint32_t& r : rows) r = 1 + rng.below(12);
    const double pace = 1 + (static_cast<double>(rng.below(1000)) / 1000 - 0.5) * 2 / 3;
    note(costs, rows, 20'000 * pace, 5'000 * pace);
  }
  // Least squares of relative errors favour fast times: E[1/pace] / E[1/pace^2] for paces from 2/3 to 4/3.
  constexpr double lean = 1.0397 / 1.125;
  CHECK(told(costs).host_row_ns == doctest::Approx(5'000 * lean).epsilon(0.1));
  CHECK(one(costs) == doctest::Approx(25'000 * lean).epsilon(0.1));
  const Nanoseconds before = one(costs);
  note(costs, {2, 2}, 20'000'000, 5'000'000);  // the host was taken away for a while
  CHECK(one(costs) == doctest::Approx(static_cast<double>(before)).epsilon(0.02));
}

TEST_CASE("a first layer that was slow does not keep the host out") {
  detail::HostCosts costs{LayerCosts{}};
  note(costs, {1}, 20'000'000, 0);
  for (int i = 0; i < 3000; ++i) costs.note({}, 0);
  CHECK(one(costs) == doctest::Approx(20e6 * 0.0534).epsilon(0.01));  // (1023/1024)^3000
  CHECK(told(costs).host_row_ns == one(costs));
  for (int i = 0; i < 10'000; ++i) costs.note({}, 0);
  CHECK(one(costs) == doctest::Approx(20e6 / 64).epsilon(0.01));  // the limit
  for (int i = 0; i < 20; ++i) note(costs, {1}, 300'000, 0);
  CHECK(one(costs) == doctest::Approx(300'000).epsilon(0.05));
}

TEST_CASE("a time far too short moves it little, and a host that became slower is known in time") {
  detail::HostCosts costs{LayerCosts{}};
  for (int i = 0; i < 300; ++i) note(costs, {1}, 50'000, 0);
  note(costs, {1}, 1, 0);
  CHECK(one(costs) > 45'000);
  for (int i = 0; i < 1500; ++i) note(costs, {1}, 500'000, 0);  // a time ten times as long counts a hundredth
  CHECK(one(costs) > 300'000);
}

TEST_CASE("neither part is below nothing") {
  detail::HostCosts rows_for_nothing{LayerCosts{}};
  note(rows_for_nothing, {1}, 20'000, 0);
  note(rows_for_nothing, {10}, 10'000, 0);
  CHECK(told(rows_for_nothing).host_row_ns == 1);  // 0 would mean unknown
  CHECK(one(rows_for_nothing) > 10'000);
  CHECK(one(rows_for_nothing) < 20'000);
  detail::HostCosts experts_for_nothing{LayerCosts{}};
  note(experts_for_nothing, {1}, 0, 1'000);
  note(experts_for_nothing, {10}, 0, 3'000);
  CHECK(told(experts_for_nothing).host_row_ns == one(experts_for_nothing));
  CHECK(one(experts_for_nothing) > 1'000);
  CHECK(one(experts_for_nothing) < 3'000);
}

TEST_CASE("what was told is not learned, and what was not measured is not noted") {
  LayerCosts known;
  known.host_ns[static_cast<unsigned>(Precision::int4)] = 7;
  detail::HostCosts costs(known);
  note(costs, {1, 1}, 20'000, 5'000);
  CHECK(one(costs) == 0);
  LayerCosts rows_known;
  rows_known.host_row_ns = 7;
  detail::HostCosts by_rows(rows_known);
  note(by_rows, {1, 1}, 20'000, 5'000);
  CHECK(one(by_rows) == 0);

  detail::HostCosts measured{LayerCosts{}};
  const std::vector<Task> task = tasks_of({1}), none = tasks_of({0});
  measured.note({task.data(), 1}, 0);
  measured.note({task.data(), 1}, -5);
  measured.note({}, 5);
  measured.note({none.data(), 1}, 5);
  CHECK(one(measured) == 0);
  measured.note({task.data(), 1}, std::numeric_limits<Nanoseconds>::max());
  CHECK(one(measured) == 1'000'000'000'000'000);
}
