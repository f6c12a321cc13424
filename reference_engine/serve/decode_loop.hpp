/// @file
/// Requests of many clients through one model, on a thread of their own.
#pragma once
#include <array>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "inference/batch_decoder.hpp"

namespace ferry::engine {

/// A time in buckets, as Prometheus has them.
struct TimeHistogram {
  static constexpr std::array<double, 14> bounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                    0.25,  0.5,    1,     2.5,  5,     10,   30};
  std::array<std::uint64_t, bounds.size() + 1> counts{};  ///< of times up to each bound, and of those above
  std::uint64_t count = 0;
  double sum = 0;

  void add(double seconds);
};

/// What a loop has done so far.
struct LoopStatistics {
  RunnerStatistics runner;
  PhaseTimes times[2];                             ///< by Phase
  std::uint64_t tokens[2] = {};                    ///< rows of forward passes, by Phase
  std::uint64_t steps[2] = {};                     ///< likewise
  std::array<std::uint64_t, 5> ended{};            ///< requests, by Ended
  std::uint64_t failed = 0, refused = 0;           ///< ended by an error; not taken: the queue was full, or closed
  std::uint32_t failures_in_a_row = 0;             ///< of what runs the experts, since a request was last whole
  std::string failure;                             ///< the last of them
  std::uint32_t active = 0, waiting = 0;           ///< at present
  std::uint64_t cache_bytes = 0;                   ///< of keys and values, at present
  TimeHistogram to_first_token, per_token, whole;  ///< of each request, from when it came
};

/// What a client reads of its request, piece by piece.
class Answer {
 public:
  struct Piece {
    std::uint32_t token = 0;
    std::string text;
    std::optional<TokenProbability> probability;
    std::vector<TokenProbability> alternatives;
  };

  /// Waits for the next piece; nothing once all have been read and no more come, or after `seconds` without one.
  [[nodiscard]] std::optional<Piece> next(double seconds);
  /// Whether all is there.
  [[nodiscard]] bool is_over() const;
  /// Once it is over: what came of it, or why nothing did.
  [[nodiscard]] const Decoded& decoded() const { return decoded_; }
  [[nodiscard]] const std::string& error() const { return error_; }
  /// The stack's counters before and after the request was decoded; they include what was done for others beside it.
  [[nodiscard]] const Counters& before() const { return before_; }
  [[nodiscard]] const Counters& after() const { return after_; }
  /// Seconds from when it came; 0: not yet.
  [[nodiscard]] double first_token_s() const { return first_token_s_; }
  [[nodiscard]] double whole_s() const { return whole_s_; }
  /// Nobody waits for it any more: it ends with the step under way.
  void cancel();

 private:
  friend class DecodeLoop;
  mutable std::mutex mutex_;
  std::condition_variable came_;
  std::deque<Piece> pieces_;
  bool over_ = false, cancelled_ = false;
  Decoded decoded_;
  std::string error_;
  Counters before_, after_;
  Nanoseconds submitted_ = 0;
  double first_token_s_ = 0, whole_s_ = 0;
};

/// Decodes what is submitted, as many texts at a time as there are places; others wait in a queue of limited length. A chunk of
/// a prompt and a decode step take turns, so that long prompts hold nobody up.
class DecodeLoop {
 public:
  struct Options {
    std::uint32_t places = 4, prefill_chunk = 128, most_waiting = 64;
  };
  /// Makes what runs the model's experts. Called again when that has failed, as with its disk, for a new one in its place.
  using MakeRunner = std::function<std::unique_ptr<ExpertRunner>()>;
  /// The model must outlive it, and nobody else may use it meanwhile. Throws what `make_runner` does.
  DecodeLoop(Model& model, MakeRunner make_runner, const Options& options);
  /// Interrupts what is under way.
  ~DecodeLoop();
  DecodeLoop(const DecodeLoop&) = delete;
  DecodeLoop& operator=(const DecodeLoop&) = delete;

  /// Takes all of these requests, or none: empty if the free places and the queue have no room for all, or if it is closed.
  [[nodiscard]] std::vector<std::shared_ptr<Answer>> submit(std::vector<DecodeRequest> requests);
  /// Takes no more requests; those that wait or are under way are finished.
  void close();
  [[nodiscard]] bool is_idle() const;
  [[nodiscard]] LoopStatistics statistics() const;
  [[nodiscard]] const Options& options() const { return options_; }

 private:
  struct Job {
    DecodeRequest request;
    std::shared_ptr<Answer> answer;
  };
  void run();
  void start();
  void start_anew(const std::string& failure);
  void drop_cancelled();
  void admit();
  void deliver(std::uint32_t place, std::uint32_t token, const std::string& text);
  void end(std::uint32_t place);
  void fail_all(const std::string& error);
  void fail(const std::shared_ptr<Answer>& answer, const std::string& error);
  void publish();

  Model& model_;
  MakeRunner make_runner_;
  Options options_;
  std::unique_ptr<ExpertRunner> runner_;  ///< null, as is `decoder_`: it failed, and no other could be made yet
  std::optional<BatchDecoder> decoder_;
  std::vector<std::shared_ptr<Answer>> places_;  ///< of the loop's thread
  std::vector<std::shared_ptr<Answer>> over_;    ///< likewise: what `publish` tells their clients is over
  LoopStatistics own_;                           ///< likewise

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> waiting_;
  LoopStatistics published_;
  bool closed_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace ferry::engine
