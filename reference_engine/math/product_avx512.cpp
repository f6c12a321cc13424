// Products on processors with AVX-512 F.
#if defined(__x86_64__)
#include <immintrin.h>
#define FERRY_LANES_TARGET gnu::target("avx512f"),
#include "math/lanes_avx512.hpp"

const ferry::engine::part::ProductKernel ferry::engine::part::avx512_kernel =
    ferry::engine::make_kernel<ferry::engine::Avx512Lanes>();
#endif
