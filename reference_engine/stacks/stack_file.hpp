/// @file
/// Files that stand for a stack with parameters: what `ferry calibrate` writes, or a user.
#pragma once
#include <string>
#include <vector>

#include "support/json.hpp"

namespace ferry::engine {

/// What a command calls a stack: the name of a policy stack, or a file that names one with parameters:
/// `{"stack": "hobbit", "parameters": {"t1": 0.55, "t2": 0.9}, "calibrated": {...}}`. Parameters are those of
/// parameters.hpp; `calibrated` is for people.
struct NamedStack {
  std::string file;                  ///< its path, or empty
  std::string label;                 ///< for reports: the name, or the file's without its extension
  std::string policies;              ///< the policy stack's name
  Json parameters = Json::object();  ///< checked: the policy stack takes them, and they are in range
  std::string calibrated;            ///< the file of ferry's own that the parameters are from, or empty
};

/// Whether a stack is named by a file: with a slash, or ending in .json.
bool is_stack_file(const std::string& name);

/// Throws InputError, for a file naming it and the field.
NamedStack read_stack(const std::string& name);

/// The same; a policy stack's name has the parameters that were calibrated for that model and come with ferry
/// (calibrated/MODEL/STACK.json), if there are any.
NamedStack read_stack(const std::string& name, const std::string& model);

/// The stack's parameters, before those of `given` go over them. Calibrated thresholds are a pair: who gives one of T1 and
/// T2 does not get the other of somebody's calibration, which may lie on its wrong side.
Json own_parameters(const NamedStack& stack, const Json& given);

/// The stack's parameters with those of `given` over them, as far as it takes them: what a report says of it. Throws
/// what set_parameters throws.
Json parameters_of(const NamedStack& stack, const Json& given);

/// Throws InputError for a file's label that another file, or a stack, has too.
void check_labels(const std::vector<NamedStack>& stacks);

}  // namespace ferry::engine
