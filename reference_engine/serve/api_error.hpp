/// @file
/// What a client is told whose request cannot be served.
#pragma once
#include <string>

namespace ferry::engine {

/// A request that cannot be served, as its client is told.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  ///< which field; empty: none
  std::string code;   ///< empty: none

  [[nodiscard]] std::string body() const;
};

}  // namespace ferry::engine
