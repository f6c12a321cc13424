/// @file
/// Products of a few rows with weights in their stored form: the device code that dense layers and experts share.
///
/// A warp makes the sums of a few output features at once, from its block's copy of the inputs in shared memory. A lane
/// takes one unit, mostly 16 bytes of weights, of each of them at a time, and next the unit 32 further on. So the order
/// of a sum depends on the columns alone, and neither on how many rows of input there are, nor on how many outputs a
/// warp has.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cub/warp/warp_reduce.cuh>
#include <type_traits>

#include "cuda/kernels.hpp"
#include "cuda/launch.hpp"
#include "ferry/codec/blocks.hpp"
#include "ferry/codec/packed.hpp"
#include "ferry/codec/pass_through.hpp"
#include "ferry/macros.hpp"
#include "ferry/model.hpp"

namespace ferry::engine::cuda::part {

inline constexpr std::uint32_t product_warps = 8, product_threads = product_warps * lanes;
inline constexpr std::uint32_t most_tokens = 8;  ///< that share one reading of the weights

/// What a lane loads at once.
template <std::uint32_t words>
struct Unit {
  std::uint32_t word[words];
};

__device__ __forceinline__ float widen_half(std::uint32_t bits) {
  // 2^112: the biases differ by that. Exact, also for the subnormal ones.
  std::uint32_t magnitude = __float_as_uint(__uint_as_float((bits & 0x7fffU) << 13U) * 0x1p112F);
  if ((bits & 0x7c00U) == 0x7c00U) magnitude |= 0x7f800000U;
  return __uint_as_float(magnitude | (bits & 0x8000U) << 16U);
}

/// Weights as checkpoints have them.
template <FloatType type>
struct Plain {
  static constexpr bool packed = false, blocks = false;
  static constexpr Precision precision = Precision::full;
  static constexpr std::uint32_t words = 4, columns = type == FloatType::f32 ? 4 : 8;  ///< of a unit
  static constexpr std::uint32_t element_bytes = type == FloatType::f32 ? 4 : 2, alignment = element_bytes;

  /// Weights 4 q to 4 q + 3 of a unit.
  __device__ __forceinline__ static void decode(const Unit<words>& unit, std::uint32_t q, std::uint32_t /*one*/,
                                                float (&w)[4]) {
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      if constexpr (type == FloatType::f32) {
        w[i] = __uint_as_float(unit.word[i]);
      } else {
        const std::uint32_t pair = unit.word[2 * q + i / 2];
        if constexpr (type == FloatType::bf16) {
          w[i] = __uint_as_float(i % 2 == 0 ? pair << 16U : pair & 0xffff0000U);
        } else {
          w[i] = widen_half(i % 2 == 0 ? pair & 0xffffU : pair >> 16U);
        }
      }
    }
  }
};

/// Weights as PackedLayout has them.
template <std::uint32_t bits>
struct Packed {
  static constexpr bool packed = true, blocks = false;
  static constexpr Precision precision = bits == 8 ? Precision::int8 : bits == 4 ? Precision::int4 : Precision::int2;
  static constexpr std::uint32_t words = bits == 2 ? 2 : 4, columns = words * 32 / bits;  ///< of a unit; within a group
  static constexpr std::uint32_t element_bytes = 1;
  static constexpr float codes = 1U << bits;
  /// What `decode` gives for code 0.
  static constexpr float zero = bits == 8 ? 1.0F : 0.5F;

  /// Codes 4 q to 4 q + 3 of a unit, each as (1 + code / 2^bits) * zero: as the first bits of a float's fraction it needs
  /// no conversion, and what it adds to a group's minimum is at most the range of the group.
  __device__ __forceinline__ static void decode(const Unit<words>& unit, std::uint32_t q, std::uint32_t one,
                                                float (&w)[4]) {
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t bit = (4 * q + i) * bits, word = unit.word[bit / 32], at = bit % 32;
      if constexpr (bits == 8) {
        constexpr std::uint32_t top = 23 - bits;
        const std::uint32_t shifted = at < top ? word << (top - at) : word >> (at - top);
        w[i] = __uint_as_float((shifted & largest_code(bits) << top) | one);
      } else {
        // The codes at one place of each byte go to the byte's upper bits but the first, all four at once; there they
        // are the fraction's beginning, once the byte stands behind 0x3f.
        constexpr std::uint32_t end = 7;
        const std::uint32_t in_byte = at % 8 + bits;
        const std::uint32_t shifted = in_byte < end ? word << (end - in_byte) : word >> (in_byte - end);
        const std::uint32_t four = shifted & (largest_code(bits) << (end - bits)) * 0x01010101U;
        w[i] = __uint_as_float(__byte_perm(four, 0x3f000000U, 0x7044U | at / 8 << 8U));
      }
    }
  }
};

/// Blocks, of which a lane takes 32 weights at a time: codes of a byte each, with what all of them share.
template <BlockType type>
struct Blocks {
  static constexpr bool packed = false, blocks = true;
  static constexpr Precision precision = Precision::full;
  static constexpr std::uint32_t minima = type == BlockType::q2_k ? 2 : 1;
  static constexpr std::uint32_t words = 10 + minima, columns = 32;  ///< of a unit: two scales, minima, codes
  static constexpr std::uint32_t each = block_weights(type) / columns;
  /// Whether the first 16 of 32 weights are in the low bits of as many bytes, and the others above.
  static constexpr bool of_four_bits = type == BlockType::q4_0 || type == BlockType::q4_1 || type == BlockType::q5_0 ||
                                       type == BlockType::q5_1 || type == BlockType::iq4_nl ||
                                       type == BlockType::iq4_xs || type == BlockType::mxfp4;
  /// Of where a block's numbers begin.
  static constexpr std::uint32_t alignment = block_bytes(type) % 4 == 0 ? 4 : block_bytes(type) % 2 == 0 ? 2 : 1;

  __device__ __forceinline__ static std::uint32_t word(const std::byte* at) {
    if constexpr (alignment == 4) {
      return *reinterpret_cast<const std::uint32_t*>(at);
    } else if constexpr (alignment == 2) {
      const auto* halves = reinterpret_cast<const std::uint16_t*>(at);
      return halves[0] | std::uint32_t{halves[1]} << 16U;
    } else {
      return detail::byte_at(at, 0) | detail::byte_at(at, 1) << 8U | detail::byte_at(at, 2) << 16U |
             detail::byte_at(at, 3) << 24U;
    }
  }
  /// Four bits, each the lowest of a byte.
  __device__ __forceinline__ static std::uint32_t spread(std::uint32_t bits) {
    return bits * 0x00204081U & 0x01010101U;
  }
  /// Four codes of a byte each, less a number up to 128: as signed bytes.
  __device__ __forceinline__ static std::uint32_t less(std::uint32_t codes, std::uint32_t number) {
    return ((codes | 0x80808080U) - number * 0x01010101U) ^ 0x80808080U;
  }

  __device__ __forceinline__ static Unit<words> load(const std::byte* row, std::uint32_t unit) {
    const std::byte* at = row + std::uint64_t{unit / each} * block_bytes(type);
    const std::uint32_t part = unit % each;  // of a block
    Unit<words> u{};
    std::uint32_t* codes = u.word + 2 + minima;
    float scale[2], minimum[minima] = {};
    if constexpr (type == BlockType::q8_0) {
      scale[0] = scale[1] = detail::half_at(at);
#pragma unroll
      for (std::uint32_t i = 0; i < 8; ++i) codes[i] = word(at + 2 + 4 * i);
    } else if constexpr (of_four_bits) {
      scale[0] = scale[1] = type == BlockType::mxfp4 ? detail::half_power(detail::byte_at(at, 0))
                            : type == BlockType::iq4_xs
                                ? detail::half_at(at) * static_cast<float>(detail::iq4_xs_scale(at, part))
                                : detail::half_at(at);
      if constexpr (type == BlockType::q4_1 || type == BlockType::q5_1) minimum[0] = -detail::half_at(at + 2);
      const std::byte* end = at + (type == BlockType::iq4_xs ? 8 + (part + 1) * 16 : block_bytes(type));
#pragma unroll
      for (std::uint32_t i = 0; i < 4; ++i) {
        const std::uint32_t both = word(end - 16 + 4 * i);
        codes[i] = both & 0x0f0f0f0fU;
        codes[4 + i] = both >> 4U & 0x0f0f0f0fU;
      }
      if constexpr (type == BlockType::q5_0 || type == BlockType::q5_1) {
        const std::uint32_t fifth = word(end - 20);
#pragma unroll
        for (std::uint32_t i = 0; i < 8; ++i) codes[i] |= spread(fifth >> 4 * i & 15U) << 4U;
      }
      if constexpr (type == BlockType::q4_0 || type == BlockType::q5_0) {
#pragma unroll
        for (std::uint32_t i = 0; i < 8; ++i) codes[i] = less(codes[i], type == BlockType::q4_0 ? 8 : 16);
      }
    } else if constexpr (type == BlockType::q2_k || type == BlockType::q3_k) {
      constexpr std::uint32_t low = type == BlockType::q2_k ? 16 : 32;
#pragma unroll
      for (std::uint32_t i = 0; i < 2; ++i) {
        if constexpr (type == BlockType::q2_k) {
          const std::uint32_t both = detail::byte_at(at, 2 * part + i);
          scale[i] = detail::half_at(at + 80) * static_cast<float>(both & 15U);
          minimum[i] = detail::half_at(at + 82) * static_cast<float>(both >> 4U);
        } else {
          scale[i] = detail::half_at(at + 108) * static_cast<float>(detail::q3_k_scale(at + 96, 2 * part + i));
        }
      }
#pragma unroll
      for (std::uint32_t i = 0; i < 8; ++i) {
        codes[i] = word(at + low + part / 4 * 32 + 4 * i) >> part % 4 * 2 & 0x03030303U;
        if constexpr (type == BlockType::q3_k) {
          codes[i] = less(codes[i] | (word(at + 4 * i) >> part & 0x01010101U) << 2U, 4);
        }
      }
    } else if constexpr (type == BlockType::q4_k || type == BlockType::q5_k) {
      constexpr std::uint32_t low = type == BlockType::q4_k ? 16 : 48;
      scale[0] = scale[1] = detail::half_at(at) * static_cast<float>(detail::k_scale(at + 4, part));
      minimum[0] = detail::half_at(at + 2) * static_cast<float>(detail::k_minimum(at + 4, part));
#pragma unroll
      for (std::uint32_t i = 0; i < 8; ++i) {
        codes[i] = word(at + low + part / 2 * 32 + 4 * i) >> part % 2 * 4 & 0x0f0f0f0fU;
        if constexpr (type == BlockType::q5_k) codes[i] |= (word(at + 16 + 4 * i) >> part & 0x01010101U) << 4U;
      }
    } else if constexpr (type == BlockType::q6_k) {
      const std::uint32_t half = part / 4, quarter = part % 4;
      const float d = detail::half_at(at + 208);
#pragma unroll
      for (std::uint32_t i = 0; i < 2; ++i) {
        const std::uint32_t s = detail::byte_at(at + 192, 2 * part + i);
        scale[i] = d * static_cast<float>(static_cast<std::int8_t>(s));
      }
#pragma unroll
      for (std::uint32_t i = 0; i < 8; ++i) {
        const std::uint32_t four = word(at + half * 64 + quarter % 2 * 32 + 4 * i) >> quarter / 2 * 4 & 0x0f0f0f0fU;
        const std::uint32_t two = word(at + 128 + half * 32 + 4 * i) >> 2 * quarter & 0x03030303U;
        codes[i] = less(four | two << 4U, 32);
      }
    } else {
      static_assert(type == BlockType::fp8);
      scale[0] = scale[1] = __uint_as_float(word(at));
#pragma unroll
      for (std::uint32_t i = 0; i < 8; ++i) codes[i] = word(at + 4 + part * 32 + 4 * i);
    }
    u.word[0] = __float_as_uint(scale[0]);
    u.word[1] = __float_as_uint(scale[1]);
#pragma unroll
    for (std::uint32_t i = 0; i < minima; ++i) u.word[2 + i] = __float_as_uint(minimum[i]);
    return u;
  }

  __device__ __forceinline__ static void decode(const Unit<words>& unit, std::uint32_t q, std::uint32_t /*one*/,
                                                float (&w)[4]) {
    const float scale = __uint_as_float(unit.word[q / 4]);
#pragma unroll
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t code = unit.word[2 + minima + q] >> 8 * i & 0xffU;
      if constexpr (type == BlockType::fp8) {
        w[i] = scale * detail::widen_e4m3(code);
      } else if constexpr (type == BlockType::mxfp4) {
        w[i] = scale * detail::twice_e2m1(code);
      } else if constexpr (type == BlockType::iq4_nl || type == BlockType::iq4_xs) {
        w[i] = scale * static_cast<float>(detail::iq4_value(code));
      } else {
        const auto number = static_cast<float>(static_cast<std::int8_t>(code));
        w[i] = fmaf(scale, number, -__uint_as_float(unit.word[2 + q / 4 % minima]));
      }
    }
  }
};

/// Calls `run(Blocks<type>{})`.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable  // `run` is on the side of its caller
#endif
template <class Run>
__device__ __host__ __forceinline__ void with_blocks(BlockType type, const Run& run) {
  switch (type) {
    case BlockType::q8_0:
      return run(Blocks<BlockType::q8_0>{});
    case BlockType::q4_0:
      return run(Blocks<BlockType::q4_0>{});
    case BlockType::q4_1:
      return run(Blocks<BlockType::q4_1>{});
    case BlockType::q5_0:
      return run(Blocks<BlockType::q5_0>{});
    case BlockType::q5_1:
      return run(Blocks<BlockType::q5_1>{});
    case BlockType::q2_k:
      return run(Blocks<BlockType::q2_k>{});
    case BlockType::q3_k:
      return run(Blocks<BlockType::q3_k>{});
    case BlockType::iq4_nl:
      return run(Blocks<BlockType::iq4_nl>{});
    case BlockType::iq4_xs:
      return run(Blocks<BlockType::iq4_xs>{});
    case BlockType::q4_k:
      return run(Blocks<BlockType::q4_k>{});
    case BlockType::q5_k:
      return run(Blocks<BlockType::q5_k>{});
    case BlockType::q6_k:
      return run(Blocks<BlockType::q6_k>{});
    case BlockType::mxfp4:
      return run(Blocks<BlockType::mxfp4>{});
    default:
      return run(Blocks<BlockType::fp8>{});
  }
}

/// Calls `run` with the class that reads weights of that type.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class Run>
__device__ __host__ __forceinline__ void with_stored(const StoredType& type, const Run& run) {
  if (type.blocks) return with_blocks(type.block, run);
  if (type.number == FloatType::bf16) return run(Plain<FloatType::bf16>{});
  if (type.number == FloatType::f16) return run(Plain<FloatType::f16>{});
  run(Plain<FloatType::f32>{});
}

/// Where a matrix lies behind the address of its expert, or of itself.
struct Place {
  std::uint64_t codes_at = 0, groups_at = 0;  ///< bytes
  std::uint64_t row_bytes = 0;
  std::uint32_t rows = 0, columns = 0;
  std::uint32_t row_groups = 0, unit_shift = 0;  ///< a group has 2^unit_shift units
  /// The float 1. As an argument of the kernel it stays in a register, and one instruction masks a code of INT8 and joins it to
  /// this; with two constants that would take two.
  std::uint32_t one = 0x3f800000U;

  /// Whether every row begins at a multiple of a unit's bytes.
  [[nodiscard]] bool aligned(std::uint32_t unit_bytes) const { return (codes_at | row_bytes) % unit_bytes == 0; }
};

inline Place place_of(const PassThroughLayout& m, std::uint64_t at) {
  return {at, 0, m.row_bytes(), m.rows, m.columns};
}
inline Place place_of(const BlockLayout& m, std::uint64_t at) {
  return {at, 0, m.row_bytes(), m.rows, m.columns};
}
inline Place place_of(const PackedLayout& m, std::uint64_t at) {
  const std::uint32_t units = m.group / (m.bits == 8   ? Packed<8>::columns
                                         : m.bits == 4 ? Packed<4>::columns
                                                       : Packed<2>::columns);
  std::uint32_t shift = 0;
  while (1U << shift < units) ++shift;
  return {at,   at + m.group_at(0, 0), m.row_bytes(), m.rows, m.columns, static_cast<std::uint32_t>(m.row_groups()),
          shift};
}

/// A row of a matrix.
struct Row {
  const std::byte* codes;
  const float2* groups;  ///< {scale, minimum}
};

/// Behind the last row comes the last one again: what warps without work of their own read.
__device__ __forceinline__ Row row_of(const Place& m, const std::byte* base, std::uint32_t row) {
  if (row >= m.rows) row = m.rows - 1;
  return {base + m.codes_at + row * m.row_bytes,
          reinterpret_cast<const float2*>(base + m.groups_at) + std::uint64_t{row} * m.row_groups};
}

template <class Weights, bool aligned>
__device__ __forceinline__ Unit<Weights::words> load_unit(const std::byte* row, std::uint32_t unit,
                                                          std::uint64_t row_bytes) {
  Unit<Weights::words> u{};
  if constexpr (Weights::blocks) {
    u = Weights::load(row, unit);
  } else if constexpr (aligned && Weights::words == 4) {
    const uint4 v = __ldg(reinterpret_cast<const uint4*>(row) + unit);
    u.word[0] = v.x, u.word[1] = v.y, u.word[2] = v.z, u.word[3] = v.w;
  } else if constexpr (aligned) {
    const uint2 v = __ldg(reinterpret_cast<const uint2*>(row) + unit);
    u.word[0] = v.x, u.word[1] = v.y;
  } else {
    constexpr std::uint32_t size = Weights::element_bytes, bytes = Weights::words * 4;
    const std::uint64_t first = std::uint64_t{unit} * bytes;
#pragma unroll
    for (std::uint32_t i = 0; i < bytes; i += size) {
      if (first + i >= row_bytes) continue;  // not break: then it would not unroll
      const std::byte* at = row + first + i;
      if constexpr (size == 4) {
        u.word[i / 4] = *reinterpret_cast<const std::uint32_t*>(at);
      } else if constexpr (size == 2) {
        u.word[i / 4] |= std::uint32_t{*reinterpret_cast<const std::uint16_t*>(at)} << i % 4 * 8;
      } else {
        u.word[i / 4] |= static_cast<std::uint32_t>(*at) << i % 4 * 8;
      }
    }
  }
  return u;
}

/// A block's shared memory. Inputs lie in it chunk by chunk: floats / tokens columns of each.
template <std::uint32_t floats>
struct Stage {
  float4 x[floats / 4];
  float sums[floats / 16];           ///< of the inputs that one unit is multiplied with
  const float* inputs[most_tokens];  ///< [columns] each; null: zeros
  std::uint32_t outputs[most_tokens];
  typename cub::WarpReduce<float>::TempStorage reduce[product_warps][4 * most_tokens];
};

/// The products of a warp's rows with the block's inputs.
template <class Weights, std::uint32_t rows, std::uint32_t tokens, bool aligned, std::uint32_t floats>
struct Products {
  static constexpr std::uint32_t quads = Weights::columns / 4;     ///< of a unit: four columns, one float4
  static constexpr std::uint32_t step = Weights::columns * lanes;  ///< columns that a warp takes at a time
  static constexpr std::uint32_t chunk = floats / tokens;          ///< columns in shared memory
  static constexpr std::uint32_t chunk_units = chunk / Weights::columns;
  static_assert(chunk % step == 0);
  /// Steps whose weights are on their way at once: several loads in flight hide the memory's latency, but more inputs
  /// need the registers for their sums.
  static constexpr std::uint32_t loads = tokens < 4 || (tokens == 4 && !Weights::packed) ? 8 : 4;
  static constexpr std::uint32_t depth = aligned ? loads / rows : 1;
  static_assert(chunk_units % (depth * lanes) == 0);

  /// Inputs whose sums over a unit of codes fit into registers beside the sums over whole rows.
  static constexpr std::uint32_t together = tokens;

  /// Lanes of a warp read one quad of every `quads`: permuted within their units, they meet no bank twice.
  __device__ __forceinline__ static std::uint32_t permuted(std::uint32_t unit, std::uint32_t q) {
    return q ^ (unit * quads / 8 & (quads - 1));
  }

  /// Brings inputs from column `first` on to shared memory, zeros behind their end. The whole block calls it.
  __device__ static void fill(Stage<floats>& stage, std::uint32_t first, std::uint32_t columns) {
    const std::uint32_t left = columns - first < chunk ? columns - first : chunk;
    const std::uint32_t filled = (left + step - 1) / step * step;
    __syncthreads();  // the chunk before has been used, and `inputs` are set
    // All begin alike: they are rows of one tensor.
    const bool vectors = columns % 4 == 0 && reinterpret_cast<std::uintptr_t>(stage.inputs[0]) % 16 == 0;
    for (std::uint32_t i = threadIdx.x; i < filled / 4; i += product_threads) {
      const std::uint32_t unit = i / quads, to = unit * quads + permuted(unit, i % quads);
      constexpr std::uint32_t at_once = tokens < 4 ? tokens : 4;  // loads on their way
#pragma unroll
      for (std::uint32_t begin = 0; begin < tokens; begin += at_once) {
        float4 v[at_once];
#pragma unroll
        for (std::uint32_t t = 0; t < at_once; ++t) {
          v[t] = make_float4(0, 0, 0, 0);
          if (stage.inputs[begin + t] == nullptr || 4 * i >= left) continue;
          const float* x = stage.inputs[begin + t] + first + 4 * i;
          if (vectors) {
            v[t] = *reinterpret_cast<const float4*>(x);
          } else {
            v[t].x = x[0];
            if (4 * i + 1 < left) v[t].y = x[1];
            if (4 * i + 2 < left) v[t].z = x[2];
            if (4 * i + 3 < left) v[t].w = x[3];
          }
        }
#pragma unroll
        for (std::uint32_t t = 0; t < at_once; ++t) stage.x[(begin + t) * (chunk / 4) + to] = v[t];
      }
    }
    __syncthreads();
    if constexpr (Weights::packed) {
      for (std::uint32_t t = 0; t < tokens; ++t) {
        for (std::uint32_t unit = threadIdx.x; unit < filled / Weights::columns; unit += product_threads) {
          float sum = 0;
          for (std::uint32_t q = 0; q < quads; ++q) {
            const float4 v = stage.x[t * (chunk / 4) + unit * quads + permuted(unit, q)];
            sum += (v.x + v.y) + (v.z + v.w);
          }
          stage.sums[t * chunk_units + unit] = sum;
        }
      }
      __syncthreads();
    }
  }

  /// sum += weights of a unit times inputs, `some` of them from number `first` on.
  template <std::uint32_t some>
  __device__ __forceinline__ static void multiply(const Stage<floats>& stage,
                                                  const Unit<Weights::words> (&weights)[rows], std::uint32_t unit,
                                                  std::uint32_t first, std::uint32_t one, float (&sum)[rows][some]) {
    const float4* x = stage.x + first * (chunk / 4) + unit * quads;
#pragma unroll
    for (std::uint32_t q = 0; q < quads; ++q) {
      float w[rows][4];
#pragma unroll
      for (std::uint32_t r = 0; r < rows; ++r) Weights::decode(weights[r], q, one, w[r]);
      const float4* at = x + permuted(unit, q);
#pragma unroll
      for (std::uint32_t t = 0; t < some; ++t) {
        const float4 v = at[t * (chunk / 4)];
#pragma unroll
        for (std::uint32_t r = 0; r < rows; ++r) {
          float s = sum[r][t];
          s = fmaf(w[r][0], v.x, s);
          s = fmaf(w[r][1], v.y, s);
          s = fmaf(w[r][2], v.z, s);
          sum[r][t] = fmaf(w[r][3], v.w, s);
        }
      }
    }
  }

  /// The sums of the warp's rows, in lane 0. The whole block calls it. `fresh`: its inputs are not in shared memory yet.
  /// `ready` returns once they can be read; it is called when weights are on their way already.
  template <class RowOf, class Ready>
  __device__ __forceinline__ static void run(Stage<floats>& stage, const Place& m, const RowOf& row, bool fresh,
                                             const Ready& ready, float (&sum)[rows][tokens]) {
    const std::uint32_t lane = threadIdx.x % lanes, warp = threadIdx.x / lanes;
    const std::uint32_t units = (m.columns + Weights::columns - 1) / Weights::columns;
    Unit<Weights::words> weights[depth][rows];
    float2 group[depth][rows];  // {scale, minimum}
    auto load = [&](std::uint32_t d, std::uint32_t unit) {
      unit = unit < units ? unit : units - 1;  // not a branch for each load
#pragma unroll
      for (std::uint32_t r = 0; r < rows; ++r) {
        const Row from = row(r);
        weights[d][r] = load_unit<Weights, aligned>(from.codes, unit, m.row_bytes);
        if constexpr (Weights::packed) group[d][r] = __ldg(from.groups + (unit >> m.unit_shift));
      }
    };
#pragma unroll
    for (std::uint32_t d = 0; d < depth; ++d) load(d, d * lanes + lane);
#pragma unroll
    for (std::uint32_t r = 0; r < rows; ++r) {
#pragma unroll
      for (std::uint32_t t = 0; t < tokens; ++t) sum[r][t] = 0;
    }
    for (std::uint32_t first = 0; first < units; first += depth * lanes) {
      if (fresh && first == 0) ready();
      if (fresh && first % chunk_units == 0) fill(stage, first * Weights::columns, m.columns);
#pragma unroll
      for (std::uint32_t d = 0; d < depth; ++d) {
        const std::uint32_t unit = first + d * lanes + lane;
        if (unit < units) {
          if constexpr (Weights::packed) {
#pragma unroll
            for (std::uint32_t t = 0; t < tokens; t += together) {
              float partial[rows][together] = {};
              multiply(stage, weights[d], unit % chunk_units, t, m.one, partial);
#pragma unroll
              for (std::uint32_t r = 0; r < rows; ++r) {
                // scale * code + minimum = whole * (1 + code / codes) + rest
                const float whole = group[d][r].x * Weights::codes, rest = group[d][r].y - whole;
                const float factor = whole / Weights::zero;  // a power of two: exact
#pragma unroll
                for (std::uint32_t i = 0; i < together; ++i) {
                  const float inputs = stage.sums[(t + i) * chunk_units + unit % chunk_units];
                  sum[r][t + i] = fmaf(factor, partial[r][i], fmaf(rest, inputs, sum[r][t + i]));
                }
              }
            }
          } else {
            multiply(stage, weights[d], unit % chunk_units, 0, m.one, sum);
          }
        }
        load(d, unit + depth * lanes);
      }
    }
#pragma unroll
    for (std::uint32_t r = 0; r < rows; ++r) {
#pragma unroll
      for (std::uint32_t t = 0; t < tokens; ++t) {
        sum[r][t] = cub::WarpReduce<float>(stage.reduce[warp][r * tokens + t]).Sum(sum[r][t]);
      }
    }
  }
};

/// Floats of a block's inputs in shared memory: 16 or 32 KiB.
FERRY_HD constexpr std::uint32_t stage_floats(std::uint32_t most) {
  return most == 1 ? 4096 : 8192;
}

/// A block's share of a job: all its inputs, up to `most` at a time, and of its tiles of output features every
/// `blocks`-th, from number `block` on.
///
/// A job's class says where its weights are, what they are multiplied with, and where the products go:
///   Job::rows                      rows of weights that make one output feature
///   place, outputs()               the shape of its matrices, how many output features there are
///   row(output, i)                 row i of those that make one of them
///   inputs(), input(i, number)     how many, and where one of them is; sets what `emit` knows it by
///   ready()                        returns once inputs can be read, and results written; of the whole block
///   emit(output, number, sums)     takes the sums of the output's rows; by one thread
///
/// `most` is 1, 4 (always 4 together) or 8 (as many together as there are). A block may have several tiles only if so
/// many whole inputs fit into its shared memory.
template <class Weights, std::uint32_t rows, std::uint32_t most, bool aligned, class Job>
__device__ __forceinline__ void run_job(Stage<stage_floats(most)>& stage, const Job& job, std::uint32_t block,
                                        std::uint32_t blocks) {
  constexpr std::uint32_t floats = stage_floats(most);
  auto tiles = [&](auto constant, std::uint32_t left) {
    constexpr std::uint32_t tokens = decltype(constant)::value, outputs = rows / Job::rows;  // of a warp at a time
    using P = Products<Weights, rows, tokens, aligned, floats>;
    for (std::uint32_t tile = block; tile * product_warps * outputs < job.outputs(); tile += blocks) {
      const std::uint32_t first = (tile * product_warps + threadIdx.x / lanes) * outputs;
      auto row = [&](std::uint32_t r) { return job.row(first + r / Job::rows, r % Job::rows); };
      if (tile != block) __syncwarp();  // the storage of reductions is used again
      float sum[rows][tokens];
      P::run(
          stage, job.place, row, tile == block, [&] { job.ready(); }, sum);
      if (threadIdx.x % lanes != 0) continue;
#pragma unroll
      for (std::uint32_t t = 0; t < tokens; ++t) {
#pragma unroll
        for (std::uint32_t o = 0; o < outputs; ++o) {
          if (t >= left || first + o >= job.outputs()) continue;
          float sums[Job::rows];
#pragma unroll
          for (std::uint32_t r = 0; r < Job::rows; ++r) sums[r] = sum[o * Job::rows + r][t];
          job.emit(first + o, stage.outputs[t], sums);
        }
      }
    }
  };
  const std::uint32_t count = job.inputs();
  for (std::uint32_t first = 0; first < count; first += most) {
    const std::uint32_t left = count - first < most ? count - first : most, i = threadIdx.x;
    if (first > 0) __syncthreads();  // the block's slower warps still use `inputs` and `outputs`
    if (i < most_tokens) stage.inputs[i] = i < left ? job.input(first + i, stage.outputs[i]) : nullptr;
    if constexpr (most < 8) {
      tiles(std::integral_constant<std::uint32_t, most>{}, left);
    } else if (left == 1) {
      tiles(std::integral_constant<std::uint32_t, 1>{}, left);
    } else if (left == 2) {
      tiles(std::integral_constant<std::uint32_t, 2>{}, left);
    } else if (left <= 4) {
      tiles(std::integral_constant<std::uint32_t, 4>{}, left);
    } else {
      tiles(std::integral_constant<std::uint32_t, 8>{}, left);
    }
  }
}

/// Blocks that share `tiles` of a launch's `all`. Once there are more than a GPU holds, each block does several with
/// the inputs that it has, if whole inputs of so many columns fit into its shared memory.
inline std::uint32_t blocks_for(std::uint32_t tiles, std::uint64_t all, std::uint32_t columns, std::uint32_t most) {
  const bool held = columns <= stage_floats(most) / most;
  return shares(tiles, !held || all < 1024 ? 1 : all < 4096 ? 2 : 4);
}

/// From so many blocks on a warp takes 4 rows of weights instead of 2: they share an input, but a GPU should have some
/// blocks for every multiprocessor.
inline constexpr std::uint64_t enough_blocks = 256;

}  // namespace ferry::engine::cuda::part
