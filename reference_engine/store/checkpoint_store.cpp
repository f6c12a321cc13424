#include "store/checkpoint_store.hpp"

#include <utility>

#include "support/threads.hpp"

namespace ferry::engine {

CheckpointStore::CheckpointStore(std::shared_ptr<const Checkpoint> checkpoint, const ModelConfig& config,
                                 std::string name, Quantizer quantizer, std::uint64_t host_bytes)
    : CachedStore(host_bytes),
      checkpoint_(std::move(checkpoint)),
      reader_(*checkpoint_, config),
      packer_{reader_.layouts(), reader_.layout(), quantizer, config},
      numbers_(config.of_moe_layers(&LayerConfig::experts)),
      name_(std::move(name)) {}

void CheckpointStore::add(Precision p) {
  if (p != Precision::skip) set_precisions(static_cast<std::uint8_t>(precisions() | 1U << static_cast<unsigned>(p)));
}

void CheckpointStore::read(Variant v, BlockMemory& to) const {
  const std::uint64_t stored = reader_.layout(v.id.layer).bytes();
  if (v.precision == Precision::full) {
    reader_.read(v.id, to.data());
  } else {
    const BlockMemory full(stored);
    reader_.read(v.id, full.data());
    packer_.pack(full.data(), v.id, {{v.precision, to.data()}}, all_threads());
  }
  count_read(stored);
}

StoreReads CheckpointStore::source() const {
  StoreReads r;
  r.file = name_;
  r.how = "pread, cached";
  return r;
}

}  // namespace ferry::engine
