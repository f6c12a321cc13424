#include "ferry/detail/expert_groups.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <new>

using namespace ferry;

TEST_CASE("one request an expert, in ascending index, with the assignments that chose it") {
  alignas(64) std::byte block[512];
  auto& groups = *new (block) detail::ExpertGroups;
  Carver carve(block + 128);
  groups.reserve(carve, Shape{2, 5, 2, 3});
  const Route routes[] = {{4, 0.5F}, {1, 0.25F}, {1, 0.75F}, {no_expert, 0.0F}, {0, 0.5F}, {4, 0.625F}};
  Request memory[5];
  Out<Request> out{memory, 5, 0};
  groups.gather<false>(1, {routes, 6}, out);
  REQUIRE(out.size == 3);
  CHECK(memory[0].want.id == ExpertId{1, 0});
  CHECK(memory[1].want.id == ExpertId{1, 1});
  CHECK(memory[2].want.id == ExpertId{1, 4});
  CHECK(memory[0].rows == 1);
  CHECK(memory[1].rows == 2);
  CHECK(memory[2].rows == 2);
  CHECK(memory[1].importance == 0.75F);
  CHECK(memory[2].importance == 0.625F);
  const View<const std::uint32_t> a = groups.assignments();
  CHECK(a.size == 5);
  CHECK(a[memory[0].first] == 4);
  CHECK(a[memory[1].first] == 1);
  CHECK(a[memory[1].first + 1] == 2);
  CHECK(a[memory[2].first] == 0);
  CHECK(a[memory[2].first + 1] == 5);
  // Fewer of them, each chosen once: nothing of the last ones is left.
  const Route fewer[] = {{2, 0.5F}, {no_expert, 0.0F}, {no_expert, 0.0F}, {1, 0.25F}};
  out.size = 0;
  groups.gather<false>(1, {fewer, 4}, out);
  REQUIRE(groups.assignments().size == 2);
  CHECK(groups.assignments()[0] == 3);
  CHECK(groups.assignments()[1] == 0);
  out.size = 0;
  groups.gather<false>(1, {fewer + 1, 2}, out);
  CHECK(groups.assignments().size == 0);
}

TEST_CASE("unimportance is the smallest share of a row's weights that ranks above the expert") {
  alignas(64) std::byte block[512];
  auto& groups = *new (block) detail::ExpertGroups;
  Carver carve(block + 128);
  groups.reserve(carve, Shape{1, 6, 3, 3});
  // Row 0: 5/8, 2/8, 1/8. Row 1, not normalised: 4/8, 3/8, 1/8. Row 2 ranks its experts differently than it weighs them: by
  // weight expert 3 (0.5) comes first, then 0 and 4 (0.25 each, the better ranked first).
  const Route routes[] = {{0, 0.625F}, {1, 0.25F}, {2, 0.125F}, {1, 0.4F}, {2, 0.3F},
                          {5, 0.1F},   {0, 0.25F}, {3, 0.5F},   {4, 0.25F}};
  Request memory[6];
  Out<Request> out{memory, 6, 0};
  groups.gather<true>(0, {routes, 9}, out);
  REQUIRE(out.size == 6);
  CHECK(memory[0].unimportance == 0.0F);                        // first of row 0
  CHECK(memory[1].unimportance == 0.0F);                        // first of row 1
  CHECK(memory[2].unimportance == doctest::Approx(0.5));        // 0.875 in row 0, 0.4/0.8 in row 1
  CHECK(memory[3].unimportance == 0.0F);                        // first of row 2 by weight
  CHECK(memory[4].unimportance == doctest::Approx(0.75));       // row 2: behind 3 and 0
  CHECK(memory[5].unimportance == doctest::Approx(0.7 / 0.8));  // row 1
}

TEST_CASE("no share exceeds 1 by rounding, and a weight that is not a number makes its row important") {
  alignas(64) std::byte block[512];
  auto& groups = *new (block) detail::ExpertGroups;
  Carver carve(block + 128);
  groups.reserve(carve, Shape{1, 4, 4, 1});
  const Route routes[] = {{0, 0.9F}, {1, 0.1F}, {2, 1e-9F}, {3, 0.0F}};
  Request memory[4];
  Out<Request> out{memory, 4, 0};
  groups.gather<true>(0, {routes, 4}, out);
  for (const Request& r : memory) CHECK(r.unimportance <= 1.0F);
  CHECK(memory[3].unimportance == 1.0F);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Route odd[] = {{0, nan}, {1, 0.1F}, {2, 0.1F}, {3, 0.1F}};
  out.size = 0;
  groups.gather<true>(0, {odd, 4}, out);
  CHECK(memory[0].unimportance == 0.0F);
}
