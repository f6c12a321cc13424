#include "store/expert_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "ferry/codec/hqq.hpp"
#include "ferry/codec/round_to_nearest.hpp"
#include "support/errors.hpp"
#include "support/threads.hpp"

namespace ferry::engine {
namespace {

/// Shape of one expert's matrix.
std::vector<std::uint64_t> shape_of(const ExpertLayout& l, int part) {
  return part == 2 ? std::vector<std::uint64_t>{l.hidden, l.width} : std::vector<std::uint64_t>{l.width, l.hidden};
}

/// Copies every `step`th column of [rows, columns] from `first` on, as [count, rows]. Elements have `each` bytes.
void transpose(const std::byte* from, std::uint64_t rows, std::uint64_t columns, std::uint64_t first,
               std::uint64_t step, std::uint64_t count, std::uint64_t each, std::byte* to) {
  for (std::uint64_t c = first; c < first + count * step; c += step) {
    for (std::uint64_t r = 0; r < rows; ++r, to += each) std::memcpy(to, from + (r * columns + c) * each, each);
  }
}

}  // namespace

std::string expert_tensor_name(const ModelConfig& c, ExpertStorage storage, ExpertId id, int part) {
  const std::uint32_t layer = c.moe_layers[id.layer];
  if (storage == ExpertStorage::fused_parts) {
    return c.tensor(layer, fmt::format("{}{}.weight", c.names.experts, c.names.parts[static_cast<std::size_t>(part)]));
  }
  if (storage != ExpertStorage::separate) return c.tensor(layer, c.names.fused[part == 2 ? 1 : 0]);
  return c.tensor(
      layer, fmt::format("{}{}.{}.weight", c.names.experts, id.expert, c.names.parts[static_cast<std::size_t>(part)]));
}

ExpertReader::ExpertReader(const Checkpoint& checkpoint, const ModelConfig& c)
    : checkpoint_(checkpoint), config_(c), storage_(c.storage), sizes_{c.hidden} {
  sizes_.biased = c.expert_bias;
  sizes_.scaled = !c.names.expert_scale.empty();
  sizes_.glu = c.glu;
  // Files of one family differ: newer ones may have one tensor for all experts of a layer, newer GGUF files one for gate and
  // up, old GGUF files one for each expert, and gpt-oss may have blocks.
  if (checkpoint.find(expert_tensor_name(c, storage_, {}, 0)) == nullptr) {
    if ((storage_ == ExpertStorage::separate || storage_ == ExpertStorage::fused_parts) &&
        checkpoint.find(expert_tensor_name(c, ExpertStorage::fused_rows, {}, 0)) != nullptr) {
      storage_ = ExpertStorage::fused_rows;
    } else if (storage_ == ExpertStorage::fused_parts &&
               checkpoint.find(expert_tensor_name(c, ExpertStorage::separate, {}, 0)) != nullptr) {
      storage_ = ExpertStorage::separate;
    } else if (storage_ == ExpertStorage::interleaved_columns &&
               checkpoint.find(expert_tensor_name(c, storage_, {}, 0) + "_blocks") != nullptr) {
      storage_ = ExpertStorage::interleaved_blocks;
    }
  }
  if (storage_ == ExpertStorage::fused_columns) {  // from the hub, or rows as transformers 5 writes them
    const Tensor* const both = checkpoint.tensor(expert_tensor_name(c, storage_, {}, 0));
    const Tensor* const down = checkpoint.tensor(expert_tensor_name(c, storage_, {}, 2));
    const std::uint64_t width = c.moe(0).expert_width, hidden = c.hidden;
    const auto is = [](const Tensor* t, std::uint64_t rows, std::uint64_t columns) {
      return t != nullptr && t->shape.size() == 3 && t->shape[1] == rows && t->shape[2] == columns;
    };
    if (is(both, 2 * width, hidden) && is(down, hidden, width)) storage_ = ExpertStorage::fused_rows;
  }
  for (std::uint32_t l = 0; l < c.moe_layer_count(); ++l) {
    layouts_.push_back(layout_of(static_cast<std::uint16_t>(l)));
    // Dimensions are at most 2^20, so that experts that pass here also have less than 4 GiB at low precision.
    if (layouts_[l].bytes() > 0xffffffffULL) {
      throw InputError(fmt::format("tensor \"{}\": experts of 4 GiB and more are not supported",
                                   piece({static_cast<std::uint16_t>(l), 0}, 0).name));
    }
  }
  const auto same = [&](const ExpertLayout& l) {
    if (l.width != layouts_[0].width) return false;
    for (int part = 0; part < 3; ++part) {
      if (l.type(part) != layouts_[0].type(part)) return false;
    }
    return true;
  };
  if (std::all_of(layouts_.begin(), layouts_.end(), same)) layouts_.resize(1);
}

ExpertLayout ExpertReader::sizes_of(std::uint16_t layer) const {
  ExpertLayout l = sizes_;
  l.width = config_.moe(layer).expert_width;
  return l;
}

DType ExpertReader::type_of(ExpertId id, int part) const {
  const Piece p = piece(id, part);
  if (storage_ == ExpertStorage::interleaved_blocks) {
    const Tensor& blocks = checkpoint_.raw(p.name, p.shape);
    const std::string exponents = expert_tensor_name(config_, storage_, id, part) + "_scales";
    const Tensor& scales = checkpoint_.raw(exponents, {p.shape[0], p.shape[1], p.shape[2]});
    for (const Tensor* t : {&blocks, &scales}) {
      if (t->dtype != DType::u8) {
        throw InputError(
            fmt::format("tensor \"{}\" is {}, expected U8", t == &blocks ? p.name : exponents, t->dtype_name));
      }
    }
    return DType::mxfp4;
  }
  const bool fused = storage_ != ExpertStorage::separate;
  const Tensor& t = checkpoint_.at(p.name, p.shape, fused && part < 2);
  const bool turned = storage_ == ExpertStorage::fused_columns || storage_ == ExpertStorage::interleaved_columns;
  const bool numbers = t.dtype == DType::bf16 || t.dtype == DType::f16 || t.dtype == DType::f32;
  const bool scaled = t.dtype == DType::f8_e4m3;
  if ((fused && scaled && storage_ != ExpertStorage::fused_rows) || (turned && !numbers)) {
    throw InputError(fmt::format("tensor \"{}\" is {}, which is not supported for all experts of a layer in one tensor",
                                 p.name, t.dtype_name));
  }
  if (fused && scaled) check_scales(t, p, part);
  return t.stored();
}

void ExpertReader::check_scales(const Tensor& t, const Piece& p, int part) const {
  if (config_.one_scale) {
    const std::uint64_t each = t.scales->elements() / p.shape[0];
    if (each == 1 || (each == 2 && part < 2)) return;  // one for gate and up together, or one for each
    throw InputError(fmt::format("tensor \"{}\" is [{}], expected one scale for each matrix by config.json",
                                 Checkpoint::scales_of(p.name), fmt::join(t.scales->shape, ", ")));
  }
  if (t.scales->shape != std::vector{p.shape[0], (p.shape[1] + 127) / 128, (p.shape[2] + 127) / 128}) {
    throw InputError(fmt::format("tensor \"{}\" is [{}], expected a scale for 128 rows and columns by config.json",
                                 Checkpoint::scales_of(p.name), fmt::join(t.scales->shape, ", ")));
  }
  if (part < 2 && p.shape[1] / 2 % 128 != 0) {
    throw InputError(
        fmt::format("tensor \"{}\" is {} and has {} rows for gate and up, expected a multiple of 256, so "
                    "that no scale is of both",
                    p.name, t.dtype_name, p.shape[1]));
  }
}

ExpertLayout ExpertReader::layout_of(std::uint16_t layer) const {
  ExpertLayout l = sizes_of(layer);
  DType types[3] = {};
  const std::uint32_t experts = config_.moe(layer).experts;
  const std::uint32_t count = storage_ == ExpertStorage::separate ? experts : 1;
  for (std::uint32_t e = 0; e < count; ++e) {
    const ExpertId id{layer, static_cast<std::uint16_t>(e)};
    for (int part = 0; part < 3; ++part) {
      const DType type = type_of(id, part);
      if (e == 0) types[part] = type;
      if (type == types[part]) continue;
      throw InputError(fmt::format("tensor \"{}\" is {}, expected {}, the type of the layer's first expert",
                                   piece(id, part).name, name_of(type), name_of(types[part])));
    }
  }
  l.dtype = types[0];
  if (types[1] != types[0]) l.up_type = types[1];
  if (types[2] != types[0]) l.down_type = types[2];
  for (int part = 0; part < 3; ++part) {
    const auto plain = l.plain(part);
    const auto* blocks = std::get_if<BlockLayout>(&plain);
    if (blocks != nullptr && blocks->type != BlockType::fp8 && blocks->columns % block_weights(blocks->type) != 0) {
      throw InputError(fmt::format("tensor \"{}\" has {} columns, expected a multiple of {}, since it is {}",
                                   piece({layer, 0}, part).name, blocks->columns, block_weights(blocks->type),
                                   name_of(l.type(part))));
    }
  }
  if (l.biased) {
    for (const Bias& bias : biases_of(layer)) static_cast<void>(checkpoint_.at(bias.name, {experts, bias.size}));
  }
  if (l.scaled) static_cast<void>(scales_of(layer));
  return l;
}

const Tensor& ExpertReader::scales_of(std::uint16_t layer) const {
  return checkpoint_.at(config_.tensor(config_.moe_layers[layer], config_.names.expert_scale),
                        {config_.moe(layer).experts});
}

std::vector<ExpertReader::Bias> ExpertReader::biases_of(std::uint16_t layer) const {
  const std::uint32_t number = config_.moe_layers[layer], width = config_.moe(layer).expert_width;
  const auto& n = config_.names;
  if (storage_ != ExpertStorage::fused_parts) {
    return {{config_.tensor(number, n.fused[0] + "_bias"), 2ULL * width},
            {config_.tensor(number, n.fused[1] + "_bias"), sizes_.hidden}};
  }
  std::vector<Bias> all;
  for (std::size_t part = 0; part < 3; ++part) {
    all.push_back({config_.tensor(number, n.experts + n.parts[part] + ".bias"), part == 2 ? sizes_.hidden : width});
  }
  return all;
}

/// Name and shape alone. `placed` also needs the layer's types, which the constructor does not know yet.
ExpertReader::Piece ExpertReader::piece(ExpertId id, int part) const {
  const LayerConfig& layer = config_.moe(id.layer);
  const std::uint64_t hidden = sizes_.hidden, width = layer.expert_width, experts = layer.experts;
  Piece p{expert_tensor_name(config_, storage_, id, part), shape_of(sizes_of(id.layer), part)};
  if (storage_ == ExpertStorage::fused_rows) {
    p.shape = part == 2 ? std::vector{experts, hidden, width} : std::vector{experts, 2 * width, hidden};
  } else if (storage_ == ExpertStorage::fused_parts) {
    p.shape.insert(p.shape.begin(), experts);
  } else if (storage_ == ExpertStorage::interleaved_blocks) {
    p.name += "_blocks";
    p.shape = part == 2 ? std::vector{experts, hidden, width / 32, std::uint64_t{16}}
                        : std::vector{experts, 2 * width, hidden / 32, std::uint64_t{16}};
  } else if (storage_ != ExpertStorage::separate) {
    p.shape = part == 2 ? std::vector{experts, width, hidden} : std::vector{experts, hidden, 2 * width};
  }
  return p;
}

ExpertReader::Piece ExpertReader::placed(ExpertId id, int part) const {
  Piece p = piece(id, part);
  const std::uint64_t one = scales_apart(id.layer, part)
                                ? std::uint64_t{sizes_.hidden} * config_.moe(id.layer).expert_width
                                : layout(id.layer).part_bytes(part, Precision::full);
  p.bytes = one;
  if (storage_ == ExpertStorage::fused_rows) {
    p.first = part == 2 ? id.expert * one : (2ULL * id.expert + static_cast<unsigned>(part)) * one;
  } else if (storage_ == ExpertStorage::fused_parts) {
    p.first = id.expert * one;
  } else if (storage_ == ExpertStorage::interleaved_blocks) {
    p.bytes = (part == 2 ? 1 : 2) * std::uint64_t{sizes_.hidden} * config_.moe(id.layer).expert_width / 2;
    p.first = id.expert * p.bytes;
  } else if (storage_ != ExpertStorage::separate) {
    p.bytes = part == 2 ? one : 2 * one;
    p.first = id.expert * p.bytes;
  }
  return p;
}

std::vector<std::span<const std::byte>> ExpertReader::stored(ExpertId id, int part) const {
  const Piece p = placed(id, part);
  const Tensor& t = checkpoint_.raw(p.name, p.shape);
  std::vector<std::span<const std::byte>> all{{t.data + p.first, std::min(p.bytes, t.bytes - p.first)}};
  if (t.scales != nullptr) all.emplace_back(t.scales->data, t.scales->bytes);
  if (storage_ == ExpertStorage::interleaved_blocks) {
    const std::vector<std::uint64_t> shape(p.shape.begin(), p.shape.end() - 1);
    const Tensor& exponents = checkpoint_.raw(expert_tensor_name(config_, storage_, id, part) + "_scales", shape);
    const std::uint64_t each = exponents.bytes / config_.moe(id.layer).experts;
    all.emplace_back(exponents.data + id.expert * each, each);
  }
  return all;
}

void ExpertReader::read(const Piece& p, std::byte* to) const {
  checkpoint_.read(p.name, p.shape, p.first, p.bytes, to);
}

void ExpertReader::read(ExpertId id, std::byte* to) const {
  const ExpertLayout& l = layout(id.layer);
  if (storage_ == ExpertStorage::interleaved_blocks) {
    read_mxfp4(id, to);
  } else if (storage_ == ExpertStorage::fused_columns || storage_ == ExpertStorage::interleaved_columns) {
    read_columns(id, to);
  } else {
    for (int part = 0; part < 3; ++part) {
      std::byte* own = to + l.part_at(part, Precision::full);
      scales_apart(id.layer, part) ? read_fp8(id, part, own) : read(placed(id, part), own);
    }
  }
  const std::vector<float> all = behind(id);
  if (!all.empty()) std::memcpy(to + l.part_at(3, Precision::full), all.data(), all.size() * sizeof(float));
}

void ExpertReader::read_columns(ExpertId id, std::byte* to) const {
  const ExpertLayout& l = layout(id.layer);
  const std::uint64_t hidden = l.hidden, width = l.width;
  const auto each = [&](int part) { return l.part_bytes(part, Precision::full) / (hidden * width); };
  std::vector<std::byte> stored(2 * hidden * width * std::max(each(0), each(2)));
  read(placed(id, 0), stored.data());
  for (int part = 0; part < 2; ++part) {
    const bool in_turn = storage_ == ExpertStorage::interleaved_columns;
    const std::uint64_t first = static_cast<unsigned>(part) * (in_turn ? 1 : width);
    transpose(stored.data(), hidden, 2 * width, first, in_turn ? 2 : 1, width, each(0),
              to + l.part_at(part, Precision::full));
  }
  read(placed(id, 2), stored.data());
  transpose(stored.data(), width, hidden, 0, 1, hidden, each(2), to + l.part_at(2, Precision::full));
}

void ExpertReader::read_fp8(ExpertId id, int part, std::byte* to) const {
  const Piece p = placed(id, part);
  std::vector<std::byte> codes(p.bytes);
  checkpoint_.read_raw(p.name, p.shape, p.first, p.bytes, codes.data());
  Tensor scales = *checkpoint_.raw(p.name, p.shape).scales;
  // The expert's scales: all of them, or half if gate and up have scales of their own.
  const std::uint64_t all = scales.elements() / p.shape[0], size = scales.bytes / scales.elements();
  const bool halves = part < 2 && all > 1;
  const std::uint64_t count = halves ? all / 2 : all;
  std::vector<std::byte> own(count * size);
  checkpoint_.read_raw(Checkpoint::scales_of(p.name), scales.shape,
                       (id.expert * all + (halves && part == 1 ? count : 0)) * size, own.size(), own.data());
  scales.shape = {count};
  scales.data = own.data();
  scales.bytes = own.size();
  Tensor matrix = checkpoint_.raw(p.name, p.shape);
  matrix.shape = shape_of(sizes_of(id.layer), part);
  matrix.data = codes.data();
  matrix.bytes = codes.size();
  matrix.scales = &scales;
  matrix.copy_stored(to);
}

void ExpertReader::read_mxfp4(ExpertId id, std::byte* to) const {
  constexpr std::uint64_t weights = 32, codes = 16;
  const ExpertLayout& l = layout(id.layer);
  std::vector<std::byte> blocks, exponents;
  for (int part = 0; part < 3; ++part) {
    const std::uint64_t rows = part == 2 ? l.hidden : l.width, row = (part == 2 ? l.width : l.hidden) / weights;
    if (part != 1) {  // gate's rows and up's are in one tensor
      Piece p = placed(id, part);
      blocks.resize(p.bytes);
      checkpoint_.read_raw(p.name, p.shape, p.first, p.bytes, blocks.data());
      p.name = expert_tensor_name(config_, storage_, id, part) + "_scales";
      p.shape.pop_back();
      exponents.resize(p.bytes / codes);
      checkpoint_.read_raw(p.name, p.shape, p.first / codes, exponents.size(), exponents.data());
    }
    std::byte* out = to + l.part_at(part, Precision::full);
    for (std::uint64_t r = 0; r < rows; ++r) {
      const std::uint64_t from = (part == 2 ? r : 2 * r + static_cast<unsigned>(part)) * row;
      for (std::uint64_t b = 0; b < row; ++b) {
        *out++ = exponents[from + b];
        // In the file, neighbours share a byte; here, each byte has one code of either half of the block.
        const std::byte* pairs = &blocks[(from + b) * codes];
        const auto code = [&](std::uint64_t i) { return pairs[i / 2] >> (i % 2 * 4) & std::byte{15}; };
        for (std::uint64_t i = 0; i < codes; ++i) *out++ = code(i) | code(i + codes) << 4;
      }
    }
  }
}

std::vector<float> ExpertReader::behind(ExpertId id) const {
  std::vector<float> all;
  if (sizes_.biased) all = biases(id);
  if (sizes_.scaled) all.push_back(scales_of(id.layer).to_floats()[id.expert]);
  return all;
}

std::vector<float> ExpertReader::biases(ExpertId id) const {
  std::vector<float> all;
  std::vector<std::vector<float>> stored;
  const std::uint32_t experts = config_.moe(id.layer).experts;
  for (const Bias& bias : biases_of(id.layer)) {
    const std::vector<std::uint64_t> shape{experts, bias.size};
    Tensor t = checkpoint_.at(bias.name, shape);
    std::vector<std::byte> own(t.bytes / experts);
    checkpoint_.read_raw(bias.name, shape, id.expert * own.size(), own.size(), own.data());
    t.bytes = own.size();
    t.data = own.data();
    t.shape = {bias.size};
    stored.push_back(t.to_floats());
  }
  if (stored.size() == 2) {  // gate's and up's numbers alternate
    std::vector<float> gate, up;
    for (std::size_t i = 0; i < stored[0].size(); i += 2) {
      gate.push_back(stored[0][i]);
      up.push_back(stored[0][i + 1]);
    }
    stored = {gate, up, stored[1]};
  }
  for (const std::vector<float>& part : stored) all.insert(all.end(), part.begin(), part.end());
  return all;
}

void ExpertPacker::pack(const std::byte* expert, Variant what, int part, std::byte* out) const {
  const ExpertLayout& own = from[from.size() == 1 ? 0 : what.id.layer];
  const ExpertLayout made = to_of(what.id.layer);
  if (part == 2) {
    std::memcpy(out + made.part_at(3, what.precision), expert + own.part_at(3, Precision::full), made.behind_bytes());
  }
  out += made.part_at(part, what.precision);
  const PackedLayout packed = made.packed(part, what.precision);  // rows and columns are the same at `full`
  Tensor stored;
  stored.dtype = own.type(part);
  stored.shape = {packed.rows, packed.columns};
  stored.data = expert + own.part_at(part, Precision::full);
  stored.bytes = own.part_bytes(part, Precision::full);
  const std::vector<float> weights = stored.to_floats();
  std::size_t bad = no_weight;
  if (what.precision == Precision::full) {
    bad = ferry::pack(std::get<PassThroughLayout>(made.plain(part)), weights.data(), out);
  } else if (quantizer == Quantizer::hqq) {
    bad = ferry::pack(packed, weights.data(), out, Hqq{});
  } else {
    bad = ferry::pack(packed, weights.data(), out, RoundToNearest{});
  }
  if (bad == no_weight) return;
  throw InputError(fmt::format("tensor \"{}\": the weight at [{}, {}] is {}, which {} cannot hold",
                               expert_tensor_name(config, config.storage, what.id, part), bad / packed.columns,
                               bad % packed.columns, weights[bad], made.name(what.precision)));
}

void ExpertPacker::pack(const std::byte* expert, ExpertId id, const std::vector<Made>& made,
                        std::uint32_t threads) const {
  on_threads(threads, 3 * made.size(), [&](std::size_t i) {
    const Made& m = made[i / 3];
    pack(expert, {id, m.precision}, static_cast<int>(i % 3), m.out);
  });
}

MemoryStore::MemoryStore(const Checkpoint& checkpoint, const ModelConfig& c, const LoadOptions& o)
    : numbers_(c.of_moe_layers(&LayerConfig::experts)) {
  const ExpertReader reader(checkpoint, c);
  packer_ = {reader.layouts(), reader.layout(), o.quantizer, c};
  for (std::uint32_t p = 1; p < precision_count; ++p) {
    if ((o.precisions.bits >> p & 1U) != 0)
      bytes_[p] = BlockMemory(layer_at(numbers_.layers(), static_cast<Precision>(p)));
  }
  const BlockMemory& own = bytes_[static_cast<unsigned>(Precision::full)];
  std::vector<std::byte> scratch;
  std::vector<ExpertPacker::Made> made;
  const std::uint64_t all = c.routed_experts();
  for (std::uint64_t n = 0; n < all && (!o.progress || o.progress(n, all)); ++n) {
    const ExpertId id = numbers_.id(n);
    if (own.size() == 0) scratch.resize(layout(id.layer).bytes());
    std::byte* full = own.size() == 0 ? scratch.data() : own.data() + place(id, Precision::full);
    reader.read(id, full);
    made.clear();
    for (std::uint32_t p = 1; p < static_cast<std::uint32_t>(Precision::full); ++p) {
      const auto precision = static_cast<Precision>(p);
      if (bytes_[p].size() > 0) made.push_back({precision, bytes_[p].data() + place(id, precision)});
    }
    packer_.pack(full, id, made, all_threads());
    if (n + 1 == all && o.progress) o.progress(all, all);
  }
}

std::uint64_t MemoryStore::layer_at(std::uint32_t layer, Precision p) const {
  std::uint64_t at = 0;
  for (std::uint32_t l = 0; l < layer; ++l) at += numbers_.of_layer(l) * layout(l).bytes(p);
  return at;
}

void MemoryStore::add(Precision p) {
  if (p == Precision::skip || bytes_[static_cast<unsigned>(p)].size() > 0) return;
  const BlockMemory& own = bytes_[static_cast<unsigned>(Precision::full)];
  if (own.size() == 0) {
    throw InputError(fmt::format("experts at {} are needed, and were not among what was loaded", layout().name(p)));
  }
  BlockMemory all(layer_at(numbers_.layers(), p));
  for (std::uint64_t n = 0; n < numbers_.all(); ++n) {
    const ExpertId id = numbers_.id(n);
    packer_.pack(own.data() + place(id, Precision::full), id, {{p, all.data() + place(id, p)}}, all_threads());
  }
  bytes_[static_cast<unsigned>(p)] = std::move(all);
}

std::uint8_t MemoryStore::precisions() const {
  unsigned stored = 0;
  for (std::uint32_t p = 0; p < precision_count; ++p) stored |= bytes_[p].size() == 0 ? 0U : 1U << p;
  return static_cast<std::uint8_t>(stored);
}

HeldBytes MemoryStore::bytes(Variant v) const {
  const BlockMemory& all = bytes_[static_cast<unsigned>(v.precision)];
  if (all.size() == 0) return {};
  return View<const std::byte>{all.data() + place(v.id, v.precision),
                               static_cast<std::uint32_t>(layout(v.id.layer).bytes(v.precision))};
}

}  // namespace ferry::engine
