/// @file
/// Files that come with ferry.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace ferry::engine {

/// Where models, machines and shapes are: beside an installed `ferry`, or in the source tree.
std::filesystem::path data_directory();

/// Names of the JSON files in a folder of it, in order. Throws InputError if there are none.
std::vector<std::string> data_names(const std::string& folder);

/// One of them by name, or a file of the user's own by path (anything with a slash or ending in .json). `kind` names it
/// in the InputError for an unknown name, which suggests the nearest.
std::filesystem::path data_file(const std::string& folder, const std::string& kind, const std::string& name_or_path);

/// A text of many kinds, for commands that need any text: stories, sums, programs, verse, a dialogue, a table.
std::filesystem::path bundled_text();

/// Names of the bundled models, in order.
std::vector<std::string> model_names();

/// The user's own folder for models, which the environment's FERRY_MODELS says; empty: none is named. Throws InputError if
/// there is no such folder.
std::filesystem::path models_folder();
/// Names of the models there, as `find_model` takes them, in order: MODEL or MAKER/MODEL, of folders and of GGUF files.
std::vector<std::string> own_model_names();

/// A folder or file, a bundled model by its name, or one in the user's folder for models; of a GGUF file there the
/// ending may be left out. Throws InputError if there is none of them.
std::filesystem::path find_model(const std::string& name);
/// The last part of such a name.
std::string model_name(const std::string& model);

}  // namespace ferry::engine
