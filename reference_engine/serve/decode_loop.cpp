#include "serve/decode_loop.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <utility>

#include "support/clock.hpp"
#include "support/errors.hpp"

namespace ferry::engine {
namespace {

double seconds_since(Nanoseconds begin) {
  return static_cast<double>(now_ns() - begin) * 1e-9;
}

}  // namespace

void TimeHistogram::add(double seconds) {
  const auto bucket = std::lower_bound(bounds.begin(), bounds.end(), seconds) - bounds.begin();
  ++counts[static_cast<std::size_t>(bucket)];
  ++count;
  sum += seconds;
}

std::optional<Answer::Piece> Answer::next(double seconds) {
  std::unique_lock lock(mutex_);
  came_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return over_ || !pieces_.empty(); });
  if (pieces_.empty()) return std::nullopt;
  Piece piece = std::move(pieces_.front());
  pieces_.pop_front();
  return piece;
}

bool Answer::is_over() const {
  const std::lock_guard lock(mutex_);
  return over_ && pieces_.empty();
}

void Answer::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
}

DecodeLoop::DecodeLoop(Model& model, MakeRunner make_runner, const Options& options)
    : model_(model), make_runner_(std::move(make_runner)), options_(options), places_(options.places) {
  start();
  publish();
  thread_ = std::thread([this] { run(); });
}

void DecodeLoop::start() {
  runner_ = make_runner_();
  decoder_.emplace(
      model_, *runner_, BatchDecoder::Options{options_.places, options_.prefill_chunk, true},
      [this](std::uint32_t place, std::uint32_t token, const std::string& text) { deliver(place, token, text); });
}

/// Builds a new runner and decoder. After a failed copy, nobody knows what the slots hold, and a failed link never recovers.
void DecodeLoop::start_anew(const std::string& failure) {
  own_.failure = failure;
  decoder_.reset();
  runner_.reset();
  try {
    start();
  } catch (const std::exception& e) {
    decoder_.reset();
    runner_.reset();
    own_.failure = e.what();
  }
}

DecodeLoop::~DecodeLoop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = closed_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::vector<std::shared_ptr<Answer>> DecodeLoop::submit(std::vector<DecodeRequest> requests) {
  std::vector<std::shared_ptr<Answer>> answers;
  {
    const std::lock_guard lock(mutex_);
    const std::uint32_t free = options_.places - std::min(options_.places, published_.active);
    if (closed_ || waiting_.size() + requests.size() > std::size_t{options_.most_waiting} + free) {
      ++published_.refused;
      return {};
    }
    for (DecodeRequest& r : requests) {
      answers.push_back(std::make_shared<Answer>());
      answers.back()->submitted_ = now_ns();
      waiting_.push_back({std::move(r), answers.back()});
    }
    published_.waiting = static_cast<std::uint32_t>(waiting_.size());
  }
  changed_.notify_all();
  return answers;
}

void DecodeLoop::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

bool DecodeLoop::is_idle() const {
  const std::lock_guard lock(mutex_);
  return waiting_.empty() && published_.active == 0;
}

LoopStatistics DecodeLoop::statistics() const {
  const std::lock_guard lock(mutex_);
  return published_;
}

void DecodeLoop::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      const bool busy = decoder_ && (decoder_->prefilling() || decoder_->decoding());
      if (!busy) changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      if (stopping_) break;
    }
    drop_cancelled();
    admit();
    try {
      const BatchDecoder::Step step = decoder_ ? decoder_->step() : BatchDecoder::Step();
      if (step.rows > 0) {
        own_.tokens[static_cast<unsigned>(step.phase)] += step.rows;
        ++own_.steps[static_cast<unsigned>(step.phase)];
      }
    } catch (const std::exception& e) {  // a disk that fails, a device that is lost: later requests may do better
      const std::string failure = e.what();
      fail_all(failure);
      ++own_.failures_in_a_row;
      start_anew(failure);
    }
    if (runner_) runner_->uses.clear();  // kept for bounds, which nobody asks for here
    for (std::uint32_t place = 0; place < places_.size(); ++place) {
      if (places_[place] == nullptr) continue;
      bool cancelled = false;
      {
        const std::lock_guard lock(places_[place]->mutex_);
        cancelled = places_[place]->cancelled_;
      }
      if (cancelled || decoder_->is_over(place)) end(place);
    }
    publish();
  }
  fail_all("the server ends");
  {
    const std::lock_guard lock(mutex_);
    for (const Job& job : waiting_) fail(job.answer, "the server ends");
    waiting_.clear();
  }
  publish();
}

/// Removes requests from the queue whose clients are gone.
void DecodeLoop::drop_cancelled() {
  const std::lock_guard lock(mutex_);
  const auto is_cancelled = [](const Job& job) {
    const std::lock_guard own(job.answer->mutex_);
    return job.answer->cancelled_;
  };
  const auto first = std::stable_partition(waiting_.begin(), waiting_.end(), std::not_fn(is_cancelled));
  for (auto job = first; job != waiting_.end(); ++job) {
    over_.push_back(std::move(job->answer));
    ++own_.ended[static_cast<unsigned>(Ended::interrupted)];
  }
  waiting_.erase(first, waiting_.end());
}

void DecodeLoop::admit() {
  bool tried = false;
  while (!decoder_ || decoder_->has_room()) {
    Job job;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) return;
      job = std::move(waiting_.front());
      waiting_.pop_front();
      ++published_.active;  // so that `is_idle` stays false meanwhile
    }
    if (!decoder_ && !std::exchange(tried, true)) {
      start_anew(own_.failure);
      if (!decoder_) ++own_.failures_in_a_row;
    }
    try {
      if (!decoder_) throw InputError(own_.failure);
      const std::lock_guard own(job.answer->mutex_);
      if (job.answer->cancelled_) {
        over_.push_back(job.answer);
        ++own_.ended[static_cast<unsigned>(Ended::interrupted)];
      } else {
        const std::uint32_t place = decoder_->add(job.request);
        job.answer->before_ = runner_->statistics().counters;
        places_[place] = job.answer;
      }
    } catch (const std::exception& e) {
      fail(job.answer, e.what());
      ++own_.failed;
    }
  }
}

void DecodeLoop::deliver(std::uint32_t place, std::uint32_t token, const std::string& text) {
  Answer& answer = *places_[place];
  const Decoded& made = decoder_->decoded(place);
  const std::lock_guard lock(answer.mutex_);
  if (answer.first_token_s_ == 0) {
    answer.first_token_s_ = seconds_since(answer.submitted_);
    own_.to_first_token.add(answer.first_token_s_);
  }
  Answer::Piece& piece = answer.pieces_.emplace_back();
  piece.token = token;
  piece.text = text;
  if (!made.probabilities.empty()) {
    piece.probability = made.probabilities.back();
    piece.alternatives = made.alternatives.back();
  }
  answer.came_.notify_all();
}

void DecodeLoop::end(std::uint32_t place) {
  Answer& answer = *places_[place];
  const bool whole = decoder_->is_over(place);
  Decoded made = decoder_->release(place);
  if (whole) own_.failures_in_a_row = 0;
  {
    const std::lock_guard lock(answer.mutex_);
    answer.after_ = runner_->statistics().counters;
    answer.whole_s_ = seconds_since(answer.submitted_);
    if (whole && made.tokens.size() > 1) {
      own_.per_token.add((answer.whole_s_ - answer.first_token_s_) / static_cast<double>(made.tokens.size() - 1));
    }
    own_.whole.add(answer.whole_s_);
    ++own_.ended[static_cast<unsigned>(made.ended)];
    answer.decoded_ = std::move(made);
  }
  over_.push_back(std::move(places_[place]));
  places_[place] = nullptr;
}

void DecodeLoop::fail_all(const std::string& error) {
  for (std::uint32_t place = 0; place < places_.size(); ++place) {
    if (places_[place] == nullptr) continue;
    static_cast<void>(decoder_->release(place));
    fail(places_[place], error);
    ++own_.failed;
    places_[place] = nullptr;
  }
}

void DecodeLoop::fail(const std::shared_ptr<Answer>& answer, const std::string& error) {
  const std::lock_guard lock(answer->mutex_);
  answer->error_ = error;
  over_.push_back(answer);
}

void DecodeLoop::publish() {
  if (decoder_) {
    own_.runner = runner_->statistics();
    own_.times[0] = runner_->times[0];
    own_.times[1] = runner_->times[1];
  }
  own_.cache_bytes = decoder_ ? decoder_->cache_bytes() : 0;
  own_.active = static_cast<std::uint32_t>(
      std::count_if(places_.begin(), places_.end(), [](const auto& answer) { return answer != nullptr; }));
  {
    const std::lock_guard lock(mutex_);
    own_.waiting = static_cast<std::uint32_t>(waiting_.size());
    own_.refused = published_.refused;
    published_ = own_;
  }
  // Last, so that a client that has its answer finds it in the statistics.
  for (const std::shared_ptr<Answer>& answer : over_) {
    const std::lock_guard lock(answer->mutex_);
    answer->over_ = true;
    answer->came_.notify_all();
  }
  over_.clear();
}

}  // namespace ferry::engine
