/// @file
/// Traces as safetensors files, and other people's routing made into them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors.hpp"
#include "ferry/sim/costs.hpp"
#include "ferry/trace/trace.hpp"
#include "profiles/shape.hpp"
#include "support/output_file.hpp"

namespace ferry::engine {

/// What a trace replaces.
inline constexpr FileKind trace_kind = {"a trace of ferry", "", "\"ferry-trace "};

/// A trace and the memory that it views: a file, or arrays of its own.
///
/// The file has the tensors `experts` (U8 or U16), `weights`, `scores`, `predicted`, `partial` and what experts were chosen by
/// in each of the last three, `choice_scores`, `choice_predicted`, `choice_partial` (F32), `phase` (U8) and `sequence_start`
/// (I32) in the shapes that ferry::Trace gives, and `token_ids` (I32, [tokens]). All but `experts` and `sequence_start` may be
/// missing. `__metadata__` has "format": "ferry-trace 2", "xxh3": a checksum of the whole file, and what the model is.
/// "ferry-trace 1", which others may write, has no checksum.
class TraceFile {
 public:
  /// How much of this machine's memory copies of files take at most, for all traces of a process together.
  static std::uint64_t memory_for_copies();

  /// Copies a file into memory, or, where `memory` does not hold it beside other copies, all but its floats, which stay
  /// mapped. Throws InputError, naming tensor, place and reason, for anything else than an undamaged trace.
  explicit TraceFile(const std::filesystem::path& path, std::uint64_t memory = memory_for_copies());
  TraceFile() = default;
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  Trace trace;                    ///< views the rest
  std::vector<LayerWork> work;    ///< of the model, for Costs
  std::string source, residency;  ///< where the routing is from; the stack and budget behind `partial`

  // What `trace` views if it was made here, to be filled by push_back; see `view`.
  std::vector<std::uint16_t> experts;
  std::vector<float> weights, scores, predicted, partial, choice_scores, choice_predicted, choice_partial;
  std::vector<std::uint8_t> phase;
  std::vector<std::uint32_t> sequence_start, token_ids;

  /// Makes `trace` view the vectors, and validates it.
  void view();
  /// Throws InputError if what is mapped has changed since it was opened, so that what was made of it may be wrong.
  void check_unchanged() const;
  /// XXH3 of the whole file.
  [[nodiscard]] std::uint64_t content_checksum() const;
  /// Writes the file, whole or not at all. Throws InputError.
  void write(const std::filesystem::path& path) const;
  /// The same into a file that was opened before the work began.
  void write(OutputFile& out) const;

 private:
  std::unique_ptr<Safetensors> file_;
  std::vector<std::uint8_t> narrow_experts_;  ///< what `trace` views of a mapped file
  std::uint64_t copied_bytes_ = 0;
};

/// Reads routing that others recorded: a `.csv` route trace of BigMoeOnEdge (comment lines, then turn, phase, step,
/// layer, slot, expert, weight, ...), which has the bytes of each layer's experts; or safetensors with `experts`
/// [tokens, layers, k] U8 best first, `sequence_start` I32 and, if known, `weights` F16 or F32 and `phase` U8. `shape`:
/// the model, for what the file does not say; its layers and experts must be the file's. Throws InputError.
std::unique_ptr<TraceFile> import_trace(const std::filesystem::path& path, const ModelFacts& shape);

}  // namespace ferry::engine
