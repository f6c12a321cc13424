#include "serve/limited_server.hpp"

#include <fmt/format.h>
#include <malloc.h>
#include <poll.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "serve/api_error.hpp"
#include "support/clock.hpp"

namespace ferry::engine {
namespace {

ApiError refusal(int status, std::string message) {
  ApiError e;
  e.status = status;
  e.message = std::move(message);
  if (status >= 500) e.type = "server_error";
  return e;
}

/// True in the thread that accepts connections while it turns one away.
thread_local bool turns_away = false;

/// Serves connections on threads of its own. The library's pool would end the process without a message if the system has too
/// few threads, and would let any number of connections wait.
class ClientThreads final : public httplib::TaskQueue {
 public:
  ClientThreads(std::size_t n, std::atomic<std::uint32_t>& waiting) : waiting_(waiting) {
    try {
      while (threads_.size() < n) threads_.emplace_back([this] { serve(); });
    } catch (...) {
      shutdown();
      throw;
    }
  }

  /// void, or bool (whether it took the job), depending on the library's version.
  using Taken = decltype(std::declval<httplib::TaskQueue&>().enqueue(nullptr));

  Taken enqueue(std::function<void()> job) override {
    std::unique_lock lock(mutex_);
    if (jobs_.size() >= threads_.size() + idle_) {
      lock.unlock();
      turns_away = true;
      run(job);
      turns_away = false;
      return static_cast<Taken>(true);
    }
    jobs_.push_back(std::move(job));
    count();
    lock.unlock();
    changed_.notify_one();
    return static_cast<Taken>(true);
  }
  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    threads_.clear();
  }

 private:
  static void run(const std::function<void()>& job) {
    try {
      job();
    } catch (const std::exception&) {  // no memory for this one: later ones may do better
    }
  }
  void count() { waiting_ = static_cast<std::uint32_t>(jobs_.size() > idle_ ? jobs_.size() - idle_ : 0); }
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      count();
      changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
      --idle_;
      if (jobs_.empty()) return;
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      count();
      lock.unlock();
      run(job);
      lock.lock();
    }
  }

  std::atomic<std::uint32_t>& waiting_;  ///< connections that no thread is free for
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::size_t idle_ = 0;  ///< threads
  bool stop_ = false;
  std::vector<std::jthread> threads_;
};

/// A body as its head announces it.
struct AnnouncedBody {
  bool chunked = false;
  std::uint64_t bytes = 0;  ///< if it is not chunked
};

bool is_token(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || (c != 0 && std::strchr("!#$%&'*+-.^_`|~", c) != nullptr);
  });
}

/// Throws ApiError for heads that two readers might understand differently, and for bodies that are too large.
AnnouncedBody announced_body(httplib::Request& q, std::uint64_t most_bytes) {
  for (const auto& [name, value] : q.headers) {
    if (!is_token(name)) throw refusal(400, "Expected a colon right behind each header's name, which begins its line.");
  }
  if (q.get_header_value_count("Host") > 1) throw refusal(400, "Expected one Host.");
  q.ranges.clear();  // answers are made anew each time: ranges are useless, and thousands are costly
  const std::string encoding = q.get_header_value("Content-Encoding");
  if (!encoding.empty() && encoding != "identity") {
    throw refusal(415, "A body is taken as it is: expected no Content-Encoding.");
  }
  const std::size_t lengths = q.get_header_value_count("Content-Length");
  const std::size_t transfers = q.get_header_value_count("Transfer-Encoding");
  if (lengths + transfers > 1) {
    throw refusal(400, "Expected one Content-Length, or one Transfer-Encoding, and not both.");
  }
  if (transfers == 1) {
    if (::strcasecmp(q.get_header_value("Transfer-Encoding").c_str(), "chunked") != 0) {
      throw refusal(400, "Expected Transfer-Encoding: chunked.");
    }
    return {true, 0};
  }
  if (lengths == 0) {  // no body; the library would read until the connection ends
    q.set_header("Content-Length", "0");
    return {};
  }
  const std::string text = q.get_header_value("Content-Length");
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos) {
    throw refusal(400, "Content-Length: expected a number of bytes.");
  }
  AnnouncedBody body;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), body.bytes);
  if (read.ec != std::errc() || body.bytes > most_bytes) {
    throw refusal(413, fmt::format("The body is larger than the {} bytes that this server takes.", most_bytes));
  }
  return body;
}

/// Follows a head byte by byte. The library skips lines that it does not understand, and another reader might take one of
/// them for the length of a body.
class HeadReader {
 public:
  /// Takes what was read. False if the head has a CR or LF alone, or a header line without a colon, as folded lines may be
  /// (RFC 9112, section 5.2). Names that begin with white space are refused later, with other bad names.
  bool take(const char* at, std::size_t size) {
    return std::all_of(at, at + size, [this](char c) { return take(c); });
  }
  /// Whether the byte that comes next is of an empty line before the request's, which is to be skipped (section 2.2).
  [[nodiscard]] bool precedes(char c) const { return first_ && length_ == 0 && (c == '\r' || c == '\n'); }

 private:
  bool take(char c) {
    if (ends_ != (c == '\n')) return false;
    if (c == '\n') {
      const bool good = first_ || colon_ || length_ == 0;
      first_ = first_ && length_ == 0;  // empty lines may come first
      ends_ = colon_ = false;
      length_ = 0;
      return good;
    }
    ends_ = c == '\r';
    if (ends_) return true;
    ++length_;
    colon_ = colon_ || c == ':';
    return true;
  }

  bool first_ = true;   ///< the line is the request's
  bool ends_ = false;   ///< the last byte was a CR
  bool colon_ = false;  ///< the line has one
  std::uint64_t length_ = 0;
};

/// Follows a chunked body byte by byte. The library accepts sizes that other readers do not, and does not say where a body
/// ends that it refuses.
class ChunkReader {
 public:
  /// Takes what was read. False if it breaks RFC 9112, section 7.1, or has trailers.
  bool take(const char* at, std::size_t size) {
    for (const char* const end = at + size; at != end; ++at) {
      if (left_ > 0) {
        const std::uint64_t n = std::min<std::uint64_t>(left_, static_cast<std::uint64_t>(end - at));
        left_ -= n;
        at += n;
        if (at == end) return true;
      }
      if (!take(*at)) return false;
    }
    return true;
  }
  [[nodiscard]] bool is_over() const { return expected_ == Expected::nothing; }

 private:
  enum class Expected : std::uint8_t { size, size_end, extension, data_end, data_line, last_end, last_line, nothing };

  bool take(char c) {
    switch (expected_) {
      case Expected::size:
        if (const int digit = digit_of(c); digit >= 0 && digits_ < 15) {
          size_ = size_ * 16 + static_cast<std::uint64_t>(digit);
          ++digits_;
          return true;
        }
        expected_ = c == ';' ? Expected::extension : Expected::size_end;
        return digits_ > 0 && (c == ';' || c == '\r');
      case Expected::extension:
        if (c == '\r') expected_ = Expected::size_end;
        return c != '\n';
      case Expected::size_end:
        left_ = size_;
        expected_ = size_ > 0 ? Expected::data_end : Expected::last_end;
        size_ = digits_ = 0;
        return c == '\n';
      case Expected::data_end:
        expected_ = Expected::data_line;
        return c == '\r';
      case Expected::data_line:
        expected_ = Expected::size;
        return c == '\n';
      case Expected::last_end:
        expected_ = Expected::last_line;
        return c == '\r';
      case Expected::last_line:
        expected_ = Expected::nothing;
        return c == '\n';
      case Expected::nothing:
        return false;
    }
    return false;
  }
  static int digit_of(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c = static_cast<char>(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  }

  Expected expected_ = Expected::size;
  std::uint64_t size_ = 0, digits_ = 0;
  std::uint64_t left_ = 0;  ///< of a chunk's data
};

/// A client's socket, as the library reads and writes it. The destructor closes it. Functions are not marked `override`,
/// since versions of the library (0.11 to 0.53 were tried) differ in which of them are virtual.
class Connection final : public httplib::Stream {
 public:
  Connection(socket_t socket, const LimitedServer& server) : socket_(socket), server_(server) {}
  ~Connection() { ::close(socket_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Waits for a request. False: the client is gone or sends nothing, or the server ends.
  bool await_request() {
    const ClientLimits& limits = server_.limits();
    const Nanoseconds idle_since = now_ns();
    const bool comes = at_ < held_ || wait(POLLIN, [&] {
                         const double hurried = first_ ? limits.hurried_seconds : 0;
                         return after(idle_since, server_.hurries() ? hurried : limits.idle_seconds);
                       });
    first_ = false;
    begun_ = now_ns();
    taken_ = body_at_ = 0;
    in_head_ = true;
    head_ = {};
    return comes && !server_.stops();
  }
  void begin_body(const AnnouncedBody& body) {
    in_head_ = false;
    body_ = body;
    body_at_ = taken_;
    chunks_ = {};
  }
  /// Whether all of the request has been read, so that what comes next is another one's head.
  [[nodiscard]] bool is_read() const {
    if (lost_ || in_head_) return false;
    return body_.chunked ? chunks_.is_over() : taken_ - body_at_ >= body_.bytes;
  }

  /// Bytes of the request that is read.
  [[nodiscard]] std::uint64_t taken() const { return taken_; }

  [[nodiscard]] bool is_gone() const {
    char byte = 0;
    const ssize_t n = ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
  }

  /// Sends an error without the library, if the client takes it at once.
  void refuse(const ApiError& e) {
    const std::string body = e.body();
    const std::string text = fmt::format(
        "HTTP/1.1 {} \r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}Connection: close\r\n\r\n{}",
        e.status, body.size(), e.status == 503 ? "Retry-After: 1\r\n" : "", body);
    static_cast<void>(::send(socket_, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
  }
  /// Reads and drops what the client still sends: closing a connection with unread bytes may lose the answer, too.
  void take_rest(double seconds) {
    ::shutdown(socket_, SHUT_WR);
    const Nanoseconds begin = now_ns();
    std::uint64_t taken = 0;
    for (;;) {
      const ssize_t n = ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN)) return;
      taken += n > 0 ? static_cast<std::uint64_t>(n) : 0;
      if (taken > server_.limits().most_bytes || after(begin, seconds) || server_.stops()) return;
      if (n < 0 && !wait(POLLIN, [&] { return server_.hurries() || after(begin, seconds); })) return;
    }
  }

  // httplib::Stream

  bool is_readable() const {
    pollfd p{socket_, POLLIN, 0};
    return at_ < held_ || ::poll(&p, 1, 0) > 0;
  }
  bool wait_readable() const {
    return at_ < held_ || wait(POLLIN, [this] { return is_late(); });
  }
  bool wait_writable() const { return is_writable(); }
  time_t duration() const { return static_cast<time_t>((now_ns() - begun_) / 1'000'000'000); }
  bool is_writable() const { return has_room(); }  // a client that has closed its own end may still read
  /// Throws ApiError where the request is too large or too late.
  ssize_t read(char* to, std::size_t size) {
    for (;;) {
      if (at_ == held_) {
        const ssize_t n = fill();
        if (n <= 0) return n;
      }
      if (!in_head_ || !head_.precedes(buffer_[at_])) break;
      take_head(1);
      ++at_;
      ++taken_;
    }
    const std::size_t n = std::min(size, held_ - at_);
    std::memcpy(to, buffer_.data() + at_, n);
    if (in_head_) take_head(n);
    at_ += n;
    taken_ += n;
    if (!in_head_ && body_.chunked && !chunks_.take(to, n)) {
      give_up(400,
              "Expected chunks of a size in hexadecimal digits and a line's end, and behind the last one nothing.");
    }
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* from, std::size_t size) {
    if (!has_room()) return -1;
    const ssize_t n = ::send(socket_, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : n;
  }
  void get_remote_ip_and_port(std::string&, int&) const {}  // nobody asks
  void get_local_ip_and_port(std::string&, int&) const {}
  socket_t socket() const { return socket_; }

 private:
  static constexpr std::uint64_t most_head = 64U << 10U;
  static constexpr int tick_ms = 50;  ///< how late a connection notices that others wait, or that the server ends

  static bool after(Nanoseconds begin, double seconds) {
    return static_cast<double>(now_ns() - begin) * 1e-9 > seconds;
  }

  /// Waits until the socket is ready; false if it is too late. A server that ends waits a second to write, and not to read.
  template <class Late>
  bool wait(short ready, const Late& late) const {
    const Nanoseconds begin = now_ns();
    for (;;) {
      pollfd p{socket_, ready, 0};
      const int n = ::poll(&p, 1, tick_ms);
      if (n > 0) return true;
      if ((n < 0 && errno != EINTR) || late() || (server_.stops() && (ready == POLLIN || after(begin, 1))))
        return false;
    }
  }

  [[nodiscard]] bool has_room() const {
    const Nanoseconds begin = now_ns();
    return wait(POLLOUT, [&] { return after(begin, server_.limits().request_seconds); });
  }
  [[nodiscard]] double patience() const {
    return server_.hurries() ? server_.limits().hurried_seconds : server_.limits().request_seconds;
  }
  [[nodiscard]] bool is_late() const { return after(begun_, patience()); }

  void take_head(std::size_t size) {
    if (head_.take(buffer_.data() + at_, size)) return;
    give_up(400,
            "Expected a head of lines that begin with a name and a colon behind it, and end with CR and LF together.");
  }
  ssize_t fill() {
    const ClientLimits& limits = server_.limits();
    if (in_head_ && taken_ >= most_head) give_up(431, "The request's head is larger than 64 KiB.");
    if (!in_head_ && taken_ - body_at_ > limits.most_bytes + most_head) {  // room for the chunks' own heads
      give_up(413, fmt::format("The body is larger than the {} bytes that this server takes.", limits.most_bytes));
    }
    // Also checked if there is something to read: else a client that sends a byte now and then would never be late.
    const bool comes = !is_late() && wait(POLLIN, [this] { return is_late(); });
    if (!comes && server_.stops()) give_up(503, "The server is ending.");
    if (!comes) give_up(408, fmt::format("The request did not arrive whole within {} s.", patience()));
    const ssize_t n = ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    lost_ = n <= 0;
    at_ = 0;
    held_ = static_cast<std::size_t>(std::max<ssize_t>(n, 0));
    return n;
  }
  [[noreturn]] void give_up(int status, std::string message) {
    lost_ = true;
    throw refusal(status, std::move(message));
  }

  const socket_t socket_;
  const LimitedServer& server_;
  std::array<char, 16384> buffer_;
  std::size_t at_ = 0, held_ = 0;
  bool first_ = true;
  bool lost_ = false;  ///< nothing more is read
  // of the request under way
  Nanoseconds begun_ = 0;
  std::uint64_t taken_ = 0, body_at_ = 0;  ///< bytes read; of them the head's
  bool in_head_ = true;
  HeadReader head_;
  AnnouncedBody body_;
  ChunkReader chunks_;
};

/// What the calling thread serves.
thread_local const Connection* served = nullptr;

}  // namespace

bool LimitedServer::client_is_gone() {
  return served != nullptr && served->is_gone();
}

LimitedServer::LimitedServer(const ClientLimits& limits) : limits_(limits) {
  new_task_queue = [this] { return new ClientThreads(limits_.clients, waiting_); };
  set_payload_max_length(limits_.most_bytes);
  set_keep_alive_timeout(static_cast<time_t>(limits_.idle_seconds));
  set_keep_alive_max_count(1000);
}

void LimitedServer::let_many_wait() {
  static_cast<void>(::listen(svr_sock_, SOMAXCONN));
}

void LimitedServer::serve(socket_t socket) {
  Connection c(socket, *this);
  served = &c;
  const auto ends = [](const Connection* /*served*/) { served = nullptr; };
  const std::unique_ptr<const Connection, decltype(ends)> until_then(&c, ends);
  if (turns_away) {
    c.refuse(refusal(503, "All connections of this server are taken: try again later."));
    c.take_rest(0);
    return;
  }
  const auto head_is_read = [&](httplib::Request& q) { c.begin_body(announced_body(q, limits_.most_bytes)); };
  const auto answer = [&](auto& self, bool last, bool& closes) {
    if constexpr (requires { self.process_request(c, last, closes, head_is_read); }) {
      return self.process_request(c, last, closes, head_is_read);
    } else {  // later versions also want addresses, which are not used here
      return self.process_request(c, "", 0, "", 0, last, closes, head_is_read);
    }
  };
  for (std::size_t left = keep_alive_max_count_; left > 0 && c.await_request(); --left) {
    bool closes = false;
    try {
      if (!answer(*this, left == 1, closes)) return;
    } catch (const ApiError& e) {
      c.refuse(e);
    }
    constexpr std::uint64_t large = 1U << 20U;
    if (c.taken() > large) ::malloc_trim(0);  // else the thread keeps the memory of large requests
    if (!c.is_read()) {
      c.take_rest(1);
      return;
    }
    if (closes) return;
  }
}

}  // namespace ferry::engine
