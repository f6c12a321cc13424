/// @file
/// Options about models that several commands have.
#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "inference/model.hpp"
#include "stacks/stack_options.hpp"

namespace ferry::engine {

struct ModelFlags {
  std::string model = "tiny-qwen-moe", gates, store, verify, host_memory, quantizer = "nearest", activations = "float",
              kv_cache = "f32", device = "cpu";
  std::uint32_t threads = 0;  ///< that compute; 0: one a processor
  bool pin_threads = false;

  void add_model(CLI::App* command);
  /// Whether its files are held against a list first.
  void add_verify(CLI::App* command);
  /// Does so, if that was asked for. Throws InputError, or Interrupted.
  void check(const Checkpoint& checkpoint) const;
  /// Where the model runs: otherwise on the CPU.
  void add_device(CLI::App* command);
  /// The others: where the experts are, and how many threads compute.
  void add_experts(CLI::App* command);
  /// What stacks will run with, as a user gives it; nothing: all precisions that they may copy are needed.
  struct Budgets {
    std::vector<std::string> each;
    std::string device_memory;  ///< instead
  };
  /// The files that `open` reads.
  [[nodiscard]] std::vector<std::string> inputs() const;
  /// How many of the `all` bytes of experts host memory holds at once, beside `others` of other weights. Throws InputError.
  [[nodiscard]] std::uint64_t host_bytes(std::uint64_t all, std::uint64_t others) const;
  /// Reads the model, has its experts as these stacks need them, and fills host memory with what is on disk if all of it
  /// goes there. Throws InputError, or Interrupted.
  [[nodiscard]] std::unique_ptr<Model> open(const std::vector<StackOptions>& stacks, const Budgets& budgets) const;
};

}  // namespace ferry::engine
