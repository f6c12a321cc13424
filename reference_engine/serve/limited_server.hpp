/// @file
/// cpp-httplib's server, with limits on what clients send and how long they take to.
#pragma once
#include <httplib.h>
#undef _res  // resolv.h makes a macro of it, and Eigen a parameter

#include <atomic>
#include <cstdint>

#include "serve/client_limits.hpp"

namespace ferry::engine {

/// The library waits for each read by itself, so that a byte now and then holds a thread for good; it reads lines of any
/// length, unpacks bodies without a limit, and takes the rest of a body that it has not read for the next request. Here all
/// of a request has to arrive in time, of the size that it says, and as it is.
/// What is refused is answered in JSON, as OpenAI's interface does, and its connection closed.
class LimitedServer final : public httplib::Server {
 public:
  explicit LimitedServer(const ClientLimits& limits);

  [[nodiscard]] const ClientLimits& limits() const { return limits_; }
  /// Connections wait for one of those that are served to end.
  [[nodiscard]] bool hurries() const { return waiting_ > 0; }
  [[nodiscard]] bool stops() const { return svr_sock_ == INVALID_SOCKET; }
  /// Clients that come at once, once it is bound: the library lets the system hold five of them.
  void let_many_wait();
  /// Whether the client whose request the calling thread answers has hung up.
  [[nodiscard]] static bool client_is_gone();
  /// One connection, to its end, on the calling thread; closes it.
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
