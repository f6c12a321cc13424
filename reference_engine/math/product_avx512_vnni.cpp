// Products of activations of 8 bits on processors with AVX-512 F, BW and VNNI.
#if defined(__x86_64__)
#include <immintrin.h>
#define FERRY_LANES_TARGET gnu::target("avx512f,avx512bw,avx512vnni"),
#include "math/int8_lanes_avx512.hpp"

const ferry::engine::part::Int8Kernel ferry::engine::part::avx512_int8_kernel =
    ferry::engine::make_int8_kernel<ferry::engine::Avx512Int8Lanes>();
#endif
