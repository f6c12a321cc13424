/// @file
/// Everything that needs nothing beside the standard library. Each header also compiles alone: include the
/// ones that you use. Not here: predictor/gate_bank.hpp (Eigen) and link/host_thread.hpp (a thread library).
#pragma once
#include "ferry/link/virtual_clock.hpp"
#include "ferry/pipeline.hpp"
#include "ferry/sim/bounds.hpp"
#include "ferry/stacks.hpp"
