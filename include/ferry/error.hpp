/// @file
/// What set-up, misuse and broken links throw. The core's hot path is `noexcept` and throws nothing.
///
/// In programs that are compiled without exceptions (-fno-exceptions) such an error ends the program with its message on
/// stderr. To end it otherwise, define FERRY_ON_ERROR(message), which is given a `const char*`, before the headers, and alike
/// in all files; it must not return.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <new>
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

namespace detail {

/// Throws; or, without exceptions, ends the program.
template <class Error>
[[noreturn]] inline void fail(const std::string& message) {
#if defined(__cpp_exceptions)
  throw Error(message);
#elif defined(FERRY_ON_ERROR)
  FERRY_ON_ERROR(message.c_str());
#else
  std::fprintf(stderr, "ferry: %s\n", message.c_str());
  std::abort();
#endif
}

/// Runs a call that may throw, and returns what it threw in words; empty: nothing.
template <class Call>
std::string failure_of(const Call& call) {
#if defined(__cpp_exceptions)
  try {
    call();
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (const std::exception& e) {
    return *e.what() != '\0' ? e.what() : "an error without a message";
  } catch (...) {
    return "an error that is no std::exception";
  }
#else
  call();
#endif
  return {};
}

}  // namespace detail
}  // namespace ferry::inline FERRY_ABI
