#include "ferry/expert_groups.hpp"

#include <doctest/doctest.h>

#include <new>

using namespace ferry;

TEST_CASE("one request an expert, in ascending index, with the assignments that chose it") {
  alignas(64) std::byte block[512];
  auto& groups = *new (block) ExpertGroups;
  Carver carve(block + 128);
  groups.reserve(carve, Shape{2, 5, 2, 3});
  const Route routes[] = {{4, 0.5F}, {1, 0.25F}, {1, 0.75F}, {no_expert, 0.0F}, {0, 0.5F}, {4, 0.625F}};
  Request memory[5];
  Out<Request> out{memory, 5, 0};
  groups.gather(1, {routes, 6}, out);
  REQUIRE(out.size == 3);
  CHECK(memory[0].want.id == ExpertId{1, 0});
  CHECK(memory[1].want.id == ExpertId{1, 1});
  CHECK(memory[2].want.id == ExpertId{1, 4});
  CHECK(memory[0].rows == 1);
  CHECK(memory[1].rows == 2);
  CHECK(memory[2].rows == 2);
  CHECK(memory[1].importance == 0.75F);
  CHECK(memory[2].importance == 0.625F);
  const std::uint32_t* a = groups.assignments();
  CHECK(a[memory[0].first] == 4);
  CHECK(a[memory[1].first] == 1);
  CHECK(a[memory[1].first + 1] == 2);
  CHECK(a[memory[2].first] == 0);
  CHECK(a[memory[2].first + 1] == 5);
}
