/// @file
/// What set-up, misuse and broken links throw. The core's hot path is `noexcept` and throws nothing.
#pragma once
#include <stdexcept>
#include <string>

#include "ferry/macros.hpp"

namespace ferry::inline FERRY_ABI {

/// A set-up that cannot work: the message names the actual values and what would work.
struct ConfigError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// A call of a pipeline that does not fit the calls before it, or whose arrays do not fit the step: the message names
/// the call, the layer, and what was expected. Nothing was decided or copied: the pipeline is as it was.
struct UsageError : std::logic_error {
  using std::logic_error::logic_error;
};

/// A link that can no longer carry copies (or was asked to wait for one that was never submitted).
struct LinkError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace ferry::inline FERRY_ABI
