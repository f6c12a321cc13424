/// @file
/// A model behind HTTP.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "serve/client_limits.hpp"
#include "serve/openai.hpp"

namespace ferry::engine {

struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;  ///< 0: any that is free
  std::string api_key;        ///< clients have to have it; empty: none
  double most_seconds = 600;  ///< that a request may take
  ClientLimits limits;
  std::string stack;  ///< for metrics
};

/// OpenAI's /v1/completions, /v1/chat/completions and /v1/models; /health, /metrics, /stats, and a page at /.
class Server {
 public:
  /// All of them outlive it. Throws InputError if it cannot listen there.
  Server(DecodeLoop& loop, const ApiModel& model, const ServerOptions& options);
  ~Server();

  [[nodiscard]] std::uint16_t port() const;
  /// Serves until `stop`, from any thread.
  void run();
  /// No new requests, and /health says so; what is under way goes on, until `stop` ends it. From any thread.
  void refuse_requests();
  /// Whether requests were taken whose answers have not been handed out whole.
  [[nodiscard]] bool has_requests() const;
  void stop();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// The page at /.
extern const char* const server_page;

}  // namespace ferry::engine
