/// @file
/// What finds bits that have changed.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ferry::engine {

/// XXH3, 64 bits.
std::uint64_t checksum(const void* data, std::uint64_t bytes);
/// Of parts that follow each other.
std::uint64_t checksum(const std::vector<std::string_view>& parts);

/// XXH3, 128 bits, of what comes piece by piece.
class WideChecksum {
 public:
  WideChecksum();
  ~WideChecksum();
  WideChecksum(const WideChecksum&) = delete;
  WideChecksum& operator=(const WideChecksum&) = delete;
  void add(const void* data, std::uint64_t bytes);
  /// 32, to the base of 16.
  [[nodiscard]] std::string digits() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The value of a field "xxh3" that `seal` fills in.
inline constexpr const char* unsealed = "0000000000000000";

/// Replaces `unsealed` in a field "xxh3" of JSON by the checksum of all of the text, and of `rest`, which follows it: 16 digits
/// to the base of 16.
void seal(std::string& json, const std::vector<std::string_view>& rest = {});

enum class Seal { none, right, wrong };
/// Whether the text and what follows it are as they were sealed. Without such a field: none.
Seal seal_of(std::string_view json, const std::vector<std::string_view>& rest = {});

}  // namespace ferry::engine
