// What a client sends to the server, from its first byte to its last: heads, lengths, chunks, several requests at once.
#include "serve/limited_server.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "fuzz/check_simulated.hpp"
#include "fuzz/fuzz.hpp"

namespace ferry::fuzz {

using namespace engine;

namespace {

constexpr std::size_t most_bytes = 1000;

/// Answers what it is sent, and notes it.
class Echo {
 public:
  Echo() : http_(limits()) {
    const auto note = [this](const httplib::Request& q, httplib::Response& a) {
      bodies.push_back(q.body);
      a.set_content("ok", "text/plain");
    };
    for (const char* path : {"/", "/echo"}) http_.Get(path, note), http_.Post(path, note);
    http_.set_pre_routing_handler([](const httplib::Request& q, httplib::Response& a) {
      if (q.path != "/locked") return httplib::Server::HandlerResponse::Unhandled;
      a.status = 401;
      return httplib::Server::HandlerResponse::Handled;
    });
    http_.set_exception_handler(
        [](const httplib::Request&, httplib::Response& a, const std::exception_ptr&) { a.status = 400; });
    if (http_.bind_to_any_port("127.0.0.1") < 0) throw Broken("no port to be had");  // it serves while it has one
  }
  /// The server's answer to a client that sends this, and then nothing more.
  std::string answer(const std::string& sent) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) throw Broken("no sockets to be had");
    if (::send(ends[0], sent.data(), sent.size(), MSG_DONTWAIT) != static_cast<ssize_t>(sent.size())) {
      throw Broken("an input is longer than a socket holds");
    }
    ::shutdown(ends[0], SHUT_WR);
    bodies.clear();
    std::string all;
    std::thread reads([&] {  // a socket does not hold hundreds of answers
      char buffer[4096];
      for (ssize_t n = 0; (n = ::recv(ends[0], buffer, sizeof(buffer), 0)) > 0;) {
        all.append(buffer, static_cast<std::size_t>(n));
      }
    });
    http_.serve(ends[1]);
    reads.join();
    ::close(ends[0]);
    return all;
  }

  std::vector<std::string> bodies;

 private:
  static ClientLimits limits() {
    ClientLimits l;
    l.most_bytes = most_bytes;
    l.request_seconds = l.idle_seconds = 5;
    return l;
  }
  LimitedServer http_;
};

}  // namespace

void read(const std::string& input) {
  static Echo echo;
  const std::string answers = echo.answer(input);
  if (!answers.empty() && !answers.starts_with("HTTP/1.1 ")) throw Broken("an answer that is none");
  std::size_t all = 0;
  for (const std::string& body : echo.bodies) {
    all += body.size();
    if (body.size() > most_bytes + 1000) throw Broken("a body larger than it may be");
  }
  std::size_t told = 0;
  for (std::size_t at = 0; (at = answers.find("HTTP/1.1 ", at)) != std::string::npos; ++at) ++told;
  if (told < echo.bodies.size()) throw Broken("a request without an answer");
  // Bodies are not unpacked, and no byte is read twice. A request has at least 16 bytes ("GET / HTTP/1.1" and two line ends).
  if (all + 16 * echo.bodies.size() > input.size()) throw Broken("more was served than was sent");
}

std::string mutate(const std::string& input, std::size_t most, std::uint64_t /*seed*/) {
  return mutate_bytes(input, most);
}

std::vector<std::string> seeds() {
  return {"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
          "POST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.0\r\n\r\n",
          "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nTrailer: a\r\n\r\n",
          "POST /locked HTTP/1.1\r\nContent-Length: 18\r\n\r\nGET / HTTP/1.1\r\n\r\n",
          "POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Type: multipart/form-data; boundary=b\r\n"
          "Content-Length: 62\r\n\r\n--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nvalue\r\n--b--\r\n",
          "POST / HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 9\r\n\r\na=%41&b=+",
          "GET /?a=%zz&b=%u00e9 HTTP/1.1\r\nRange: bytes=0-0,1-\r\nConnection: keep-alive\r\n\r\n",
          "POST / HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
          "HEAD / HTTP/1.1\r\n\r\nOPTIONS * HTTP/1.1\r\nConnection: close\r\n\r\n"};
}

}  // namespace ferry::fuzz
