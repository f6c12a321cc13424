/// @file
/// What llama.cpp's models are called and made of in GGUF files, in the words of config.json.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/gguf.hpp"
#include "checkpoint/model_config.hpp"

namespace ferry::engine {

/// The files of a model: the one named, or if its metadata says that it is one of several, all of them.
std::vector<std::unique_ptr<Gguf>> open_gguf(const std::filesystem::path& path);

/// What config.json would say. Throws InputError that names what is missing, or the architecture that is not supported.
ModelConfig read_gguf_config(const std::filesystem::path& path);

/// Whether layers have norms behind attention and experts beside those before.
bool has_norms_behind(const std::vector<std::unique_ptr<Gguf>>& files);
/// The name that a tensor has in folders, "model.layers.3.mlp.gate.weight"; its own where it is not known.
std::string folder_name(const std::string& gguf_name, bool norms_behind = false);

}  // namespace ferry::engine
