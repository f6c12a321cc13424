/// @file
/// As much of CUB as Ferry uses.
#pragma once
#include "block/block_reduce.cuh"
#include "warp/warp_reduce.cuh"
