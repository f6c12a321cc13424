/// @file
/// Models that are too large to hold here: what a simulation needs to know of them.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ferry/allotment.hpp"
#include "ferry/sim/costs.hpp"

namespace ferry::engine {

/// A model's shape and the work of its layers.
struct ModelFacts {
  std::string name;
  ModelShape model;             ///< with the bytes of an expert at every precision; max_rows 1
  std::vector<LayerWork> work;  ///< one for all layers, or one a layer
};

/// Throws InputError, naming `where`, for more than 2^24 experts in all: tables of them would not fit into memory.
void check_size(const ModelShape& model, const std::string& where);

/// Names of the shape files that come with ferry.
std::vector<std::string> shape_names();

/// By name, or by path to a file of the user's own (anything with a slash or ending in .json). `bits`: of every weight,
/// instead of what the file says. Throws InputError for an unknown name (suggesting the nearest) or a file that does
/// not say enough.
ModelFacts read_shape(const std::string& name_or_path, std::optional<double> bits = {});

/// The work of one layer: attention with `attention_weights`, a gate, a shared expert of width `shared_width`, routed
/// experts of width `expert_width`. Two operations a weight and row; keys and values are left out. Activations are floats.
LayerWork layer_work(std::uint64_t hidden, std::uint64_t experts, std::uint64_t attention_weights,
                     std::uint64_t shared_width, std::uint64_t expert_width, double dense_bits);

/// Bytes of one expert at a precision: the mean over all experts, where layers differ; 0: not stored at it everywhere.
std::uint64_t mean_expert_bytes(const ModelShape& model, Precision precision);

/// Bytes of one expert by precision: the model's own at `bits` a weight, and those below it as ferry stores them.
ExpertBytes expert_bytes(std::uint64_t hidden, std::uint64_t expert_width, double bits);

}  // namespace ferry::engine
