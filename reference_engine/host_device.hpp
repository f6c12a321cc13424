/// @file
/// The host's processor as the device: slots are an arena in host memory.
#pragma once
#include <memory>

#include "expert_device.hpp"
#include "expert_runner.hpp"

namespace ferry::engine {

/// With a copy thread as the link, or on the virtual clock if the options have costs for it.
std::unique_ptr<ExpertDevice> make_host_device(const DeviceNeeds& needs, const RunnerOptions& options);

}  // namespace ferry::engine
