#include "text/sentence_piece.hpp"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "support/errors.hpp"
#include "support/text_file.hpp"
#include "support/utf8.hpp"
#include "text/sentence_piece_file.hpp"

namespace ferry::engine {
namespace {

/// Protocol buffers' wire format, as much as the library's own model file needs.
class Wire {
 public:
  void number(std::uint32_t field, std::uint64_t value) {
    put(field << 3U);
    put(value);
  }
  void fixed(std::uint32_t field, float value) {
    put(field << 3U | 5U);
    const auto bits = std::bit_cast<std::uint32_t>(value);
    for (unsigned i = 0; i < 4; ++i) bytes_ += static_cast<char>(bits >> 8 * i & 0xffU);
  }
  void text(std::uint32_t field, std::string_view value) {
    put(field << 3U | 2U);
    put(value.size());
    bytes_ += value;
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  void put(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7U) bytes_ += static_cast<char>((value & 0x7fU) | 0x80U);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& model, const std::string& where, const SentencePieceOptions& options,
                         std::string kind)
      : kind_(std::move(kind)), where_(where), before_(options.before), behind_(options.behind) {
    check_sentence_piece(model, where);
    const auto status = library_.LoadFromSerializedProto(model);
    if (!status.ok()) throw InputError(fmt::format("{}: not a SentencePiece model: {}", where, status.ToString()));
    size_ = static_cast<std::uint32_t>(library_.GetPieceSize());
    for (std::uint32_t id = 0; id < size_; ++id) {
      const int piece = static_cast<int>(id);
      if (library_.IsControl(piece)) add({library_.IdToPiece(piece), "", id, true});
    }
    for (const AddedToken& t : options.added) add(t);
    if (options.begins && before_.empty() && library_.bos_id() >= 0) {
      before_.push_back(static_cast<std::uint32_t>(library_.bos_id()));
    }
    if (options.ends && behind_.empty() && library_.eos_id() >= 0) {
      behind_.push_back(static_cast<std::uint32_t>(library_.eos_id()));
    }
    // The library does not tell whether it puts a blank in front of texts, but encoding one shows it.
    std::vector<std::string> pieces;
    if (library_.Encode("a", &pieces).ok() && !pieces.empty()) blank_before_ = pieces[0].starts_with(blank);
  }

  [[nodiscard]] std::string kind() const override { return kind_; }
  [[nodiscard]] std::uint32_t size() const override { return size_; }
  [[nodiscard]] std::vector<std::uint32_t> begin() const override { return before_; }
  [[nodiscard]] bool begins_with_blank() const override { return blank_before_; }
  [[nodiscard]] bool is_special(std::uint32_t token) const override {
    const AddedToken* t = added_.find(token);
    return t != nullptr && t->special;
  }
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view token) const override {
    if (const AddedToken* t = added_.find(token)) return t->id;
    const int id = library_.PieceToId(token);
    if (library_.IdToPiece(id) != token) return std::nullopt;
    return static_cast<std::uint32_t>(id);
  }

  [[nodiscard]] std::vector<std::uint32_t> encode(std::string_view given, bool whole, bool names) const override {
    const std::string text = valid_utf8(given);
    std::vector<std::uint32_t> out;
    if (whole) out = before_;
    for (const AddedTokens::Part& part :
         added_.split(text, [names](const AddedToken& t) { return names || !t.special; })) {
      if (part.token) {
        out.push_back(*part.token);
        continue;
      }
      std::vector<int> ids;
      const auto status = library_.Encode(part.text, &ids);
      if (!status.ok()) throw InputError(fmt::format("{}: a text cannot be split: {}", where_, status.ToString()));
      for (const int id : ids) out.push_back(static_cast<std::uint32_t>(id));
    }
    if (whole) out.insert(out.end(), behind_.begin(), behind_.end());
    return out;
  }

  [[nodiscard]] std::string decode(std::span<const std::uint32_t> tokens, bool special) const override {
    std::string out;
    std::vector<int> run;
    const auto end_run = [&] {
      std::string text;
      if (!run.empty() && library_.Decode(run, &text).ok()) out += text;
      run.clear();
    };
    for (const std::uint32_t token : tokens) {
      const AddedToken* t = added_.find(token);
      if (t == nullptr && token < size_) run.push_back(static_cast<int>(token));
      if (t == nullptr || (t->special && !special)) continue;
      end_run();
      out += t->text;
    }
    end_run();
    return out;
  }

  [[nodiscard]] std::string bytes(std::uint32_t token) const override {
    if (const AddedToken* t = added_.find(token)) return t->text;
    if (token >= size_) return "";
    const int id = static_cast<int>(token);
    const std::string& piece = library_.IdToPiece(id);
    if (library_.IsByte(id)) return {static_cast<char>(std::stoul(piece.substr(3, 2), nullptr, 16))};
    if (library_.IsUnknown(id)) return " \xe2\x81\x87 ";  // as the library shows it
    std::string out;
    for (std::size_t at = 0; at < piece.size();) {
      const bool is_blank = piece.compare(at, blank.size(), blank) == 0;
      out += is_blank ? ' ' : piece[at];
      at += is_blank ? blank.size() : 1;
    }
    return out;
  }

 private:
  static constexpr std::string_view blank = "\xe2\x96\x81";

  void add(const AddedToken& t) {
    added_.add(t);
    size_ = std::max(size_, t.id + 1);
  }

  std::string kind_, where_;
  sentencepiece::SentencePieceProcessor library_;
  AddedTokens added_;
  std::vector<std::uint32_t> before_, behind_;
  std::uint32_t size_ = 0;
  bool blank_before_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> read_sentence_piece(const std::filesystem::path& path, const SentencePieceOptions& options) {
  return std::make_unique<SentencePieceTokenizer>(read_whole(path), path.string(), options,
                                                  "tokenizer.model, SentencePiece");
}

std::unique_ptr<Tokenizer> sentence_piece_of(const PieceTable& pieces, const std::string& where,
                                             const SentencePieceOptions& options) {
  // The fields and their numbers are those of sentencepiece_model.proto.
  Wire model;
  const auto first = std::find(pieces.types.begin(), pieces.types.end(), 2U);
  const auto unknown = pieces.unknown.value_or(static_cast<std::uint32_t>(first - pieces.types.begin()));
  if (unknown >= pieces.texts.size()) {
    throw InputError(where + ": its vocabulary has no unknown token, which SentencePiece needs");
  }
  bool bytes = false;
  for (std::size_t i = 0; i < pieces.texts.size(); ++i) {
    // The library allows one unknown token, but files pad their vocabularies with more: these become unused.
    const std::uint32_t said = i < pieces.types.size() ? pieces.types[i] : 1, type = i == unknown ? 2
                                                                                     : said == 2  ? 5
                                                                                                  : said;
    Wire piece;
    piece.text(1, pieces.texts[i]);
    piece.fixed(2, i < pieces.scores.size() ? static_cast<float>(pieces.scores[i]) : 0.0F);
    piece.number(3, type);
    model.text(1, piece.bytes());
    bytes = bytes || type == 6;
  }
  Wire trainer, normalizer;
  trainer.number(3, 2);  // byte pairs
  trainer.number(35, bytes ? 1 : 0);
  trainer.number(40, unknown);
  model.text(2, trainer.bytes());
  normalizer.text(1, "identity");
  normalizer.number(3, pieces.blank_before ? 1 : 0);
  normalizer.number(4, 0);  // several blanks stay several
  normalizer.number(5, 1);
  model.text(3, normalizer.bytes());
  return std::make_unique<SentencePieceTokenizer>(model.bytes(), where, options, "GGUF, SentencePiece");
}

}  // namespace ferry::engine
