#include "inference/eval.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numbers>

#include "inference/generate.hpp"
#include "support/errors.hpp"

namespace ferry::engine {
namespace {

Eigen::ArrayXd log_softmax(const Quality::Logits& logits) {
  Eigen::ArrayXd x = logits.transpose().cast<double>().array();
  x -= x.maxCoeff();
  return x - std::log(x.exp().sum());
}

std::ptrdiff_t best(const Quality::Logits& logits) {
  return std::max_element(logits.data(), logits.data() + logits.size()) - logits.data();
}

using Window = std::vector<std::uint32_t>;

/// Logits of each window [tokens - 1, vocabulary]: row i predicts token i + 1. The last token is not run.
std::vector<Matrix> run_windows(Model& model, ExpertRunner& runner, const std::vector<Window>& windows, Phase phase) {
  const ModelConfig& c = model.config();
  std::vector<Matrix> logits;
  std::vector<KvCache> caches;
  std::size_t longest = 0;
  for (const Window& w : windows) {
    logits.emplace_back(static_cast<Eigen::Index>(w.size() - 1), c.vocabulary);
    caches.push_back(model.make_cache(static_cast<std::uint32_t>(w.size() - 1)));
    longest = std::max(longest, w.size() - 1);
  }
  const std::size_t step = phase == Phase::decode ? 1 : longest;
  try {
    for (std::size_t first = 0; first < longest; first += step) {
      std::vector<TokenRow> rows;
      for (std::uint32_t s = 0; s < windows.size(); ++s) {
        for (std::size_t i = first; i < std::min(first + step, windows[s].size() - 1); ++i) {
          rows.push_back({s, windows[s][i], static_cast<std::uint32_t>(i)});
        }
      }
      const Matrix made = model.forward(phase, rows, caches, runner, static_cast<std::uint32_t>(rows.size()));
      if (!made.allFinite()) {
        throw InputError("the model computes values that are not finite: its weights or config.json are damaged");
      }
      for (std::size_t i = 0; i < rows.size(); ++i) {
        logits[rows[i].sequence].row(rows[i].position) = made.row(static_cast<Eigen::Index>(i));
      }
    }
  } catch (...) {
    runner.abandon();
    throw;
  }
  for (std::uint32_t s = 0; s < windows.size(); ++s) runner.end_sequence(s);
  return logits;
}

}  // namespace

void Quality::score(const Logits& resident, const Logits& stack, std::uint32_t token, std::uint32_t token_bytes) {
  const Eigen::ArrayXd right = log_softmax(resident), own = log_softmax(stack);
  bytes += token_bytes;
  ++tokens;
  agreed += best(resident) == best(stack) ? 1 : 0;
  resident_bits -= right[token] * std::numbers::log2e;
  bits -= own[token] * std::numbers::log2e;
  kl_bits += (right.exp() * (right - own)).sum() * std::numbers::log2e;
}

Quality& Quality::operator+=(const Quality& other) {
  bytes += other.bytes;
  tokens += other.tokens;
  agreed += other.agreed;
  bits += other.bits;
  resident_bits += other.resident_bits;
  kl_bits += other.kl_bits;
  return *this;
}

Evaluated& Evaluated::operator+=(const Evaluated& other) {
  quality += other.quality;
  for (unsigned p = 0; p < 2; ++p) {
    for (auto member :
         {&Outcomes::requests, &Outcomes::hits, &Outcomes::late_hits, &Outcomes::misses, &Outcomes::substituted,
          &Outcomes::skipped, &Outcomes::host_computed, &Outcomes::bytes, &Outcomes::miss_bytes, &Outcomes::prefetched,
          &Outcomes::prefetched_bytes, &Outcomes::top_requests, &Outcomes::top_misses, &Outcomes::top_late_hits,
          &Outcomes::low_requests, &Outcomes::low_misses, &Outcomes::low_late_hits}) {
      static_assert(sizeof(Outcomes) == 17 * sizeof(std::uint64_t));  // all of them
      phase[p].*member += other.phase[p].*member;
    }
  }
  preload_bytes += other.preload_bytes;
  virtual_ns += other.virtual_ns;
  resident_ns += other.resident_ns;
  for (std::uint32_t p = 0; p < precision_count; ++p) {
    bytes_by_precision[p] += other.bytes_by_precision[p];
    computed[p] += other.computed[p];
  }
  return *this;
}

void EvalOptions::check(const ModelConfig& config) const {
  if (window < 1 || window > config.context) {
    throw InputError(fmt::format("--window {}: expected 1 to {}, the model's context", window, config.context));
  }
}

std::vector<Evaluated> evaluate(Model& model, ExpertRunner& resident,
                                const std::vector<std::unique_ptr<ExpertRunner>>& stacks, const TokenizedText& text,
                                const EvalOptions& o) {
  o.check(model.config());
  const std::vector<std::uint32_t>& all = text.tokens;
  const std::vector<std::uint32_t> begin_tokens = model.begin_tokens();
  if (all.empty() || begin_tokens.size() + all.size() < 2)
    throw InputError("the text has no token that another one predicts");
  std::vector<Evaluated> results(stacks.size());
  // Times count from here, without what is copied before the first step.
  const Nanoseconds resident_begin = resident.statistics().virtual_ns;
  std::vector<Nanoseconds> begin;
  for (const auto& s : stacks) begin.push_back(s->statistics().virtual_ns);
  for (std::size_t at = 0; at < all.size();) {
    std::vector<Window> windows;
    std::vector<std::size_t> first;  // where each window begins in the text
    for (; windows.size() < o.batch && at < all.size(); at += o.window) {
      Window& window = windows.emplace_back(begin_tokens);
      const auto from = all.begin() + static_cast<std::ptrdiff_t>(at);
      window.insert(window.end(), from,
                    from + static_cast<std::ptrdiff_t>(std::min<std::size_t>(o.window, all.size() - at)));
      first.push_back(at);
    }
    // A last window of one token has nothing to predict it.
    if (windows.size() > 1 && windows.back().size() < 2) windows.pop_back();
    if (windows[0].size() < 2) break;
    const std::vector<Matrix> right = run_windows(model, resident, windows, o.phase);
    resident.uses.clear();  // kept for bounds, which nobody asks for here
    for (std::size_t s = 0; s < stacks.size(); ++s) {
      ExpertRunner& runner = *stacks[s];
      const std::vector<Matrix> own = run_windows(model, runner, windows, o.phase);
      for (std::size_t w = 0; w < windows.size(); ++w) {
        for (Eigen::Index i = 0; i < own[w].rows(); ++i) {
          const std::size_t token = static_cast<std::size_t>(i) + 1;
          if (token < begin_tokens.size()) continue;
          const std::size_t of_text = first[w] + token - begin_tokens.size();
          results[s].quality.score(right[w].row(i), own[w].row(i), windows[w][token],
                                   text.bytes.empty() ? 1 : text.bytes[of_text]);
        }
      }
      for (const UseLog& log : runner.uses) {
        for (const Variant& v : log.uses) ++results[s].computed[static_cast<unsigned>(v.precision)];
      }
      runner.uses.clear();
    }
    if (o.progress && !o.progress(std::min(at, all.size()), all.size())) break;
  }
  const Nanoseconds resident_ns = resident.statistics().virtual_ns - resident_begin;
  for (std::size_t s = 0; s < stacks.size(); ++s) {
    const RunnerStatistics statistics = stacks[s]->statistics();
    const Counters& c = statistics.counters;
    std::copy(std::begin(c.phase), std::end(c.phase), results[s].phase);
    std::copy(std::begin(c.bytes_by_precision), std::end(c.bytes_by_precision), results[s].bytes_by_precision);
    results[s].preload_bytes = c.preload_bytes;
    results[s].virtual_ns = statistics.virtual_ns - begin[s];
    results[s].resident_ns = resident_ns;
  }
  return results;
}

}  // namespace ferry::engine
