// A machine file in the form that read_machine wants.
#pragma once
#include <string>

namespace ferry::test {

/// 1 GB/s and 1 Gflop/s effective everywhere, twice that at peak; states these times for Mixtral-8x7B.
inline std::string machine_file(const std::string& name, const std::string& expert_transfer_s,
                                const std::string& layer_compute_s) {
  auto number = [](const std::string& value) { return "{\"value\":" + value + ",\"source\":\"test\"}"; };
  auto speed = [&](const std::string& unit) {
    return "{\"peak_" + unit + "\":" + number("2e9") + ",\"effective_" + unit + "\":" + number("1e9");
  };
  return "{\"name\":\"" + name + "\",\"link\":" + speed("bytes_per_s") + ",\"latency_s\":" + number("0") +
         "},\"device_memory\":" + speed("bytes_per_s") + "},\"device_compute\":" + speed("flops") +
         "},\"device_launch_s\":" + number("1e-6") + ",\"host_memory\":" + speed("bytes_per_s") +
         "},\"host_compute\":" + speed("flops") +
         "},\"stated\":{\"reference_model\":\"mixtral-8x7b\",\"bits_per_weight\":16,\"expert_transfer_s\":" +
         number(expert_transfer_s) + ",\"layer_compute_s\":" + number(layer_compute_s) + "}}";
}

}  // namespace ferry::test
