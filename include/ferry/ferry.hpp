/// @file
/// Everything that needs nothing beside the standard library. Each header also compiles alone: include the
/// ones that you use. Not here: gate/gate_bank.hpp (Eigen), gate/gate_worker.hpp (Eigen and a thread
/// library), link/host_thread.hpp (a thread library) and link/cuda_stream.hpp (CUDA).
#pragma once
#include "ferry/any_pipeline.hpp"
#include "ferry/cache/belady.hpp"
#include "ferry/cache/fld.hpp"
#include "ferry/cache/lhu.hpp"
#include "ferry/cache/random.hpp"
#include "ferry/cache/sieve.hpp"
#include "ferry/codec/blocks.hpp"
#include "ferry/codec/hqq.hpp"
#include "ferry/codec/pass_through.hpp"
#include "ferry/gate/gate_rule.hpp"
#include "ferry/link/command_buffer.hpp"
#include "ferry/link/virtual_clock.hpp"
#include "ferry/pipeline.hpp"
#include "ferry/predictor/oracle.hpp"
#include "ferry/sim/simulation.hpp"
#include "ferry/stacks.hpp"
