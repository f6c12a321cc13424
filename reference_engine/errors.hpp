/// @file
/// Input that cannot be used: one line for the user, exit status 2.
#pragma once
#include <stdexcept>

namespace ferry::engine {

/// Names the file or option, the field, and what was expected.
struct InputError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace ferry::engine
