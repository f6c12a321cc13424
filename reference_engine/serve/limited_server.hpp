/// @file
/// cpp-httplib's server, with limits on what clients send and how long they take to.
#pragma once
#include <httplib.h>
#undef _res  // resolv.h makes a macro of it, and Eigen a parameter

#include <atomic>
#include <cstdint>

#include "serve/client_limits.hpp"

namespace ferry::engine {

/// The library's limits are for each read alone, so that a byte now and then holds a thread for good; it reads lines of any
/// length, unpacks bodies without a limit, and takes what it has not read of a body for the next request. Here all of a request
/// has to arrive in time, of the size that it says, and not encoded.
/// What is refused is answered in JSON, as OpenAI's interface does, and its connection closed.
class LimitedServer final : public httplib::Server {
 public:
  explicit LimitedServer(const ClientLimits& limits);

  [[nodiscard]] const ClientLimits& limits() const { return limits_; }
  /// Whether connections wait until one of those that are served ends.
  [[nodiscard]] bool hurries() const { return waiting_ > 0; }
  [[nodiscard]] bool stops() const { return svr_sock_ == INVALID_SOCKET; }
  /// Lets many clients wait that come at once; to be called once it is bound. The library lets the system hold five of them.
  void let_many_wait();
  /// Whether the client whose request the calling thread answers has hung up.
  [[nodiscard]] static bool client_is_gone();
  /// Serves one connection to its end, on the calling thread; closes it.
  void serve(socket_t socket);

 private:
  bool process_and_close_socket(socket_t socket) override {
    serve(socket);
    return true;
  }

  ClientLimits limits_;
  std::atomic<std::uint32_t> waiting_{0};
};

}  // namespace ferry::engine
