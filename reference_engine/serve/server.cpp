#include "serve/server.hpp"

#include <fmt/format.h>
#include <httplib.h>
#include <strings.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ferry/macros.hpp"
#include "serve/limited_server.hpp"
#include "support/clock.hpp"
#include "support/errors.hpp"

namespace ferry::engine {
namespace {

std::int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Whether both are equal. Takes equally long wherever they differ. `b` is not empty.
bool same_secret(const std::string& a, const std::string& b) {
  unsigned differs = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) differs |= static_cast<unsigned>(a[i] ^ b[i % b.size()]);
  return differs == 0;
}

void answer(httplib::Response& response, int status, const Json& json) {
  response.status = status;
  response.set_content(json_text(json), "application/json");
}

void answer(httplib::Response& response, const ApiError& error) {
  response.status = error.status;
  response.set_content(error.body(), "application/json");
}

/// After so many failures in a row, although the runner was rebuilt after each, /health reports failure.
constexpr std::uint32_t fails_for_good = 3;
/// Bytes of a target's path. It is limited, since the library's regular expressions recurse for each character.
constexpr std::size_t most_path = 512;
constexpr const char* gone = "The client closed its end of the connection before the answer was there.";

ApiError server_error(int status, const std::string& message, const std::string& code = "") {
  ApiError e;
  e.status = status;
  e.message = printable(message);
  e.type = status == 429 ? "rate_limit_error" : "server_error";
  e.code = code;
  return e;
}

}  // namespace

struct Server::Parts {
  DecodeLoop& loop;
  const ApiModel& model;
  ServerOptions options;
  std::int64_t created = unix_time();
  std::atomic<std::uint64_t> number{0};
  std::string run_id;  ///< so that ids of two servers differ
  std::atomic<bool> refusing{false}, stopping{false}, runs{false}, over{false};
  std::atomic<std::uint32_t> under_way{0};  ///< requests without a complete answer
  std::uint16_t port = 0;
  LimitedServer http;

  Parts(DecodeLoop& l, const ApiModel& m, const ServerOptions& o) : loop(l), model(m), options(o), http(o.limits) {
    std::random_device random;
    run_id = fmt::format("{:08x}", random());
    http.set_tcp_nodelay(true);
    // The library's default options would let two servers share a port and split its requests.
    http.set_socket_options([](socket_t socket) {
      const int yes = 1;
      static_cast<void>(::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)));
    });
    http.set_default_headers({{"Server", std::string("ferry/") + FERRY_VERSION}});
    http.set_pre_routing_handler([this](const httplib::Request& q, httplib::Response& a) { return let_in(q, a); });
    http.set_error_handler([](const httplib::Request& q, httplib::Response& a) { explain(q, a); });
    http.set_exception_handler([](const httplib::Request&, httplib::Response& a, std::exception_ptr e) {
      try {
        std::rethrow_exception(std::move(e));
      } catch (const ApiError& refused) {
        answer(a, refused);
      } catch (const std::exception& what) {
        answer(a, server_error(500, what.what()));
      } catch (...) {
        answer(a, server_error(500, "an unknown error"));
      }
    });
    http.Get(route("/health"), [this](const httplib::Request&, httplib::Response& a) {
      const LoopStatistics s = loop.statistics();
      if (refusing) return answer(a, 503, {{"status", "ending"}});
      if (s.failures_in_a_row < fails_for_good) return answer(a, 200, {{"status", "ok"}});
      answer(a, 503, {{"status", "failing"}, {"error", printable(s.failure)}});
    });
    http.Get(route("/v1/models"),
             [this](const httplib::Request&, httplib::Response& a) { answer(a, 200, models_answer(model, created)); });
    http.Get(route("/v1/models/(.+)"), [this](const httplib::Request& q, httplib::Response& a) {
      if (q.matches[1] == model.name) return answer(a, 200, model_answer(model, created));
      answer(a, no_such_model(q.matches[1], model));
    });
    http.Get(route("/metrics"), [this](const httplib::Request&, httplib::Response& a) {
      a.set_content(metrics_text(loop.statistics(), options.stack), "text/plain; version=0.0.4");
    });
    http.Get(route("/stats"), [this](const httplib::Request&, httplib::Response& a) {
      answer(a, 200, stats_json(loop.statistics(), options.stack));
    });
    http.Get(route("/"), [](const httplib::Request&, httplib::Response& a) {
      a.set_content(server_page, "text/html; charset=utf-8");
    });
    http.Post(route("/v1/completions"),
              [this](const httplib::Request& q, httplib::Response& a) { complete(q, a, false); });
    http.Post(route("/v1/chat/completions"),
              [this](const httplib::Request& q, httplib::Response& a) { complete(q, a, true); });
  }

  /// A route's pattern. Targets may name the host, as clients of proxies do (RFC 9112, section 3.2.2).
  static std::string route(const std::string& path) { return "(?:[Hh][Tt][Tt][Pp]://[^/]*)?" + path; }
  static std::string_view without_host(std::string_view target) {
    constexpr std::string_view scheme = "http://";
    if (target.size() < scheme.size() || ::strncasecmp(target.data(), scheme.data(), scheme.size()) != 0) return target;
    return target.substr(std::min(target.find('/', scheme.size()), target.size()));
  }

  httplib::Server::HandlerResponse let_in(const httplib::Request& q, httplib::Response& a) const {
    if (q.path.size() > most_path) {
      ApiError e;
      e.status = 414;
      e.message = fmt::format("The target is longer than the {} bytes that this server takes.", most_path);
      answer(a, e);
      return httplib::Server::HandlerResponse::Handled;
    }
    const std::string_view path = without_host(q.path);
    const bool open = path == "/health" || path == "/";
    if (options.api_key.empty() || open) return httplib::Server::HandlerResponse::Unhandled;
    const std::string given = q.get_header_value("Authorization"), bearer = "Bearer ";
    const bool is_bearer = ::strncasecmp(given.c_str(), bearer.c_str(), bearer.size()) == 0;
    if (is_bearer && same_secret(given.substr(bearer.size()), options.api_key)) {
      return httplib::Server::HandlerResponse::Unhandled;
    }
    ApiError e;
    e.status = 401;
    e.message = given.empty() ? "No API key was given: expected a header \"Authorization: Bearer KEY\"."
                              : "The API key is not the server's.";
    e.code = "invalid_api_key";
    a.set_header("WWW-Authenticate", "Bearer");
    answer(a, e);
    return httplib::Server::HandlerResponse::Handled;
  }

  /// Adds a body to errors of the library, which have none.
  static void explain(const httplib::Request& q, httplib::Response& a) {
    if (!a.body.empty()) return;
    ApiError e;
    e.status = a.status;
    switch (a.status) {
      case 404:
        e.message = printable(fmt::format("Unknown request URL: {} {:.200}", q.method, q.path));
        e.code = "unknown_url";
        break;
      case 413:  // the library has a limit of its own for forms
        e.message = q.get_header_value("Content-Type").starts_with("application/x-www-form-urlencoded")
                        ? "The body is sent as a form's: expected Content-Type: application/json."
                        : "The body is larger than this server takes.";
        break;
      default:
        e.message = "The request could not be read.";
    }
    a.set_content(e.body(), "application/json");
  }

  /// Counts a request until its answer is sent: a server that ends waits for these.
  std::shared_ptr<void> count_request() {
    ++under_way;
    return {nullptr, [this](std::nullptr_t) { --under_way; }};
  }

  void complete(const httplib::Request& q, httplib::Response& a, bool chat) {
    const std::shared_ptr<void> counted = count_request();
    if (refusing) return answer(a, server_error(503, "The server is ending."));
    auto request = std::make_shared<ApiRequest>();
    try {
      *request = read_request(q.body, chat, model);
    } catch (const ApiError& e) {
      return answer(a, e);
    } catch (const InputError& e) {
      ApiError refused;
      refused.message = e.what();
      return answer(a, refused);
    }
    const DecodeLoop::Options& room = loop.options();
    if (const std::uint64_t most = std::uint64_t{room.places} + room.most_waiting; request->choices.size() > most) {
      ApiError e;
      e.message =
          fmt::format("{} choices are more than the {} that this server has room for.", request->choices.size(), most);
      e.param = "n";
      e.code = "invalid_value";
      return answer(a, e);
    }
    const Nanoseconds begin = now_ns();
    auto answers = loop.submit(request->choices);
    if (answers.empty()) {
      if (refusing) return answer(a, server_error(503, "The server is ending."));
      a.set_header("Retry-After", "1");
      return answer(a, server_error(429, "The queue is full: try again later.", "rate_limit_exceeded"));
    }
    const std::string id = fmt::format("{}-{}{:08x}", chat ? "chatcmpl" : "cmpl", run_id, ++number);
    const auto late = [begin, most = options.most_seconds] {
      return static_cast<double>(now_ns() - begin) * 1e-9 > most;
    };
    if (request->stream) {
      stream(std::shared_ptr<Stream>(
                 new Stream{request, std::move(answers), ApiAnswer(*request, model, unix_time(), id), counted}),
             late, q, a);
    } else {
      whole(*request, answers, id, late, a);
    }
  }

  template <class Late>
  void whole(const ApiRequest& request, const std::vector<std::shared_ptr<Answer>>& answers, const std::string& id,
             const Late& late, httplib::Response& a) {
    const ApiAnswer made(request, model, unix_time(), id);
    const auto cancel = [&] {
      for (const auto& one : answers) one->cancel();
    };
    for (const auto& one : answers) {
      while (!one->is_over()) {
        static_cast<void>(one->next(0.5));
        if (stopping) return answer(a, server_error(503, "The server is ending."));
        if (LimitedServer::client_is_gone()) {
          cancel();  // a client that closed only its own end still reads the reason
          return answer(a, server_error(499, gone));
        }
        if (!late()) continue;
        cancel();
        return answer(a, server_error(504, "The request took longer than this server lets it.", "timeout"));
      }
      if (one->error().empty()) continue;
      cancel();  // nobody gets the others
      return answer(a, server_error(500, one->error()));
    }
    answer(a, 200, made.whole(answers));
  }

  /// What a stream is made of; lives as long as the connection needs it.
  struct Stream {
    std::shared_ptr<ApiRequest> request;
    std::vector<std::shared_ptr<Answer>> answers;
    ApiAnswer made;
    std::shared_ptr<void> counted;
    std::vector<bool> begun = std::vector<bool>(answers.size()), ended = begun;
    ~Stream() {
      for (const auto& one : answers) one->cancel();  // no effect on those that are over
    }
  };

  template <class Late>
  void stream(const std::shared_ptr<Stream>& s, const Late& late, const httplib::Request& q, httplib::Response& a) {
    a.set_header("Cache-Control", "no-cache");
    const auto provider = [this, s, late](std::size_t, httplib::DataSink& sink) { return feed(*s, late, sink); };
    if (q.version == "HTTP/1.0") {  // which knows no chunks: the stream ends with the connection
      a.set_content_provider("text/event-stream", provider);
    } else {
      a.set_chunked_content_provider("text/event-stream", provider);
    }
  }

  /// Writes what there is; false ends the connection.
  template <class Late>
  bool feed(Stream& s, const Late& late, httplib::DataSink& sink) const {
    const auto write = [&](const std::string& data) {
      const std::string event = "data: " + data + "\n\n";
      return sink.write(event.data(), event.size());
    };
    const auto cut_off = [&] {
      if (late()) {
        write(server_error(504, "The request took longer than this server lets it.", "timeout").body());
      } else if (stopping) {
        write(server_error(503, "The server is ending.").body());
      } else {
        return false;
      }
      return true;
    };
    if (cut_off()) return false;
    bool all = true, wrote = false;
    const auto last_open =
        static_cast<std::uint32_t>(std::find(s.ended.rbegin(), s.ended.rend(), false).base() - s.ended.begin() - 1);
    for (std::uint32_t i = 0; i < s.answers.size(); ++i) {
      if (s.ended[i]) continue;
      Answer& one = *s.answers[i];
      if (!s.begun[i] && !write(json_text(s.made.first_chunk(i)))) return false;
      s.begun[i] = true;
      // Several answers take turns, and only the last one waits, if none has anything. A connection that nobody reads is
      // noticed at the next write.
      while (const auto piece = one.next(s.answers.size() == 1 ? 0.2 : i == last_open && !wrote ? 0.01 : 0)) {
        if (cut_off()) return false;
        wrote = true;
        if (piece->text.empty() && !piece->probability) continue;
        if (!write(json_text(s.made.chunk(i, *piece)))) return false;
      }
      if (!one.is_over()) {
        all = false;
        continue;
      }
      s.ended[i] = wrote = true;
      if (!one.error().empty()) return write(server_error(500, one.error()).body()), false;
      if (!write(json_text(s.made.last_chunk(i, one)))) return false;
    }
    if (!all && LimitedServer::client_is_gone()) {  // a client that closed only its own end still reads the reason
      write(server_error(499, gone).body());
      return false;
    }
    if (!sink.is_writable()) return false;
    if (!all) return true;
    if (s.request->include_usage && !write(json_text(s.made.usage_chunk(s.answers)))) return false;
    if (!write("[DONE]")) return false;
    sink.done();
    return true;
  }
};

Server::Server(DecodeLoop& loop, const ApiModel& model, const ServerOptions& options)
    : parts_(std::make_unique<Parts>(loop, model, options)) {
  const int port = options.port == 0                                       ? parts_->http.bind_to_any_port(options.host)
                   : parts_->http.bind_to_port(options.host, options.port) ? options.port
                                                                           : -1;
  if (port < 0) {
    throw InputError(fmt::format(
        "--host {} --port {}: cannot listen there: another program may do so, or the address is not this machine's",
        options.host, options.port));
  }
  parts_->port = static_cast<std::uint16_t>(port);
  parts_->http.let_many_wait();
}
Server::~Server() = default;

std::uint16_t Server::port() const {
  return parts_->port;
}

void Server::run() {
  parts_->runs = true;
  try {
    if (!parts_->stopping) parts_->http.listen_after_bind();
  } catch (...) {
    parts_->over = true;
    throw;
  }
  parts_->over = true;
}

void Server::refuse_requests() {
  parts_->refusing = true;
}

bool Server::has_requests() const {
  return parts_->under_way > 0;
}

void Server::stop() {
  parts_->refusing = parts_->stopping = true;
  // The library ignores a stop before it listens.
  while (parts_->runs && !parts_->over && !parts_->http.is_running()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  parts_->http.stop();
}

}  // namespace ferry::engine
