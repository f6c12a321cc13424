/// @file
/// The CUDA device, for commands: a build without the toolkit has it, too, and says that it is not there.
#pragma once
#include <memory>
#include <string>

#include "inference/model.hpp"

namespace ferry::engine {

/// Why no GPU can be used here, in a few words; empty: one can.
std::string no_cuda();

/// Loads what every token needs to the current GPU, and page-locks the experts' memory on the host.
/// Throws InputError if the GPU has no room, or for models that it does not compute.
std::unique_ptr<Model> make_cuda_model(ModelFiles&& files);

}  // namespace ferry::engine
