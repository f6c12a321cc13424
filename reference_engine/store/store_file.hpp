/// @file
/// The expert store: one file with every routed expert of a model, at several precisions, as docs/store.md has it.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "store/block_file.hpp"
#include "store/expert_store.hpp"
#include "support/checksum.hpp"
#include "support/json.hpp"

namespace ferry::engine {

/// What a store says of itself, and where its blocks lie.
struct StoreFacts {
  static constexpr std::uint64_t most_experts = 1U << 20U;  ///< in all

  std::string model;                  ///< name of the folder that it was made from
  ExpertNumbers numbers;              ///< how many experts layers have
  ExpertLayout layout;                ///< of the first layer
  std::vector<std::uint32_t> widths;  ///< of each layer's experts, where they differ
  std::uint8_t precisions = 0;        ///< bit `1 << p` for every Precision p in the store
  Quantizer quantizer = Quantizer::nearest;
  bool rounded = false;            ///< full precision has fewer bits than the model's own
  std::string weights;             ///< whose experts these are: weights_checksum
  Json source;                     ///< the files that it was made from, for people and for going on with a pack
  std::uint64_t header_bytes = 0;  ///< of the JSON text in the file

  [[nodiscard]] bool has(Precision p) const { return (precisions >> static_cast<unsigned>(p) & 1U) != 0; }
  /// How many experts the layer with the most has.
  [[nodiscard]] std::uint32_t most_of_layer() const;
  [[nodiscard]] ExpertLayout layout_of(std::uint32_t layer) const {
    ExpertLayout l = layout;
    if (!widths.empty()) l.width = widths[layer];
    return l;
  }
  /// One for all layers, or where they differ one a layer.
  [[nodiscard]] std::vector<ExpertLayout> layouts() const;
  /// Of the largest experts.
  [[nodiscard]] std::uint64_t most_bytes(Precision p) const;
  /// The precisions, the lowest first: the order of the blocks in the file.
  [[nodiscard]] std::vector<Precision> stored() const;
  /// The number of a variant's block; how many blocks and checksums there are; a block's byte in the file; the file's size.
  [[nodiscard]] std::uint64_t block(Variant v) const;
  [[nodiscard]] std::uint64_t blocks() const;
  [[nodiscard]] std::uint64_t sums() const { return blocks() + numbers.all(); }
  [[nodiscard]] std::uint64_t at(Variant v) const;
  [[nodiscard]] std::uint64_t file_bytes() const;
  /// Bytes at which the index, and the blocks, begin.
  [[nodiscard]] std::uint64_t index_at() const;
  [[nodiscard]] std::uint64_t blocks_at() const;

  [[nodiscard]] Json to_json() const;

 private:
  /// Bytes in the file of the first `count` experts at a precision.
  [[nodiscard]] std::uint64_t bytes_of_first(std::uint64_t count, Precision p) const;
};

/// "nearest" or "hqq". Throws InputError, which `where` begins.
Quantizer quantizer_of(const std::string& name, const std::string& where);

/// A checksum of the gate matrices, of the beginning of each of the experts' matrices, and of all biases and scales of experts:
/// tells models apart, and fine-tuned ones.
std::string weights_checksum(const Checkpoint& checkpoint, const ModelConfig& config);

/// Throws InputError if a store, which `name` names, was made from another model, as far as `weights` tells.
void check_same_model(const StoreFacts& facts, const std::string& name, const Checkpoint& checkpoint,
                      const ModelConfig& config, const std::filesystem::path& folder);

struct StoreIndex {
  StoreFacts facts;
  std::vector<std::uint64_t> checksums;  ///< [blocks]
  std::vector<std::uint64_t> sources;    ///< [experts]: of what each was made from, as ExpertReader reads it
};

/// Reads and checks all but the blocks. `name` begins the message of the InputError for a file that is not a store,
/// damaged, of another version, or longer or shorter than its header says.
StoreIndex read_store(BlockFile& file, const std::string& name);

/// Makes a store. What is written goes to `PATH.part`; a second writer of the same facts goes on where that ends.
class StoreWriter {
 public:
  /// Reserves the room. Throws InputError if there is not enough of it, PATH cannot be written, or another process is
  /// writing it. `progress(done, all)`, in experts, while what is there already is checked; false: stop, and `done()`
  /// is what was found good so far. What was made from other weights than those of which `source` gives the checksum now
  /// is not good.
  StoreWriter(const std::filesystem::path& path, const StoreFacts& facts,
              const std::function<std::uint64_t(ExpertId)>& source,
              const std::function<bool(std::uint64_t, std::uint64_t)>& progress);
  ~StoreWriter();
  StoreWriter(const StoreWriter&) = delete;
  StoreWriter& operator=(const StoreWriter&) = delete;

  /// Experts, in order of layer and index, that are there already.
  [[nodiscard]] std::uint64_t done() const { return done_; }
  /// `bytes`: all of the variant's, not filled up to whole blocks. Throws InputError if the disk refuses.
  void write(Variant what, const std::byte* bytes);
  /// The checksum of what an expert was made from, once all of it is written.
  void write_source(ExpertId id, std::uint64_t sum);
  /// All is written: the store appears at its path.
  void commit();
  /// Nothing can come of it: what is there so far goes.
  void discard();

 private:
  void reserve();
  [[nodiscard]] std::vector<std::uint64_t> index() const;
  void check(const std::function<std::uint64_t(ExpertId)>& source,
             const std::function<bool(std::uint64_t, std::uint64_t)>& progress);
  void get(std::uint64_t at, void* data, std::uint64_t bytes) const;
  void put(std::uint64_t at, const void* data, std::uint64_t bytes);
  [[noreturn]] void refuse(int error) const;

  std::filesystem::path path_, part_;
  StoreFacts facts_;
  std::string header_;
  int fd_ = -1;
  std::uint64_t done_ = 0;
};

}  // namespace ferry::engine
