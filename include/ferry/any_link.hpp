/// @file
/// A link that is chosen at run time.
#pragma once
#include "ferry/concepts.hpp"

namespace ferry::inline FERRY_ABI {

/// A Link behind virtual functions; an engine's own may derive from it, others are adapted.
class AnyLink {
 public:
  AnyLink() = default;
  virtual ~AnyLink() = default;
  AnyLink(const AnyLink&) = delete;
  AnyLink& operator=(const AnyLink&) = delete;

  virtual void submit(const Copy& copy) noexcept = 0;
  virtual void drop(Ticket ticket) noexcept = 0;
  [[nodiscard]] virtual Seen seen() noexcept = 0;
  virtual void fence(Fence fence) noexcept = 0;
  virtual void wait(Ticket ticket) = 0;
};
static_assert(Link<AnyLink>);

/// Makes an AnyLink of any other Link, which must outlive it.
template <Link L>
class AdaptedLink final : public AnyLink {
 public:
  /// The link outlives it.
  explicit AdaptedLink(L& link) : link_(link) {}

  void submit(const Copy& copy) noexcept override { link_.submit(copy); }
  void drop(Ticket ticket) noexcept override { link_.drop(ticket); }
  [[nodiscard]] Seen seen() noexcept override { return link_.seen(); }
  void fence(Fence fence) noexcept override { link_.fence(fence); }
  void wait(Ticket ticket) override { link_.wait(ticket); }

 private:
  L& link_;
};

}  // namespace ferry::inline FERRY_ABI
