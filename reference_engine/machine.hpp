/// @file
/// Other people's machines, imitated by slowing the link down.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "host_model.hpp"

namespace ferry::engine {

/// Where models and machine files are: beside an installed `ferry`, or in the source tree.
std::filesystem::path data_directory();

/// A machine, by what offloading feels of it: how long an expert of its reference model takes to cross its
/// link, against how long that model's decode computes a layer there. The file names a source for each number.
struct Machine {
  std::string name;
  std::string reference_model, precision;
  double expert_transfer_s = 0, layer_compute_s = 0;

  [[nodiscard]] double ratio() const { return expert_transfer_s / layer_compute_s; }
};

/// Names of the machine files that come with ferry.
std::vector<std::string> machine_names();

/// By name, or by path to a file of the user's own (anything with a slash or ending in .json).
/// Throws InputError for an unknown name (suggesting the nearest) or a file that does not say enough.
Machine read_machine(const std::string& name_or_path);

/// What one decode layer takes on this processor with every expert resident, by running some tokens.
double measure_decode_layer_s(HostModel& model);

/// The throttle, in bytes a second, at which expert transfer : layer compute is as on that machine.
std::uint64_t throttle_bytes_per_s(const Machine& machine, std::uint64_t expert_bytes, double decode_layer_s);

}  // namespace ferry::engine
