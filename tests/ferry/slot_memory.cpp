#include "ferry/slot_memory.hpp"

#include <doctest/doctest.h>

#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE("slots lie apart and aligned, and writing one leaves the others") {
  const ModelShape m = model(1, 8, 1, 1, 100);
  const std::vector<std::byte> expert(100, std::byte{3});
  SlotMemory memory(
      one_pool(m, 5 * 128),
      [&](Variant) {
        return View<const std::byte>{expert.data(), 100};
      },
      true);
  CHECK(memory.bytes() == 5 * 128);
  CHECK(memory.slot(1) - memory.slot(0) == 128);
  CHECK(reinterpret_cast<std::uintptr_t>(memory.slot(3)) % 64 == 0);
  memory.write(1, 0, memory.source(full(0, 0)).view);
  CHECK(memory.slot(1)[99] == std::byte{3});
  CHECK(memory.slot(0)[127] == std::byte{0xff});
  CHECK(memory.slot(2)[0] == std::byte{0xff});
  memory.poison(1);
  CHECK(memory.slot(1)[0] == std::byte{0xff});
}

TEST_CASE("without poison a freed slot keeps its bytes") {
  const ModelShape m = model(1, 8, 1, 1, 64);
  const std::vector<std::byte> expert(64, std::byte{3});
  SlotMemory memory(
      one_pool(m, 5 * 64),
      [&](Variant) {
        return View<const std::byte>{expert.data(), 64};
      },
      false);
  memory.write(1, 0, memory.source(full(0, 0)).view);
  memory.poison(1);
  CHECK(memory.slot(1)[0] == std::byte{3});
}
