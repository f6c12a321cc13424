#include "support/checksum.hpp"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ferry::engine {
namespace {

constexpr std::string_view field = "\"xxh3\":\"", zeros = unsealed;

/// Where the digits begin. A text within the JSON cannot look like the field: its quotes would be escaped.
std::size_t place_of_seal(std::string_view json) {
  const std::size_t found = json.rfind(field);
  if (found == std::string_view::npos) return found;
  const std::size_t at = found + field.size(), end = at + zeros.size();
  return end < json.size() && json[end] == '"' ? at : std::string_view::npos;
}

std::string digits_of(std::string_view json, std::size_t place, const std::vector<std::string_view>& rest) {
  std::vector<std::string_view> parts{json.substr(0, place), zeros, json.substr(place + zeros.size())};
  parts.insert(parts.end(), rest.begin(), rest.end());
  return fmt::format("{:016x}", checksum(parts));
}

}  // namespace

std::uint64_t checksum(const void* data, std::uint64_t bytes) {
  return XXH3_64bits(data, bytes);
}

std::uint64_t checksum(const std::vector<std::string_view>& parts) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (const std::string_view part : parts) XXH3_64bits_update(&state, part.data(), part.size());
  return XXH3_64bits_digest(&state);
}

struct WideChecksum::State {
  XXH3_state_t xxh3;
};

WideChecksum::WideChecksum() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->xxh3);
}

WideChecksum::~WideChecksum() = default;

void WideChecksum::add(const void* data, std::uint64_t bytes) {
  XXH3_128bits_update(&state_->xxh3, data, bytes);
}

std::string WideChecksum::digits() const {
  const XXH128_hash_t sum = XXH3_128bits_digest(&state_->xxh3);
  return fmt::format("{:016x}{:016x}", sum.high64, sum.low64);
}

void seal(std::string& json, const std::vector<std::string_view>& rest) {
  const std::size_t place = place_of_seal(json);
  if (place != std::string::npos) json.replace(place, zeros.size(), digits_of(json, place, rest));
}

Seal seal_of(std::string_view json, const std::vector<std::string_view>& rest) {
  const std::size_t place = place_of_seal(json);
  if (place == std::string_view::npos) return Seal::none;
  return json.substr(place, zeros.size()) == digits_of(json, place, rest) ? Seal::right : Seal::wrong;
}

}  // namespace ferry::engine
