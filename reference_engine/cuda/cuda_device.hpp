/// @file
/// A GPU as the device: slots in its memory, copies on a stream of their own.
#pragma once
#include <memory>

#include "cuda/workspace.hpp"
#include "inference/expert_device.hpp"
#include "inference/expert_runner.hpp"

namespace ferry::engine::cuda {

/// Computes from `work.normed`, and adds what experts give to `work.x` (partial sums, on top of it, go to
/// `work.partial`). `pinned`: whether all that the source gives out is page-locked. `work` outlives it.
/// Throws InputError if the device has no room for the slots.
std::unique_ptr<ExpertDevice> make_cuda_device(Workspace& work, const DeviceNeeds& needs, const RunnerOptions& options,
                                               bool pinned);

}  // namespace ferry::engine::cuda
