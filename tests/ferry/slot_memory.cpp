#include "ferry/slot_memory.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <vector>

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

TEST_CASE("what does not fit behind its place in a slot is refused, and poison stays within its slot") {
  const ModelShape m = model(1, 8, 1, 1, 64);
  const std::vector<std::byte> expert(64, std::byte{3});
  const View<const std::byte> whole{expert.data(), 64};
  SlotMemory memory(
      one_pool(m, 5 * 64), [&](Variant) { return whole; }, true);
  memory.write(1, 0, whole);
  memory.write(2, 0, whole);
  CHECK_THROWS_WITH_AS(memory.write(1, 32, whole), "an expert of at least 96 bytes does not fit slot 1 of 64",
                       LinkError);
  memory.write(1, 32, whole.part(0, 32));
  memory.poison(1);
  CHECK(memory.slot(1)[63] == std::byte{0xff});
  CHECK(memory.slot(2)[0] == std::byte{3});
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

TEST_CASE("slots that borrow point to their source's bytes, and keep them") {
  const ModelShape m = model(1, 8, 1, 1, 64);
  auto expert = std::make_shared<std::vector<std::byte>>(64, std::byte{3});
  const std::weak_ptr<std::vector<std::byte>> watched = expert;
  SlotMemory memory = SlotMemory::borrowing(one_pool(m, 5 * 64), [&](Variant) {
    return HeldBytes{{expert->data(), 64}, expert};
  });
  CHECK(memory.borrows());
  CHECK(memory.bytes() == 5 * 64);
  CHECK(memory.slot(1) == nullptr);
  memory.borrow(1, memory.source(full(0, 0)));
  CHECK(memory.slot(1) == expert->data());
  CHECK(memory.slot(0) == nullptr);
  memory.poison(1);  // writes nothing: the bytes are the source's
  CHECK(memory.slot(1)[0] == std::byte{3});
  expert = std::make_shared<std::vector<std::byte>>(64, std::byte{4});
  CHECK(memory.slot(1)[63] == std::byte{3});
  CHECK_FALSE(watched.expired());
  memory.borrow(1, memory.source(full(0, 1)));
  CHECK(memory.slot(1)[63] == std::byte{4});
  CHECK(watched.expired());
  const std::vector<std::byte> large(65);
  CHECK_THROWS_AS(memory.borrow(1, View<const std::byte>{large.data(), 65}), LinkError);
}
