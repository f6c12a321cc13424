#include "ferry/storage.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <vector>

using namespace ferry;

namespace {

struct Owner {
  Array<std::uint8_t> bytes;
  Array<std::uint64_t> words;
  void reserve(Carver& carve) {
    carve(bytes, 3, std::uint8_t{7});
    carve(words, 2, std::uint64_t{9});
  }
};

}  // namespace

TEST_CASE("both passes agree, elements are aligned and filled") {
  Carver measure;
  Owner probe;
  probe.reserve(measure);
  CHECK(measure.measuring());
  CHECK(measure.bytes() == 8 + 16);  // 3 bytes, padding to 8, two words

  alignas(64) std::byte block[128];
  auto* owner = new (block) Owner;
  Carver carve(block + 64);
  owner->reserve(carve);
  CHECK(carve.bytes() == measure.bytes());
  CHECK(owner->bytes.size() == 3);
  CHECK(reinterpret_cast<std::uintptr_t>(owner->words.data()) % alignof(std::uint64_t) == 0);
  for (const auto b : owner->bytes) CHECK(b == 7);
  for (const auto w : owner->words) CHECK(w == 9);
}

TEST_CASE("a block works at another address after a byte copy") {
  std::vector<std::uint64_t> first(16), second(16);
  auto* owner = new (first.data()) Owner;
  Carver carve(reinterpret_cast<std::byte*>(first.data() + 8));
  owner->reserve(carve);
  owner->words[1] = 42;
  std::memcpy(second.data(), first.data(), first.size() * 8);
  const auto* copy = reinterpret_cast<const Owner*>(second.data());
  CHECK(copy->words[1] == 42);
  CHECK(copy->words.data() == second.data() + 8 + 1);
}
