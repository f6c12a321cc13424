/// @file
/// The bytes behind the slots, for links whose device memory is plain host memory.
#pragma once
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "ferry/allotment.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI {

/// Bytes that stay in place while `owner` lives; without an owner, while their source lives.
struct HeldBytes {
  View<const std::byte> view;         ///< the bytes
  std::shared_ptr<const void> owner;  ///< who keeps them in place

  HeldBytes() = default;
  /// Without `keeps`, the bytes must stay in place by themselves.
  HeldBytes(View<const std::byte> bytes, std::shared_ptr<const void> keeps = {})
      : view(bytes), owner(std::move(keeps)) {}
};

/// An arena of slots apart from the experts' own memory, and where each expert's bytes are to be had.
///
/// With `poison`, a slot whose expert has left is filled with 0xff bytes (NaN in bf16, f16 and f32), so that
/// computing from it shows.
///
/// `borrowing` makes slots without an arena: each points to its expert's bytes where their source has them, and nothing
/// is held twice. For a device that computes from the tier below as fast as from memory of its own.
class SlotMemory {
 public:
  /// Gives the bytes of a variant in the tier below: in host memory, or read from a disk by this very call. The link reports
  /// what it throws.
  using Source = std::function<HeldBytes(Variant)>;

#ifdef NDEBUG
  static constexpr bool poison_by_default = false;
#else
  static constexpr bool poison_by_default = true;  ///< in Debug builds
#endif

  /// Owns the bytes of all slots. All of them are 0xff at first.
  SlotMemory(const Allotment& allotment, Source source, bool poison = poison_by_default)
      : offsets_(allotment.offsets()),
        bytes_(static_cast<std::byte*>(::operator new (offsets_.back() + 1, std::align_val_t{64}))),
        source_(std::move(source)),
        poison_(poison) {
    std::memset(bytes_.get(), 0xff, offsets_.back());
  }
  /// Owns no bytes: a copy points its slot at the host's.
  static SlotMemory borrowing(const Allotment& allotment, Source source) {
    return SlotMemory(allotment.offsets(), std::move(source));
  }

  /// The bytes of the slot's expert; where they are borrowed, null before it had one.
  [[nodiscard]] const std::byte* slot(std::uint32_t s) const noexcept {
    return borrows() ? borrowed_[s].view.data : bytes_.get() + offsets_[s];
  }
  /// How many bytes all slots together hold at most, borrowed or not.
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return offsets_.back();
  }
  /// Whether slots point at the host's bytes.
  [[nodiscard]] bool borrows() const noexcept {
    return bytes_ == nullptr;
  }
  /// The host's copy of a variant.
  [[nodiscard]] HeldBytes source(Variant v) const {
    return source_(v);
  }

  /// The slot's expert has left; nothing is being copied into it.
  void poison(std::uint32_t s) noexcept {
    if (poison_) std::memset(bytes_.get() + offsets_[s], 0xff, offsets_[s + 1] - offsets_[s]);
  }

  /// Moves part of an expert into its slot. Throws LinkError if it does not fit. Not where slots borrow.
  void write(std::uint32_t s, std::size_t at, View<const std::byte> part) {
    check_fits(s, at + part.size);
    std::memcpy(bytes_.get() + offsets_[s] + at, part.data, part.size);
  }
  /// Points a slot that borrows at its expert. Throws LinkError if that would not fit.
  void borrow(std::uint32_t s, HeldBytes expert) {
    check_fits(s, expert.view.size);
    borrowed_[s] = std::move(expert);
  }

 private:
  SlotMemory(std::vector<std::uint64_t> offsets, Source source)
      : offsets_(std::move(offsets)), borrowed_(offsets_.size() - 1), source_(std::move(source)), poison_(false) {}

  void check_fits(std::uint32_t s, std::size_t size) const {
    if (size <= offsets_[s + 1] - offsets_[s]) return;
    detail::fail<LinkError>("an expert of at least " + std::to_string(size) + " bytes does not fit slot " +
                            std::to_string(s) + " of " + std::to_string(offsets_[s + 1] - offsets_[s]));
  }

  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  std::vector<std::uint64_t> offsets_;
  std::unique_ptr<std::byte, Free> bytes_;  // null: borrowed
  std::vector<HeldBytes> borrowed_;
  Source source_;
  bool poison_;
};

}  // namespace ferry::inline FERRY_ABI
