/// @file
/// Measuring the machine that this runs on.
#pragma once
#include <atomic>
#include <functional>
#include <string>

#include "support/json.hpp"

namespace ferry::engine {

class Model;

/// Measures, and returns a machine file: what read_machine reads. Device and host are both this processor, and the link
/// is a copy thread: what `ferry run` has here. Effective speeds are medians of repeated measurements, peaks the best
/// of them. `progress(done, total)`: returns false to stop, upon which the result is null.
Json calibrate_machine(const std::string& name,
                       const std::function<bool(std::uint64_t done, std::uint64_t total)>& progress);

/// What one decode layer takes on this processor with every expert resident, by running some tokens.
double measure_decode_layer_s(Model& model);

}  // namespace ferry::engine
