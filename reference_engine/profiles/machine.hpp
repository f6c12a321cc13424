/// @file
/// Other people's machines: imitated by slowing the link down, or simulated.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ferry/sim/costs.hpp"
#include "profiles/shape.hpp"
#include "support/bundled_files.hpp"
#include "support/json.hpp"

namespace ferry::engine {

/// Whose numbers a simulation takes: what software reaches there in practice, what the data sheets promise, or what a
/// paper states of its own runs.
enum class CostSource { effective, peak, stated };

/// A machine file: peak and effective speeds of its parts, and what a paper states. Each number names its source there.
struct Machine {
  struct Speed {
    double peak = 0, effective = 0;
  };
  struct Stated {
    ModelFacts reference;
    std::filesystem::path reference_file;  ///< which the reference was read from
    double expert_transfer_s = 0;          ///< one expert of the reference model over the link
    double layer_compute_s = 0;            ///< one layer of its decode with every expert resident
  };

  std::string name;
  Speed link, device_memory, device_compute, host_memory, host_compute;  ///< a second: bytes, or operations
  double link_latency_s = 0, device_launch_s = 0, host_launch_s = 0;
  double device_bytes = 0;  ///< of its memory; 0: the file does not say
  /// Shares of their speed: what a copy on the link leaves to the host's memory, and what the computing host leaves to the
  /// link.
  double host_beside_copies = 1, link_beside_host = 1;
  double activations_latency_s = 0, activations_bytes_per_s = 0;  ///< to the host or back
  std::optional<Stated> stated;

  /// How long an expert takes to cross, against how long a decode layer computes: what offloading feels of a machine.
  /// As stated, or else of Mixtral-8x7B at effective speeds.
  [[nodiscard]] double ratio() const;
  /// The reference model of that ratio.
  [[nodiscard]] std::string reference_model() const;

  /// What this machine takes for that work. `stated`: the link as fast as the paper's expert_transfer_s makes it; and the
  /// time by which its layer_compute_s exceeds what the effective speeds give for the reference model is what their
  /// software costs, spread evenly over the starts of a layer (its dense work and k experts), the host's too. Throws
  /// InputError for `stated` where the file states nothing.
  [[nodiscard]] Costs costs(const std::vector<LayerWork>& work, CostSource source) const;
};

/// The `costs` of a machine for `reference`, made to fit a smaller model whose experts are to count as large as the
/// reference's: the same times for as many experts, whatever their bytes. A tiny model's routing needs this to be worth a
/// simulation.
Costs as_if(Costs costs, const ModelFacts& reference, const ModelShape& model);

/// Names of the machine files that come with ferry.
std::vector<std::string> machine_names();

/// By name, or by path to a file of the user's own (anything with a slash or ending in .json).
/// Throws InputError for an unknown name (suggesting the nearest) or a file that does not say enough.
Machine read_machine(const std::string& name_or_path);
/// What such a file holds; `where_from` names it in the InputError.
Machine read_machine(const Json& root, const std::string& where_from);

/// The throttle, in bytes a second, at which expert transfer : layer compute is as on that machine.
std::uint64_t throttle_bytes_per_s(const Machine& machine, std::uint64_t expert_bytes, double decode_layer_s);

}  // namespace ferry::engine
