/// @file
/// What set-up throws. The hot path is `noexcept` and throws nothing.
#pragma once
#include <stdexcept>
#include <string>

#include "ferry/macros.hpp"

namespace ferry::inline FERRY_ABI {

/// A set-up that cannot work: the message names the actual values and what would work.
struct ConfigError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// A link that can no longer carry copies (or was asked to wait for one that was never submitted).
struct LinkError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace ferry::inline FERRY_ABI
