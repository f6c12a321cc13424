/// @file
/// The CPU as the device: slots are an arena in host memory.
#pragma once
#include <memory>

#include "inference/expert_device.hpp"
#include "inference/expert_runner.hpp"

namespace ferry::engine {

/// With a copy thread as the link, or on the virtual clock if the options have costs for it.
std::unique_ptr<ExpertDevice> make_cpu_device(const DeviceNeeds& needs, const RunnerOptions& options);

}  // namespace ferry::engine
