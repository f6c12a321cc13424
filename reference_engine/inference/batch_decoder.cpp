#include "inference/batch_decoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "support/errors.hpp"

namespace ferry::engine {

const char* ended_name(Ended ended) {
  switch (ended) {
    case Ended::interrupted:
      return "interrupted";
    case Ended::max_new_tokens:
      return "max_new_tokens";
    case Ended::context:
      return "context";
    case Ended::stop_string:
      return "stop_string";
    default:
      return "end_token";
  }
}

struct BatchDecoder::Place {
  DecodeRequest request;
  Sampler sampler;
  AnswerStream shown;
  Decoded made;
  std::uint32_t position = 0;              ///< of the next token to run
  std::uint32_t furthest = 0;              ///< of those that earlier texts had run, which left their rest in the cache
  std::uint32_t next = 0;                  ///< that token, once the prompt is over
  std::uint32_t limit = 0, positions = 0;  ///< tokens to generate; positions that the cache has room for
  Ended at_limit = Ended::max_new_tokens;  ///< why the text ends at the limit
  bool over = false;
  bool torn = false;  ///< a step failed and may have written only some of its keys and values

  [[nodiscard]] bool has_prompt() const { return position < request.tokens.size(); }
};

BatchDecoder::BatchDecoder(Model& model, ExpertRunner& runner, const Options& options, Listener more)
    : model_(model), runner_(runner), options_(options), more_(std::move(more)), places_(options.places) {
  caches_.resize(options.places);
}

BatchDecoder::~BatchDecoder() {
  for (std::uint32_t i = 0; i < places_.size(); ++i) {
    if (places_[i] != nullptr) release(i);
  }
}

std::unique_ptr<BatchDecoder::Place> BatchDecoder::make_place(const DecodeRequest& request) const {
  const std::uint32_t context = model_.config().context;
  if (request.tokens.empty()) throw InputError("the prompt has no tokens, expected one at least");
  if (request.tokens.size() > context) {
    throw InputError(
        fmt::format("the prompt is {} tokens long, the model's context is {}", request.tokens.size(), context));
  }
  auto p = std::make_unique<Place>(
      Place{request, Sampler(request.sampling, request.tokens), AnswerStream(request.stops), {}});
  const std::uint32_t room = context - static_cast<std::uint32_t>(request.tokens.size()) + 1;
  p->limit = std::min(request.max_new_tokens, room);
  if (room < request.max_new_tokens) p->at_limit = Ended::context;
  p->over = p->limit == 0;
  // The last token that is made is not run.
  const std::uint32_t run = static_cast<std::uint32_t>(request.tokens.size()) + std::max(p->limit, 1U) - 1;
  p->positions = std::max(request.positions, run);
  return p;
}

std::uint32_t BatchDecoder::add(const DecodeRequest& request) {
  const auto free = std::find(places_.begin(), places_.end(), nullptr);
  if (free == places_.end()) throw InputError("no place is free for another text");
  const auto place = static_cast<std::uint32_t>(free - places_.begin());
  auto p = make_place(request);
  caches_[place] = model_.make_cache(p->positions, options_.prefill_chunk);
  places_[place] = std::move(p);
  return place;
}

std::uint32_t BatchDecoder::add_behind(std::uint32_t place, const DecodeRequest& request) {
  const std::unique_ptr<Place> before = std::move(places_[place]);
  std::vector<std::uint32_t> run = before->request.tokens;  // tokens whose keys and values the cache has
  run.insert(run.end(), before->made.tokens.begin(), before->made.tokens.end());
  run.resize(before->torn ? 0 : std::min<std::size_t>(run.size(), before->position));
  std::unique_ptr<Place> p;
  bool begins_anew = false;
  try {
    p = make_place(request);
    begins_anew = p->positions > before->positions;
    if (begins_anew) {
      caches_[place] = KvCache();  // freed first: both may not fit, and it is not reused
      caches_[place] = model_.make_cache(p->positions, options_.prefill_chunk);
    }
  } catch (...) {
    caches_[place] = KvCache();
    runner_.end_sequence(place);
    throw;
  }
  std::size_t kept = 0;
  while (kept < run.size() && kept + 1 < request.tokens.size() && run[kept] == request.tokens[kept]) ++kept;
  // A layer that remembers one matrix for all tokens cannot go back to an earlier token.
  const auto& layers = model_.config().layer;
  const bool forgets = std::any_of(layers.begin(), layers.end(), [](const LayerConfig& l) { return l.linear; });
  if (forgets && kept < run.size()) kept = 0;
  const std::uint32_t furthest = std::max(before->furthest, before->position);
  if (begins_anew || !caches_[place].room.can_return(furthest, kept)) kept = 0;
  if (!begins_anew) p->positions = before->positions;
  if (kept == 0) runner_.end_sequence(place);
  p->position = static_cast<std::uint32_t>(kept);
  p->furthest = kept == 0 ? 0 : furthest;
  places_[place] = std::move(p);
  return static_cast<std::uint32_t>(kept);
}

bool BatchDecoder::has_room() const {
  return std::find(places_.begin(), places_.end(), nullptr) != places_.end();
}

bool BatchDecoder::prefilling() const {
  return std::any_of(places_.begin(), places_.end(), [](const auto& p) { return p && !p->over && p->has_prompt(); });
}

bool BatchDecoder::decoding() const {
  return std::any_of(places_.begin(), places_.end(), [](const auto& p) { return p && !p->over && !p->has_prompt(); });
}

BatchDecoder::Step BatchDecoder::step() {
  const bool prompts = prefilling(), texts = decoding();
  if (!prompts && !texts) return {};
  const bool decodes = texts && (!prompts || (options_.in_turn && decode_next_));
  decode_next_ = !decodes;
  if (decodes) return decode();
  if (!options_.in_turn) turn_ = 0;
  for (std::uint32_t i = 0; i < places_.size(); ++i) {
    const std::uint32_t place = (turn_ + i) % static_cast<std::uint32_t>(places_.size());
    const Place* p = places_[place].get();
    if (p == nullptr || p->over || !p->has_prompt()) continue;
    turn_ = place + 1;
    return prefill(place);
  }
  return {};
}

BatchDecoder::Step BatchDecoder::prefill(std::uint32_t place) {
  Place& p = *places_[place];
  std::vector<TokenRow> rows;
  while (rows.size() < options_.prefill_chunk && p.has_prompt()) {
    rows.push_back({place, p.request.tokens[p.position], p.position});
    ++p.position;
  }
  const Matrix logits = forward(Phase::prefill, rows, 1);
  if (!p.has_prompt()) accept(place, logits.row(0));
  return {Phase::prefill, static_cast<std::uint32_t>(rows.size())};
}

BatchDecoder::Step BatchDecoder::decode() {
  std::vector<TokenRow> rows;
  for (std::uint32_t i = 0; i < places_.size(); ++i) {
    Place* p = places_[i].get();
    if (p != nullptr && !p->over && !p->has_prompt()) rows.push_back({i, p->next, p->position++});
  }
  const Matrix logits = forward(Phase::decode, rows, static_cast<std::uint32_t>(rows.size()));
  for (std::size_t i = 0; i < rows.size(); ++i) accept(rows[i].sequence, logits.row(static_cast<Eigen::Index>(i)));
  return {Phase::decode, static_cast<std::uint32_t>(rows.size())};
}

Matrix BatchDecoder::forward(Phase phase, const std::vector<TokenRow>& rows, std::uint32_t logit_rows) {
  try {
    Matrix logits = model_.forward(phase, rows, caches_, runner_, logit_rows);
    if (!logits.allFinite()) {
      throw InputError("the model computes values that are not finite: its weights or config.json are damaged");
    }
    return logits;
  } catch (...) {
    for (const TokenRow& row : rows) places_[row.sequence]->over = places_[row.sequence]->torn = true;
    runner_.abandon();
    throw;
  }
}

void BatchDecoder::accept(std::uint32_t place, const LogitRow& logits) {
  Place& p = *places_[place];
  Decoded& made = p.made;
  made.last_logits.assign(logits.data(), logits.data() + logits.size());
  p.next = p.sampler(logits);
  made.tokens.push_back(p.next);
  if (p.request.keep_logits) made.logits.insert(made.logits.end(), logits.data(), logits.data() + logits.size());
  if (p.request.probabilities) {
    made.probabilities.push_back({p.next, log_probability(logits, p.next)});
    made.alternatives.push_back(likeliest(logits, p.request.alternatives));
  }
  std::string text;
  const bool end = model_.config().ends(p.next) && !p.request.ignore_end;
  if (const Tokenizer* t = model_.tokenizer(); t != nullptr && !end && !t->is_special(p.next)) {
    text = p.shown.push(t->bytes(p.next));
  }
  const std::size_t produced = made.tokens.size() - (end ? 1 : 0);
  if (end || p.shown.stopped() || produced == p.limit) {
    p.over = true;
    made.ended = end ? Ended::end_token : p.shown.stopped() ? Ended::stop_string : p.at_limit;
    text += p.shown.finish();
  }
  made.text += text;
  if (more_) more_(place, p.next, text);
}

bool BatchDecoder::is_over(std::uint32_t place) const {
  return places_[place]->over;
}
const Decoded& BatchDecoder::decoded(std::uint32_t place) const {
  return places_[place]->made;
}
std::uint32_t BatchDecoder::prefilled(std::uint32_t place) const {
  return std::min<std::uint32_t>(places_[place]->position,
                                 static_cast<std::uint32_t>(places_[place]->request.tokens.size()));
}

Decoded BatchDecoder::release(std::uint32_t place) {
  Decoded made = std::move(places_[place]->made);
  if (!places_[place]->over) made.text += places_[place]->shown.finish();
  places_[place].reset();
  caches_[place] = KvCache();
  runner_.end_sequence(place);
  return made;
}

std::uint64_t BatchDecoder::cache_bytes() const {
  std::uint64_t sum = 0;
  for (const KvCache& c : caches_) sum += c.bytes();
  return sum;
}

}  // namespace ferry::engine
