#include "cuda/cuda.hpp"
#include "support/errors.hpp"

namespace ferry::engine {

std::string no_cuda() {
  return "this build has no CUDA device: configure with the toolkit's nvcc on the PATH (-DFERRY_CUDA=ON says why not)";
}

std::unique_ptr<Model> make_cuda_model(ModelFiles&& /*files*/) {
  throw InputError(no_cuda());
}

}  // namespace ferry::engine
