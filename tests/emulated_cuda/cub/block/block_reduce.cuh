/// @file
/// cub::BlockReduce: warps first, then the first thread combines what they left in shared memory. As with CUB, who
/// uses the storage again without a barrier may overwrite what the first thread still reads.
#pragma once
#include "../warp/warp_reduce.cuh"

namespace cub {

enum BlockReduceAlgorithm {
  BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
  BLOCK_REDUCE_RAKING,
  BLOCK_REDUCE_WARP_REDUCTIONS,
};

template <class T, int threads_x, BlockReduceAlgorithm algorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int threads_y = 1,
          int threads_z = 1>
class BlockReduce {
  static constexpr std::uint32_t threads = threads_x * threads_y * threads_z;
  static constexpr std::uint32_t warps = (threads + 31) / 32;

 public:
  struct TempStorage {
    T of_warp[warps];
  };
  explicit BlockReduce(TempStorage& storage) : storage_(storage) {
    if (blockDim.x != threads_x || blockDim.y != threads_y || blockDim.z != threads_z) {
      ferry::test::emulated::die_in_kernel("cub::BlockReduce is compiled for another number of threads");
    }
  }

  T Sum(T value) { return Reduce(value, ferry::test::emulated::Plus{}); }

  template <class Combine>
  T Reduce(T value, Combine combine) {
    namespace emulated = ferry::test::emulated;
    const std::uint32_t thread = emulated::thread_number();
    T result = emulated::reduce_lanes(emulated::lanes_of_warp(), value, combine);
    if (thread % 32 == 0) storage_.of_warp[thread / 32] = result;
    __syncthreads();
    if (thread == 0) {
      for (std::uint32_t w = 1; w < warps; ++w) result = combine(result, storage_.of_warp[w]);
      return result;
    }
    if constexpr (std::numeric_limits<T>::has_quiet_NaN) return std::numeric_limits<T>::quiet_NaN();
    return result;
  }

 private:
  TempStorage& storage_;
};

}  // namespace cub
