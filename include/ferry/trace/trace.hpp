/// @file
/// Recorded routing: what a model's gates chose and predicted, token by token.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ferry/allotment.hpp"
#include "ferry/error.hpp"

namespace ferry::inline FERRY_ABI {

/// Views into memory that belongs to somebody else: a mapped file, or arrays of an engine's own. Rows are tokens, those
/// of one sequence after each other, prompt first. Host memory, not for device code.
///
/// What a trace may leave out is an empty span. Arrays are row-major, in the shapes given.
struct Trace {
  std::string name;          ///< the model's
  ModelShape model;          ///< max_rows is not used
  std::uint32_t tokens = 0;  ///< of all sequences

  std::span<const std::uint32_t> sequence_start;  ///< first token of each sequence, ascending from 0
  std::span<const std::uint8_t> phase;            ///< [tokens] Phase; empty: all decode
  /// [tokens, layers, top_k] chosen experts, best first, in one of these two arrays; the largest value: not recorded, or in a
  /// place beyond the top_k of a layer with a smaller one.
  std::span<const std::uint8_t> experts8;
  std::span<const std::uint16_t> experts16;  ///< the other of the two
  std::span<const float> weights;            ///< [tokens, layers, top_k] that scale their outputs
  std::span<const float> scores;             ///< [tokens, layers, experts] of all experts
  std::uint16_t ahead = 0;                   ///< how many layers ahead `predicted` reaches, up to 4
  std::span<const float> predicted;          ///< [tokens, layers, ahead, experts]: layer l + 1 + j from l's gate input
  std::span<const float> partial;            ///< [tokens, layers, experts]: layer l + 1 from l's partial hidden state
  /// In the shapes of `scores`, `predicted` and `partial`, beside them: what experts are chosen by, where that is not what
  /// weighs them, as in gates with a bias for the choice or with groups.
  std::span<const float> choice_scores, choice_predicted, choice_partial;

  /// How many there are.
  [[nodiscard]] std::uint32_t sequences() const { return static_cast<std::uint32_t>(sequence_start.size()); }
  /// One past the last token of a sequence.
  [[nodiscard]] std::uint32_t sequence_end(std::uint32_t sequence) const {
    return sequence + 1 < sequences() ? sequence_start[sequence + 1] : tokens;
  }
  /// Prompt or decode.
  [[nodiscard]] Phase phase_of(std::uint32_t token) const {
    return phase.empty() ? Phase::decode : static_cast<Phase>(phase[token]);
  }
  /// The one that a row chose as its rank-th best; `no_expert`: not recorded.
  [[nodiscard]] std::uint16_t expert(std::uint32_t token, std::uint32_t layer, std::uint32_t rank) const {
    const std::size_t at = (std::size_t{token} * model.layers + layer) * model.top_k + rank;
    if (!experts16.empty()) return experts16[at];
    return experts8[at] == 0xff ? no_expert : experts8[at];
  }
  /// What that one's output is multiplied by; without recorded weights all are alike.
  [[nodiscard]] float weight(std::uint32_t token, std::uint32_t layer, std::uint32_t rank) const {
    return weights.empty() ? 1.0F / static_cast<float>(model.top_k_of(layer))
                           : weights[(std::size_t{token} * model.layers + layer) * model.top_k + rank];
  }
  /// The gate's scores of all experts, [experts].
  [[nodiscard]] const float* scores_of(std::uint32_t token, std::uint32_t layer) const {
    return scores.data() + row(token, layer);
  }
  /// Scores of layer `layer + 1` from the partial hidden state of this one, [experts].
  [[nodiscard]] const float* partial_of(std::uint32_t token, std::uint32_t layer) const {
    return partial.data() + row(token, layer);
  }
  /// Scores of layer `layer + distance`, 1 <= distance <= ahead.
  [[nodiscard]] const float* predicted_of(std::uint32_t token, std::uint32_t layer, std::uint32_t distance) const {
    return predicted.data() + row(token, layer, distance);
  }
  /// What experts are chosen by, which in most models is what weighs them.
  [[nodiscard]] const float* choice_scores_of(std::uint32_t token, std::uint32_t layer) const {
    return choice_scores.empty() ? scores_of(token, layer) : choice_scores.data() + row(token, layer);
  }
  /// What experts of layer `layer + 1` are chosen by, from the partial hidden state of this one.
  [[nodiscard]] const float* choice_partial_of(std::uint32_t token, std::uint32_t layer) const {
    return choice_partial.empty() ? partial_of(token, layer) : choice_partial.data() + row(token, layer);
  }
  /// What experts of layer `layer + distance` are chosen by.
  [[nodiscard]] const float* choice_predicted_of(std::uint32_t token, std::uint32_t layer,
                                                 std::uint32_t distance) const {
    return choice_predicted.empty() ? predicted_of(token, layer, distance)
                                    : choice_predicted.data() + row(token, layer, distance);
  }

  /// Throws ConfigError, naming the place, for anything that a replay could stumble over: sizes that do not fit
  /// together, sequences that do not ascend, decode before prefill, experts that do not exist or stand twice, or that
  /// are missing (only a whole row of a prompt may be). O(tokens * layers * top_k).
  void validate() const;
  /// Of that, the sizes and where sequences begin. O(sequences).
  void validate_sizes() const;

 private:
  [[nodiscard]] std::size_t row(std::uint32_t token, std::uint32_t layer) const {
    return (std::size_t{token} * model.layers + layer) * model.experts;
  }
  [[nodiscard]] std::size_t row(std::uint32_t token, std::uint32_t layer, std::uint32_t distance) const {
    return ((std::size_t{token} * model.layers + layer) * ahead + distance - 1) * model.experts;
  }
};

inline void Trace::validate_sizes() const {
  auto refuse = [](const std::string& what) { detail::fail<ConfigError>("trace: " + what); };
  auto text = [](auto number) { return std::to_string(number); };
  ModelShape shape = model;
  shape.max_rows = 1;
  shape.validate();
  if (tokens == 0) refuse("no tokens are recorded");
  const std::size_t cells = std::size_t{tokens} * model.layers;
  auto need = [&](const char* what, std::size_t size, std::size_t expected, bool optional) {
    if (size == expected || (optional && size == 0)) return;
    refuse(std::string(what) + " has " + text(size) + " elements, expected " + text(expected));
  };
  if (!experts8.empty() && !experts16.empty()) refuse("experts are both U8 and U16, expected one of the two");
  need("experts", experts8.size() + experts16.size(), cells * model.top_k, false);
  if (experts16.empty() && model.experts > 255) refuse("experts are U8, but the model has " + text(model.experts));
  need("weights", weights.size(), cells * model.top_k, true);
  need("scores", scores.size(), cells * model.experts, true);
  need("predicted", predicted.size(), cells * ahead * model.experts, false);
  need("partial", partial.size(), cells * model.experts, true);
  need("choice_scores", choice_scores.size(), scores.size(), true);
  need("choice_predicted", choice_predicted.size(), predicted.size(), true);
  need("choice_partial", choice_partial.size(), partial.size(), true);
  need("phase", phase.size(), tokens, true);
  if (ahead > 4) refuse("predicted looks " + text(ahead) + " layers ahead, expected at most 4");
  if (sequences() == 0 || sequence_start[0] != 0) refuse("sequence_start must begin with token 0");
  for (std::uint32_t s = 1; s < sequences(); ++s) {
    if (sequence_start[s] > sequence_start[s - 1] && sequence_start[s] < tokens) continue;
    refuse("sequence_start[" + text(s) + "] is " + text(sequence_start[s]) + " after " + text(sequence_start[s - 1]) +
           ": expected ascending tokens below " + text(tokens));
  }
}

inline void Trace::validate() const {
  validate_sizes();
  auto refuse = [](const std::string& what) { detail::fail<ConfigError>("trace: " + what); };
  auto text = [](auto number) { return std::to_string(number); };
  for (std::uint32_t s = 0; s < sequences() && !phase.empty(); ++s) {
    for (std::uint32_t t = sequence_start[s]; t < sequence_end(s); ++t) {
      if (phase[t] > 1) refuse("phase of token " + text(t) + " is " + text(unsigned{phase[t]}) + ", expected 0 or 1");
      if (t > sequence_start[s] && phase[t] < phase[t - 1]) refuse("prefill after decode at token " + text(t));
    }
  }
  std::vector<std::uint64_t> seen(model.experts, ~std::uint64_t{0});  // in which row an expert stood last
  for (std::uint32_t t = 0; t < tokens; ++t) {
    for (std::uint32_t l = 0; l < model.layers; ++l) {
      const std::uint64_t row = std::uint64_t{t} * model.layers + l;
      const std::uint32_t k = model.top_k_of(l), all = model.experts_of(l);
      std::uint32_t missing = 0;
      for (std::uint32_t i = 0; i < model.top_k; ++i) {
        const std::uint16_t e = expert(t, l, i);
        const auto where = [&] { return "token " + text(t) + ", layer " + text(l) + ": "; };
        missing += e == no_expert && i < k ? 1 : 0;
        if (e == no_expert) continue;
        if (i >= k) refuse(where() + "more than its " + text(k) + " experts");
        if (e >= all) refuse(where() + "expert " + text(e) + " of " + text(all));
        if (std::exchange(seen[e], row) == row) refuse(where() + "expert " + text(e) + " stands twice");
      }
      if (missing == 0 || (missing == k && phase_of(t) == Phase::prefill)) continue;
      refuse("token " + text(t) + ", layer " + text(l) + ": " + text(missing) + " of " + text(k) +
             " experts are missing");
    }
  }
}

/// The forward passes that an engine makes of a trace: sequences in groups of `batch`; of each group first the prompts,
/// one after the other in chunks, then one token of every sequence a step until the last has ended.
class TraceSteps {
 public:
  /// In groups of `batch` sequences, prompts in chunks of `prefill_chunk` tokens. The trace outlives it.
  TraceSteps(const Trace& trace, std::uint32_t batch, std::uint32_t prefill_chunk)
      : trace_(trace), batch_(batch), chunk_(prefill_chunk), at_(batch), end_(batch) {
    if (batch == 0 || prefill_chunk == 0)
      detail::fail<ConfigError>("a replay needs a batch and a prefill chunk of 1 or more");
  }

  /// Moves on to the next step; false at the end.
  bool next() {
    tokens_.clear();
    slots_.clear();
    ended_ = 0;
    for (;;) {
      for (std::uint32_t i = 0; i < members_; ++i) {  // prompts
        while (at_[i] < end_[i] && tokens_.size() < chunk_ && trace_.phase_of(at_[i]) == Phase::prefill) push(i);
        if (tokens_.empty()) continue;
        phase_ = Phase::prefill;
        return true;
      }
      for (std::uint32_t i = 0; i < members_; ++i) {
        if (at_[i] < end_[i]) push(i);
      }
      phase_ = Phase::decode;
      if (!tokens_.empty()) return true;
      ended_ = members_;
      if (first_ >= trace_.sequences()) return false;
      members_ = std::min(batch_, trace_.sequences() - first_);
      for (std::uint32_t i = 0; i < members_; ++i, ++first_) {
        at_[i] = trace_.sequence_start[first_];
        end_[i] = trace_.sequence_end(first_);
      }
      ++groups_;
    }
  }

  /// Of the step.
  [[nodiscard]] Phase phase() const { return phase_; }
  /// The tokens of the step, one a row.
  [[nodiscard]] View<const std::uint32_t> tokens() const { return view(tokens_); }
  /// Of each row, the place of its sequence in the group.
  [[nodiscard]] View<const std::uint32_t> sequences() const { return view(slots_); }
  /// How many sequences ended just before this step: none, or the whole group before.
  [[nodiscard]] std::uint32_t ended() const { return ended_; }
  /// How many groups of sequences have begun.
  [[nodiscard]] std::uint32_t groups() const { return groups_; }
  /// Whether the group has tokens of a prompt whose steps are yet to come. O(batch).
  [[nodiscard]] bool has_prompts() const {
    for (std::uint32_t i = 0; i < members_; ++i) {
      if (at_[i] < end_[i] && trace_.phase_of(at_[i]) == Phase::prefill) return true;
    }
    return false;
  }

 private:
  static View<const std::uint32_t> view(const std::vector<std::uint32_t>& v) {
    return {v.data(), static_cast<std::uint32_t>(v.size())};
  }
  void push(std::uint32_t member) {
    tokens_.push_back(at_[member]++);
    slots_.push_back(member);
  }

  const Trace& trace_;
  std::uint32_t batch_, chunk_, members_ = 0, first_ = 0, ended_ = 0, groups_ = 0;
  std::vector<std::uint32_t> at_, end_;  ///< of each member of the group: its next token, and one past its last
  std::vector<std::uint32_t> tokens_, slots_;
  Phase phase_ = Phase::decode;
};

}  // namespace ferry::inline FERRY_ABI
