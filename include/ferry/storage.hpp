/// @file
/// Arrays of a size known at construction, inside one block that can be copied byte for byte.
///
/// The core and every policy keep their state in such arrays: no pointer is stored, so the whole block can be
/// moved, saved, or copied to a GPU and used there. An array finds its elements relative to its own address,
/// therefore an object that owns arrays must not be copied out of its block on its own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>

#include "ferry/error.hpp"
#include "ferry/macros.hpp"

namespace ferry::inline FERRY_ABI {

/// In bytes: a cache line.
inline constexpr std::size_t storage_alignment = 64;

/// A fixed number of elements elsewhere in the same block.
template <class T>
class Array {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert(alignof(T) <= storage_alignment, "a block begins at a cache line: its elements are aligned to no more");

 public:
  // Through an integer: the elements are no part of this object, and a compiler that takes them for one warns.
  /// The first element.
  FERRY_HD T* data() noexcept { return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(this) + offset_); }
  /// The first element.
  FERRY_HD const T* data() const noexcept {
    return reinterpret_cast<const T*>(reinterpret_cast<std::uintptr_t>(this) + offset_);
  }
  /// How many there are.
  FERRY_HD std::uint32_t size() const noexcept { return size_; }
  /// Element i, unchecked.
  FERRY_HD T& operator[](std::size_t i) noexcept { return data()[i]; }
  /// Element i, unchecked.
  FERRY_HD const T& operator[](std::size_t i) const noexcept { return data()[i]; }
  /// The first element.
  FERRY_HD T* begin() noexcept { return data(); }
  /// One past the last.
  FERRY_HD T* end() noexcept { return data() + size_; }
  /// The first element.
  FERRY_HD const T* begin() const noexcept { return data(); }
  /// One past the last.
  FERRY_HD const T* end() const noexcept { return data() + size_; }

 private:
  friend class Carver;
  std::uintptr_t offset_ = 0;  ///< modulo 2^64: the elements may lie before this object
  std::uint32_t size_ = 0;
};

/// Hands out the arrays of a block, in two passes over the same code: without a block it only measures
/// (`bytes()` then says how large a block must be), with one it places and fills the arrays.
class Carver {
 public:
  Carver() = default;
  /// Into this block, of so many bytes or of as many as it takes.
  explicit Carver(std::byte* block, std::size_t bytes = static_cast<std::size_t>(-1)) : block_(block), most_(bytes) {}

  /// Places an array, each element as `fill`. Throws ConfigError if the block is too small: whoever measured it measured
  /// something else.
  template <class T>
  void operator()(Array<T>& array, std::size_t count, const T& fill = T{}) {
    used_ = (used_ + alignof(T) - 1) / alignof(T) * alignof(T);
    if (block_ == nullptr) {
      array.offset_ = std::uintptr_t{0} - reinterpret_cast<std::uintptr_t>(&array);  // nowhere
    } else {
      if (used_ > most_ || count > (most_ - used_) / sizeof(T)) {
        detail::fail<ConfigError>(
            "a policy asks for larger arrays when they are placed than when they were measured: `reserve` must ask for "
            "the same in both passes");
      }
      std::byte* first = block_ + used_;
      for (std::size_t i = 0; i < count; ++i) new (first + i * sizeof(T)) T(fill);
      array.offset_ = reinterpret_cast<std::uintptr_t>(first) - reinterpret_cast<std::uintptr_t>(&array);
    }
    array.size_ = static_cast<std::uint32_t>(count);
    used_ += count * sizeof(T);
  }

  /// True while nothing is placed yet: elements of the arrays must not be touched.
  [[nodiscard]] bool measuring() const noexcept { return block_ == nullptr; }
  /// How many bytes have been placed or measured.
  [[nodiscard]] std::size_t bytes() const noexcept { return used_; }

 private:
  std::byte* block_ = nullptr;
  std::size_t used_ = 0, most_ = 0;
};

}  // namespace ferry::inline FERRY_ABI
