/// @file
/// Routed experts as bytes: the tier below the device.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/model_config.hpp"
#include "ferry/slot_memory.hpp"
#include "math/expert.hpp"
#include "store/block_file.hpp"
#include "store/expert_numbers.hpp"

namespace ferry::engine {

/// How weights become codes.
enum class Quantizer { nearest, hqq };

/// Reads single experts as a checkpoint has them.
class ExpertReader {
 public:
  /// Throws InputError for a missing or misshapen tensor, of any expert. The checkpoint outlives the reader.
  ExpertReader(const Checkpoint& checkpoint, const ModelConfig& config);

  /// Of the first layer.
  [[nodiscard]] const ExpertLayout& layout() const { return layouts_[0]; }
  /// One for all layers, or where they differ one a layer.
  [[nodiscard]] const std::vector<ExpertLayout>& layouts() const { return layouts_; }
  [[nodiscard]] const ExpertLayout& layout(std::uint16_t layer) const {
    return layouts_[layouts_.size() == 1 ? 0 : layer];
  }
  /// Writes `layout(id.layer).bytes()`. Throws InputError, naming file and tensor, if the file cannot be read.
  void read(ExpertId id, std::byte* to) const;
  /// The bytes in the file that a matrix (gate, up or down) is made of, and those of its scales if it has some; where a tensor
  /// holds several matrices, those of others, too.
  [[nodiscard]] std::vector<std::span<const std::byte>> stored(ExpertId id, int part) const;
  /// What lies behind an expert's matrices: biases of gate, of up and of down, and its scale, as far as there are any. Throws as
  /// `read` does.
  [[nodiscard]] std::vector<float> behind(ExpertId id) const;

 private:
  /// A tensor of one expert, or the expert's share of one of all of them.
  struct Piece {
    std::string name;
    std::vector<std::uint64_t> shape;  ///< of the tensor
    std::uint64_t first = 0, bytes = 0;
  };
  [[nodiscard]] Piece piece(ExpertId id, int part) const;
  /// The same, with its place in the tensor.
  [[nodiscard]] Piece placed(ExpertId id, int part) const;
  void read(const Piece& piece, std::byte* to) const;
  /// FP8 of all experts of a layer in one tensor, and scales in another.
  [[nodiscard]] bool scales_apart(std::uint16_t layer, int part) const {
    return storage_ == ExpertStorage::fused_rows && layout(layer).type(part) == DType::fp8;
  }
  void read_fp8(ExpertId id, int part, std::byte* to) const;
  /// Of a layer, from the types of its tensors, which all experts of it have in common.
  [[nodiscard]] ExpertLayout layout_of(std::uint16_t layer) const;
  [[nodiscard]] DType type_of(ExpertId id, int part) const;
  /// Of FP8 with all experts in one tensor. Throws InputError.
  void check_scales(const Tensor& experts, const Piece& p, int part) const;
  struct Bias {
    std::string name;
    std::uint64_t size;
  };
  [[nodiscard]] ExpertLayout sizes_of(std::uint16_t layer) const;
  /// The tensors [experts, size] of a layer: of gate and up in turn, and of down; or of all three.
  [[nodiscard]] std::vector<Bias> biases_of(std::uint16_t layer) const;
  /// Gate's, up's and down's, in turn.
  [[nodiscard]] std::vector<float> biases(ExpertId id) const;
  /// What a layer's experts' results are multiplied with, [experts].
  [[nodiscard]] const Tensor& scales_of(std::uint16_t layer) const;
  /// gpt-oss's MXFP4: blocks and their exponents apart, rows of gate and of up in turn.
  void read_mxfp4(ExpertId id, std::byte* to) const;
  /// Of tensors that have outputs as columns.
  void read_columns(ExpertId id, std::byte* to) const;

  const Checkpoint& checkpoint_;
  ModelConfig config_;
  ExpertStorage storage_;
  ExpertLayout sizes_;  ///< hidden and what is computed; of each layer also its width
  std::vector<ExpertLayout> layouts_;
};

/// Name of the tensor that has a matrix (gate, up or down) of an expert.
std::string expert_tensor_name(const ModelConfig& config, ExpertStorage storage, ExpertId id, int part);

/// Makes variants of experts as ExpertReader gives them.
struct ExpertPacker {
  std::vector<ExpertLayout> from;  ///< one for all layers, or one a layer
  ExpertLayout to;                 ///< of the first layer
  Quantizer quantizer = Quantizer::nearest;
  ModelConfig config;  ///< names the tensors in errors

  /// Of a layer: as wide as its experts are.
  [[nodiscard]] ExpertLayout to_of(std::uint32_t layer) const {
    ExpertLayout l = to;
    l.width = from[from.size() == 1 ? 0 : layer].width;
    return l;
  }
  /// Writes one matrix of the variant, and with `down` what is behind it: `expert` and `out` are where the whole expert begins
  /// in `from` and `to`. The same bytes each time. Throws InputError, naming the tensor, for a weight that the precision cannot
  /// hold.
  void pack(const std::byte* expert, Variant what, int part, std::byte* out) const;
  /// Whole variants of one expert, on up to `threads` threads.
  struct Made {
    Precision precision;
    std::byte* out;
  };
  void pack(const std::byte* expert, ExpertId id, const std::vector<Made>& made, std::uint32_t threads) const;
};

/// What reading from a disk came to.
struct StoreReads {
  std::string file;
  std::string how;                      ///< "io_uring, direct", "pread", ...
  std::uint64_t host_bytes = 0;         ///< largest size of the cache in host memory
  std::uint64_t reads = 0, bytes = 0;   ///< from the file
  std::uint64_t hits = 0, retries = 0;  ///< found in host memory; reads that had to be repeated
  bool rounded = false;                 ///< at full precision it has fewer bits than the model

  /// What came after an earlier state.
  [[nodiscard]] StoreReads since(const StoreReads& earlier) const {
    StoreReads r = *this;
    r.reads -= earlier.reads;
    r.bytes -= earlier.bytes;
    r.hits -= earlier.hits;
    r.retries -= earlier.retries;
    return r;
  }
};

/// Every routed expert of a model, one contiguous block each and precision: the tier below the device.
class ExpertStore {
 public:
  ExpertStore() = default;
  virtual ~ExpertStore() = default;
  ExpertStore(const ExpertStore&) = delete;
  ExpertStore& operator=(const ExpertStore&) = delete;

  /// Of the first layer's experts.
  [[nodiscard]] virtual const ExpertLayout& layout() const = 0;
  /// One for all layers, or where they differ one a layer.
  [[nodiscard]] virtual std::vector<ExpertLayout> layouts() const { return {layout()}; }
  /// Bit `1 << p` for every Precision p that it has its experts at: those that it was made with, and added ones.
  [[nodiscard]] virtual std::uint8_t precisions() const = 0;
  /// Has every expert at `p` as well, from now on; not while others read. `skip`, which has no bytes, changes nothing.
  /// Throws InputError if that cannot be, and then changes nothing.
  virtual void add(Precision p) = 0;
  /// One expert; empty at a precision that is not there. Any number of threads. Throws InputError if it cannot be read.
  [[nodiscard]] virtual HeldBytes bytes(Variant v) const = 0;
  /// All memory that `bytes` gives out, if that stays where it is until the next `add`; otherwise nothing.
  [[nodiscard]] virtual std::vector<std::pair<const std::byte*, std::size_t>> fixed_memory() const { return {}; }
  /// How fast it is where this tier has to read from a disk first; 0: all of it is in memory.
  [[nodiscard]] virtual double read_bytes_per_s() const { return 0; }
  /// What was read from a disk; `StoreReads::file` is empty where there is none.
  [[nodiscard]] virtual StoreReads reads() const { return {}; }
};

/// How experts come from a checkpoint to host memory.
struct LoadOptions {
  Quantizer quantizer = Quantizer::nearest;
  PrecisionSet precisions = Precision::full;  ///< nothing else is held
  /// How many of the `all` bytes of experts host memory holds at once, beside `others` of other weights; without this function
  /// all of them.
  std::function<std::uint64_t(std::uint64_t all, std::uint64_t others)> host_bytes = {};
  /// In experts, `all` of them last; false before that: stop, with what is not there yet left undefined.
  std::function<bool(std::uint64_t done, std::uint64_t all)> progress = {};
};

/// All of it in host memory, copied and made out of a checkpoint.
class MemoryStore final : public ExpertStore {
 public:
  /// Holds one expert more while it loads. Throws InputError for a missing or misshapen tensor, or a weight that a
  /// precision cannot hold.
  MemoryStore(const Checkpoint& checkpoint, const ModelConfig& config, const LoadOptions& options = {});

  [[nodiscard]] const ExpertLayout& layout() const override { return packer_.from[0]; }
  [[nodiscard]] std::vector<ExpertLayout> layouts() const override { return packer_.from; }
  [[nodiscard]] std::uint8_t precisions() const override;
  /// What it was not loaded at is made of `full`, which has to be there.
  void add(Precision p) override;
  [[nodiscard]] HeldBytes bytes(Variant v) const override;
  [[nodiscard]] std::vector<std::pair<const std::byte*, std::size_t>> fixed_memory() const override {
    std::vector<std::pair<const std::byte*, std::size_t>> all;
    for (const BlockMemory& b : bytes_) {
      if (b.size() > 0) all.emplace_back(b.data(), b.size());
    }
    return all;
  }

 private:
  [[nodiscard]] const ExpertLayout& layout(std::uint32_t layer) const {
    return packer_.from[packer_.from.size() == 1 ? 0 : layer];
  }
  /// The byte at which a layer's experts begin; for the layer behind the last, the bytes of all experts.
  [[nodiscard]] std::uint64_t layer_at(std::uint32_t layer, Precision p) const;
  /// The byte at which an expert begins.
  [[nodiscard]] std::uint64_t place(ExpertId id, Precision p) const {
    if (packer_.from.size() == 1) return numbers_.number(id) * layout(0).bytes(p);
    return layer_at(id.layer, p) + id.expert * layout(id.layer).bytes(p);
  }

  ExpertPacker packer_;
  ExpertNumbers numbers_;
  std::array<BlockMemory, precision_count> bytes_;  // by Precision
};

}  // namespace ferry::engine
