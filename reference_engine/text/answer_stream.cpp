#include "text/answer_stream.hpp"

#include <algorithm>
#include <utility>

namespace ferry::engine {

std::string AnswerStream::push(std::string_view bytes) {
  if (stopped_) return "";
  held_ += characters_.push(bytes);
  return release();
}

std::string AnswerStream::finish() {
  if (stopped_) return "";
  held_ += characters_.finish();
  std::string out = release();
  out += std::exchange(held_, "");
  return out;
}

std::string AnswerStream::release() {
  std::size_t end = std::string::npos;  // where the first stop string begins
  for (const std::string& stop : stops_) end = std::min(end, held_.find(stop));
  if (end != std::string::npos) {
    stopped_ = true;
    std::string out = held_.substr(0, end);
    held_.clear();
    return out;
  }
  std::size_t keep = 0;  // the longest end that may be the beginning of a stop string
  for (const std::string& stop : stops_) {
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) {
        keep = n;
        break;
      }
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

}  // namespace ferry::engine
