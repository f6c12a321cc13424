#include "serve/server.hpp"

#include <fmt/format.h>
#include <httplib.h>

#include <atomic>
#include <chrono>
#include <random>
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

/// As long for a right key as for a wrong one; `b` is not empty.
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

/// So many requests failed one after another, each with what runs the experts made anew.
constexpr std::uint32_t fails_for_good = 3;

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
  std::atomic<bool> stopping{false}, runs{false}, over{false};
  std::uint16_t port = 0;
  LimitedServer http;

  Parts(DecodeLoop& l, const ApiModel& m, const ServerOptions& o) : loop(l), model(m), options(o), http(o.limits) {
    std::random_device random;
    run_id = fmt::format("{:08x}", random());
    http.set_tcp_nodelay(true);
    // The library's own options let two servers share a port, of which each would get some of the requests.
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
    http.Get("/health", [this](const httplib::Request&, httplib::Response& a) {
      const LoopStatistics s = loop.statistics();
      if (stopping) return answer(a, 503, {{"status", "ending"}});
      if (s.failures_in_a_row < fails_for_good) return answer(a, 200, {{"status", "ok"}});
      answer(a, 503, {{"status", "failing"}, {"error", printable(s.failure)}});
    });
    http.Get("/v1/models",
             [this](const httplib::Request&, httplib::Response& a) { answer(a, 200, models_answer(model, created)); });
    http.Get("/metrics", [this](const httplib::Request&, httplib::Response& a) {
      a.set_content(metrics_text(loop.statistics(), options.stack), "text/plain; version=0.0.4");
    });
    http.Get("/stats", [this](const httplib::Request&, httplib::Response& a) {
      answer(a, 200, stats_json(loop.statistics(), options.stack));
    });
    http.Get("/", [](const httplib::Request&, httplib::Response& a) {
      a.set_content(server_page, "text/html; charset=utf-8");
    });
    http.Post("/v1/completions", [this](const httplib::Request& q, httplib::Response& a) { complete(q, a, false); });
    http.Post("/v1/chat/completions",
              [this](const httplib::Request& q, httplib::Response& a) { complete(q, a, true); });
  }

  httplib::Server::HandlerResponse let_in(const httplib::Request& q, httplib::Response& a) const {
    const bool open = q.path == "/health" || q.path == "/";
    if (options.api_key.empty() || open) return httplib::Server::HandlerResponse::Unhandled;
    const std::string given = q.get_header_value("Authorization"), bearer = "Bearer ";
    if (given.starts_with(bearer) && same_secret(given.substr(bearer.size()), options.api_key)) {
      return httplib::Server::HandlerResponse::Unhandled;
    }
    ApiError e;
    e.status = 401;
    e.message = given.empty() ? "No API key was given: expected a header \"Authorization: Bearer KEY\"."
                              : "The API key is not the server's.";
    e.code = "invalid_api_key";
    answer(a, e);
    return httplib::Server::HandlerResponse::Handled;
  }

  /// What the library refuses by itself has no body yet.
  static void explain(const httplib::Request& q, httplib::Response& a) {
    if (!a.body.empty()) return;
    ApiError e;
    e.status = a.status;
    switch (a.status) {
      case 404:
        e.message = printable(fmt::format("Unknown request URL: {} {:.200}", q.method, q.path));
        e.code = "unknown_url";
        break;
      case 413:
        e.message = "The body is larger than this server takes.";
        break;
      default:
        e.message = "The request could not be read.";
    }
    a.set_content(e.body(), "application/json");
  }

  void complete(const httplib::Request& q, httplib::Response& a, bool chat) {
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
    if (stopping) return answer(a, server_error(503, "The server is ending."));
    const Nanoseconds begin = now_ns();
    auto answers = loop.submit(request->choices);
    if (answers.empty()) {
      a.set_header("Retry-After", "1");
      return answer(a, server_error(429, "The queue is full: try again later.", "rate_limit_exceeded"));
    }
    const std::string id = fmt::format("{}-{}{:08x}", chat ? "chatcmpl" : "cmpl", run_id, ++number);
    const auto late = [begin, most = options.most_seconds] {
      return static_cast<double>(now_ns() - begin) * 1e-9 > most;
    };
    if (request->stream) {
      stream(request, std::move(answers), id, late, a);
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
          cancel();  // who has only closed its own end reads why
          return answer(a,
                        server_error(499, "The client closed its end of the connection before the answer was there."));
        }
        if (!late()) continue;
        cancel();
        return answer(a, server_error(504, "The request took longer than this server lets it.", "timeout"));
      }
      if (!one->error().empty()) return answer(a, server_error(500, one->error()));
    }
    answer(a, 200, made.whole(answers));
  }

  /// What a stream is made of; lives as long as the connection needs it.
  struct Stream {
    std::shared_ptr<ApiRequest> request;
    std::vector<std::shared_ptr<Answer>> answers;
    ApiAnswer made;
    std::vector<bool> begun, ended;
    ~Stream() {
      for (const auto& one : answers) one->cancel();  // of one that is over, nothing
    }
  };

  template <class Late>
  void stream(std::shared_ptr<ApiRequest> request, std::vector<std::shared_ptr<Answer>> answers, const std::string& id,
              const Late& late, httplib::Response& a) {
    const std::size_t n = answers.size();
    auto s =
        std::shared_ptr<Stream>(new Stream{request, std::move(answers), ApiAnswer(*request, model, unix_time(), id),
                                           std::vector<bool>(n), std::vector<bool>(n)});
    a.set_header("Cache-Control", "no-cache");
    a.set_chunked_content_provider(
        "text/event-stream", [this, s, late](std::size_t, httplib::DataSink& sink) { return feed(*s, late, sink); });
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
    bool all = true;
    for (std::uint32_t i = 0; i < s.answers.size(); ++i) {
      if (s.ended[i]) continue;
      Answer& one = *s.answers[i];
      if (!s.begun[i] && !write(json_text(s.made.first_chunk(i)))) return false;
      s.begun[i] = true;
      // Several take turns; a connection that nobody reads is noticed when there is something to write.
      while (const auto piece = one.next(s.answers.size() == 1 ? 0.2 : 0.01)) {
        if (cut_off()) return false;
        if (piece->text.empty() && !piece->probability) continue;
        if (!write(json_text(s.made.chunk(i, *piece)))) return false;
      }
      if (!one.is_over()) {
        all = false;
        continue;
      }
      s.ended[i] = true;
      if (!one.error().empty()) return write(server_error(500, one.error()).body()), false;
      if (!write(json_text(s.made.last_chunk(i, one)))) return false;
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

void Server::stop() {
  parts_->stopping = true;
  // The library forgets a stop that comes before it listens.
  while (parts_->runs && !parts_->over && !parts_->http.is_running()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  parts_->http.stop();
}

}  // namespace ferry::engine
