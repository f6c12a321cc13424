// Clients that dawdle, vanish, or say one thing and send another.
#include "serve/limited_server.hpp"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

using namespace ferry::engine;
using Clock = std::chrono::steady_clock;

namespace {

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// GET / says hello, POST /echo returns its body, /locked answers nobody and reads no body.
class LimitedEcho {
 public:
  explicit LimitedEcho(const ClientLimits& limits) : http_(limits) {
    http_.Get(
        "/", [this](const httplib::Request&, httplib::Response& a) { ++hellos, a.set_content("hello", "text/plain"); });
    http_.Get("/slow", [this](const httplib::Request&, httplib::Response& a) {
      ++slow;
      while (holds) std::this_thread::yield();
      a.set_content("slow", "text/plain");
    });
    http_.Post("/echo", [this](const httplib::Request& q, httplib::Response& a) {
      ++echoes;
      a.set_content("<" + q.body + ">", "text/plain");
    });
    http_.set_pre_routing_handler([](const httplib::Request& q, httplib::Response& a) {
      if (q.path != "/locked") return httplib::Server::HandlerResponse::Unhandled;
      a.status = 401;
      a.set_content("locked", "text/plain");
      return httplib::Server::HandlerResponse::Handled;
    });
    http_.set_exception_handler([](const httplib::Request&, httplib::Response& a, const std::exception_ptr&) {
      a.status = 408;
      a.set_content("refused", "text/plain");
    });
    port_ = http_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { http_.listen_after_bind(); });
    while (!http_.is_running()) std::this_thread::yield();
  }
  ~LimitedEcho() {
    holds = false;
    stop();
  }
  LimitedEcho(const LimitedEcho&) = delete;
  LimitedEcho& operator=(const LimitedEcho&) = delete;
  void stop() {
    if (!thread_.joinable()) return;
    http_.stop();
    thread_.join();
  }
  int port() const { return port_; }

  std::atomic<int> hellos{0}, echoes{0}, slow{0};
  std::atomic<bool> holds{true};  ///< while set, /slow does not answer

 private:
  LimitedServer http_;
  int port_ = 0;
  std::thread thread_;
};

class Client {
 public:
  explicit Client(const LimitedEcho& s) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(s.port()));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0);
    const timeval patience{20, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  ~Client() { ::close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// False: the server is gone.
  bool send(const std::string& text) const {
    return ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  /// Until the server closes the connection.
  std::string rest() const {
    std::string all;
    char buffer[4096];
    for (ssize_t n = 0; (n = ::recv(socket_, buffer, sizeof(buffer), 0)) > 0;)
      all.append(buffer, static_cast<std::size_t>(n));
    return all;
  }
  /// Until that text has come.
  std::string up_to(const std::string& end) const {
    std::string all;
    char byte = 0;
    while (!all.ends_with(end) && ::recv(socket_, &byte, 1, 0) == 1) all += byte;
    return all;
  }
  std::string ask(const std::string& text) const {
    send(text);
    return rest();
  }

 private:
  int socket_;
};

std::string post(const std::string& headers, const std::string& body) {
  return "POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + headers + "\r\n" + body;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++n;
  return n;
}

}  // namespace

TEST_CASE("a request that comes a byte at a time is given up when its time is over, not a byte's") {
  ClientLimits limits;
  limits.request_seconds = 0.5;
  LimitedEcho s(limits);
  const std::string in_head = "POST /echo HTTP/1.1\r\nX: ", in_body = post("Content-Length: 100000\r\n", "");
  for (const int pause_ms : {5, 60}) {  // more often than the server looks at its clock, and less often
    for (const std::string* begun : {&in_head, &in_body}) {
      CAPTURE(pause_ms);
      const Client c(s);
      const Clock::time_point begin = Clock::now();
      c.send(*begun);
      while (seconds_since(begin) < 15 && c.send("a")) std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
      CHECK(seconds_since(begin) >= 0.5);
      CHECK(seconds_since(begin) < 10);  // the server spends a second on what still comes, and machines are busy
    }
  }
  const Client c(s);
  c.send("GET / HTT");
  const std::string answer = c.rest();
  CHECK(answer.starts_with("HTTP/1.1 408"));
  CHECK(answer.find("did not arrive whole within 0.5 s") != std::string::npos);
  CHECK(s.hellos + s.echoes == 0);
}

TEST_CASE("a body is as long as its head says, in one way") {
  ClientLimits limits;
  limits.most_bytes = 1000;
  LimitedEcho s(limits);
  struct Case {
    const char* headers;
    int status;
  };
  for (const Case& c : {Case{"Content-Length: -1\r\n", 400},
                        {"Content-Length: +2\r\n", 400},
                        {"Content-Length: 2 2\r\n", 400},
                        {"Content-Length: 0x2\r\n", 400},
                        {"Content-Length: 99999999999999999999\r\n", 413},
                        {"Content-Length: 1001\r\n", 413},
                        {"Content-Length: 2\r\nContent-Length: 2\r\n", 400},
                        {"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", 400},
                        {"Transfer-Encoding: gzip, chunked\r\n", 400},
                        {"Transfer-Encoding: identity\r\n", 400},
                        {"Content-Length: 2\r\nContent-Encoding: gzip\r\n", 415},
                        {"Content-Length: 2\r\nContent-Encoding: br\r\n", 415}}) {
    const std::string headers = c.headers;
    CAPTURE(headers);
    const Clock::time_point begin = Clock::now();
    const std::string answer = Client(s).ask(post(c.headers, "{}"));
    CHECK_MESSAGE(answer.starts_with("HTTP/1.1 " + std::to_string(c.status)), answer);
    CHECK(answer.find("{\"error\":") != std::string::npos);
    CHECK(seconds_since(begin) < 10);
  }
  CHECK(s.echoes == 0);
  CHECK(Client(s).ask(post("Content-Length: 2\r\n", "{}")).find("<{}>") != std::string::npos);
  CHECK(Client(s).ask(post("Content-Encoding: identity\r\nContent-Length: 2\r\n", "{}")).find("<{}>") !=
        std::string::npos);
  CHECK(Client(s).ask(post("", "")).find("<>") != std::string::npos);
  CHECK(Client(s).ask(post("Transfer-Encoding: Chunked\r\n", "2\r\n{}\r\n0\r\n\r\n")).find("<{}>") !=
        std::string::npos);
}

TEST_CASE("what has no end is cut off: a head, a line of it, chunks") {
  ClientLimits limits;
  limits.most_bytes = 1000;
  LimitedEcho s(limits);
  const auto pour = [&](const std::string& begun, const std::string& more) {
    const Client c(s);
    c.send(begun);
    std::size_t sent = 0;
    while (sent < (64U << 20U) && c.send(more)) sent += more.size();
    return sent;
  };
  const std::string much(1000, 'a');
  CHECK(pour("GET / HTTP/1.1\r\nX: ", much) < (64U << 20U));
  CHECK(pour("GET /", much) < (64U << 20U));
  CHECK(pour("GET / HTTP/1.1\r\n", "X: a\r\n") < (64U << 20U));
  CHECK(pour(post("Transfer-Encoding: chunked\r\n", ""), "3e8\r\n" + much + "\r\n") < (64U << 20U));
  CHECK(s.hellos + s.echoes == 0);
  CHECK(Client(s).ask("GET / HTTP/1.1\r\nConnection: close\r\n\r\n").ends_with("hello"));
}

TEST_CASE("a body that nobody has read is not the next request") {
  LimitedEcho s({});
  const std::string hidden = "GET / HTTP/1.1\r\nConnection: close\r\n\r\n";
  const std::string length = "Content-Length: " + std::to_string(hidden.size()) + "\r\n\r\n" + hidden;
  CHECK(count(Client(s).ask("POST /locked HTTP/1.1\r\n" + length), "HTTP/1.1 ") == 1);
  CHECK(count(Client(s).ask("GET /nowhere HTTP/1.1\r\n" + length), "HTTP/1.1 ") == 1);
  CHECK(s.hellos == 0);
}

TEST_CASE("what is left of a request that was no request is not the next one") {
  LimitedEcho s({});
  const std::string hidden = "GET / HTTP/1.1\r\nConnection: close\r\n\r\n";
  const std::string chunked = "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char* body : {"ZZ\r\n", "0x1\r\na\r\n", "1\r\naXX0\r\n\r\n", "1 \r\na\r\n0\r\n\r\n", "1\na\r\n",
                           "0\r\nX-T: 1\r\n\r\n", "\r\n", "fffffffffffffffff\r\n"}) {
    CAPTURE(body);
    CHECK(count(Client(s).ask(chunked + body + hidden), "HTTP/1.1 ") <= 1);
  }
  // Lines that the library passes over.
  for (const char* header :
       {"Content-Length: 36\n", "Content-Length:\r\n 36\r\n", "Transfer-Encoding:\r\n\tchunked\r\n",
        "Content-Length 36\r\n", "Content-Length: 0\r\nContent-Length: 36\n", "A: b\rContent-Length: 36\r\n",
        "A: b\r\n\n", "Content-Length: 36\r\r\n"}) {
    CAPTURE(std::string(header));
    for (const char* more : {"", "B: c\r\n"}) {
      CHECK(count(Client(s).ask("GET / HTTP/1.1\r\n" + std::string(header) + more + "\r\n" + hidden), "HTTP/1.1 2") ==
            0);
    }
  }
  for (const char* line : {"GET / HTTP/1.1\n", "GET /\r HTTP/1.1\r\n", "\n"}) {
    CAPTURE(std::string(line));
    CHECK(count(Client(s).ask(std::string(line) + "A: b\r\n\r\n" + hidden), "HTTP/1.1 2") == 0);
  }
  for (const char* header : {"Content-Length : 36", "Transfer-Encoding : chunked", " Content-Length: 36", "X\ty: 1"}) {
    CAPTURE(header);
    const std::string head = std::string("GET / HTTP/1.1\r\n") + header + "\r\n\r\n";
    CHECK(count(Client(s).ask(head + hidden), "HTTP/1.1 2") == 0);
  }
  CHECK(s.hellos == 0);
  // A valid request, cut into any pieces, with another one behind it.
  const std::string whole = chunked + "3\r\nabc\r\n1;x=y\r\nd\r\nA\r\n0123456789\r\n0\r\n\r\n" + hidden;
  const std::string answers = Client(s).ask(whole);
  CHECK(answers.find("<abcd0123456789>") != std::string::npos);
  CHECK(answers.ends_with("hello"));
  const Client slow(s);
  for (const char c : whole) slow.send({c});
  CHECK(slow.rest() == answers);
}

TEST_CASE("requests may follow each other at once") {
  LimitedEcho s({});
  const std::string answers = Client(s).ask(
      "GET / HTTP/1.1\r\n\r\nPOST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\n"
      "Connection: close\r\n\r\n");
  CHECK(count(answers, "HTTP/1.1 200") == 3);
  CHECK(answers.find("<abc>") != std::string::npos);
  CHECK(answers.ends_with("hello"));
}

TEST_CASE("empty lines before a request are none of its own") {
  LimitedEcho s({});
  const std::string last = "GET / HTTP/1.1\r\nConnection: close\r\n\r\n";
  const std::string all = "\r\n\r\nPOST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc\r\n" + last;
  const std::string answers = Client(s).ask(all);
  CHECK(count(answers, "HTTP/1.1 200") == 2);
  CHECK(answers.find("<abc>") != std::string::npos);
  CHECK(answers.ends_with("hello"));
  const Client slow(s);
  for (const char c : all) slow.send({c});
  CHECK(slow.rest() == answers);
  CHECK(Client(s).ask("\r" + last).find("HTTP/1.1 400") == 0);
  std::string endless(1U << 20U, '\n');
  for (std::size_t i = 0; i < endless.size(); i += 2) endless[i] = '\r';
  CHECK(Client(s).ask(endless + last).find("HTTP/1.1 431") == 0);
}

TEST_CASE("clients beyond those that are served wait, and beyond those are told to come back") {
  ClientLimits limits;
  limits.clients = 2;
  LimitedEcho s(limits);
  const std::string slow = "GET /slow HTTP/1.1\r\nConnection: close\r\n\r\n";
  const Client first(s), second(s);
  first.send(slow);
  second.send(slow);
  while (s.slow < 2) std::this_thread::yield();
  const Client third(s), fourth(s), fifth(s), sixth(s);
  third.send(slow);
  for (const Client* c : {&fifth, &sixth}) {
    const std::string refused = c->rest();
    CHECK_MESSAGE(refused.starts_with("HTTP/1.1 503"), refused);
    CHECK(refused.find("Retry-After: 1\r\n") != std::string::npos);
  }
  s.holds = false;
  CHECK(first.rest().ends_with("slow"));
  CHECK(third.rest().ends_with("slow"));
  CHECK(fourth.ask(slow).ends_with("slow"));
}

TEST_CASE("who holds a connection without use makes way for others") {
  ClientLimits limits;
  limits.clients = 2;
  limits.request_seconds = 600;
  limits.idle_seconds = 600;
  limits.hurried_seconds = 0.3;
  LimitedEcho s(limits);
  std::vector<std::unique_ptr<Client>> kept;
  const auto connect = [&](std::size_t n, const std::string& text) {
    while (kept.size() < n) {
      kept.push_back(std::make_unique<Client>(s));
      kept.back()->send(text);
    }
  };
  SUBCASE("with half a request") {
    connect(20, "GET / HTTP/1.1\r\nX: ");
  }
  SUBCASE("for later") {
    connect(2, "GET / HTTP/1.1\r\n\r\n");
    for (const auto& c : kept) CHECK(c->up_to("hello").starts_with("HTTP/1.1 200"));
  }
  SUBCASE("with nothing") {
    connect(2, "");
  }
  std::string answer;
  for (const Clock::time_point begin = Clock::now(); seconds_since(begin) < 20 && !answer.ends_with("hello");) {
    answer = Client(s).ask("GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
  }
  CHECK(answer.ends_with("hello"));
}

TEST_CASE("a server that ends does not wait for clients that say nothing") {
  ClientLimits limits;
  limits.request_seconds = 600;
  limits.idle_seconds = 600;
  LimitedEcho s(limits);
  const Client silent(s), half(s), kept(s), asks(s);
  half.send("POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc");
  kept.send("GET / HTTP/1.1\r\n\r\n");
  CHECK(kept.up_to("hello").starts_with("HTTP/1.1 200"));
  asks.send("GET /slow HTTP/1.1\r\n\r\n");
  while (s.slow == 0) std::this_thread::yield();
  const Clock::time_point begin = Clock::now();
  std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    s.holds = false;
  });
  s.stop();
  CHECK(seconds_since(begin) < 20);
  CHECK(asks.rest().ends_with("slow"));  // what is under way is finished
  CHECK(s.echoes == 0);
}
