/// @file
/// Models for the GPU's benchmark: layers of real ones, weights that are made up, no checkpoint of their size.
#pragma once
#include <cstdint>
#include <string>

#include "gpu.hpp"
#include "inference/model.hpp"

namespace ferry::bench {

/// Memory from the system, in large pages if it grants them.
class Pages {
 public:
  /// Throws InputError if there is not enough.
  explicit Pages(std::uint64_t bytes);
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages();
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

/// A model's shape as its config.json has it.
struct DecodeShape {
  std::string name;
  Json config;

  [[nodiscard]] bool shared() const { return config.contains("shared_expert_intermediate_size"); }
  [[nodiscard]] std::uint32_t number(const char* field) const { return config.at(field).get<std::uint32_t>(); }
  [[nodiscard]] std::uint32_t layers() const { return number("num_hidden_layers"); }
  [[nodiscard]] std::uint32_t experts() const { return number(shared() ? "num_experts" : "num_local_experts"); }
  [[nodiscard]] engine::ExpertLayout layout() const {
    return {number("hidden_size"), number(shared() ? "moe_intermediate_size" : "intermediate_size"),
            engine::DType::bf16};
  }
  /// The bytes that every token needs in a model of `layers` layers.
  [[nodiscard]] std::uint64_t dense_bytes(std::uint32_t layers) const;
};

/// Mixtral-8x7B and Qwen1.5-MoE-A2.7B. `quick`: with layers small enough for the emulation.
DecodeShape mixtral_shape(bool quick);
DecodeShape qwen_shape(bool quick);

/// So many tokens have rows in the embedding and the head that are not zero. Of the other weights that every token needs,
/// only norms are not zero.
inline constexpr std::uint32_t tokens_used = 64;

/// Every expert in host memory of its own. Throws InputError if there is not enough.
engine::ModelFiles make_files(const DecodeShape& shape, std::uint32_t layers);

}  // namespace ferry::bench
