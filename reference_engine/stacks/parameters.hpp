/// @file
/// The parameters of stacks, once: how users name them, which values they have and what they set. The command's flags,
/// stack files, sweeps, reports and calibration read this table. A parameter that is new takes a member of StackOptions,
/// a row here, a line in each_parameter (stack_config.hpp), and its place in the rows of the stacks that take it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "stacks/stack_options.hpp"
#include "support/json.hpp"

namespace ferry::engine {

struct Parameter {
  // What values it has, and the member that they go to.
  struct Number {  ///< any from `least` to `most`; a percentage may be written with its sign
    std::optional<float> StackOptions::*member;
    double least = 0, most = 1;
    bool percent = false;
  };
  struct Whole {  ///< a whole number
    std::optional<std::uint32_t> StackOptions::*member;
    std::uint32_t least, most;
  };
  struct OneOf {  ///< one of a few numbers
    std::optional<std::uint32_t> StackOptions::*member;
    std::vector<std::uint32_t> values;
  };
  struct Thousandths {  ///< four, 1000 in all
    std::optional<CacheWeights> StackOptions::*member;
  };
  struct Words {  ///< one of a few words, each for a value of the member
    using Value = std::variant<PoolChoice, PlacementChoice, bool>;
    ParameterMember member;
    std::vector<std::pair<std::string, Value>> values;
  };

  std::string name;  ///< in stack files, sweeps and reports; with two dashes it is the command's flag
  std::variant<Number, Whole, OneOf, Thousandths, Words> values;
  std::string unset;  ///< what stands for it where it is not given, in words
  std::string what;   ///< for help

  [[nodiscard]] ParameterMember member() const;
  [[nodiscard]] std::string flag() const { return "--" + name; }
  /// How many numbers or words one value is. Of those with one a sweep can have a list.
  [[nodiscard]] std::size_t size() const;
  /// "a number from 0 to 1".
  [[nodiscard]] std::string expected() const;
  /// "0..1", for help.
  [[nodiscard]] std::string range() const;
  /// Sets the member, unless the value is of another kind or out of range: then false.
  [[nodiscard]] bool set(StackOptions& options, const Json& value) const;

  /// A value, as stack files and reports have it. Throws InputError, which names the flag, for what is none.
  [[nodiscard]] Json read(const std::vector<std::string>& words) const;
  [[nodiscard]] Json read(const Json& number_or_word) const;

 private:
  [[nodiscard]] Json checked(Json value, const std::string& text) const;
};

/// In the order in which help lists them.
const std::vector<Parameter>& all_parameters();

/// The row of that name. Throws InputError for an unknown one, which begins with `where`, and suggests the nearest.
const Parameter& find_parameter(const std::string& name, const std::string& where);

/// The row of that member.
const Parameter& parameter_of(const ParameterMember& member);

/// Sets what `parameters` has. Throws InputError for unknown names, wrong kinds and what is out of range; `where`
/// begins the message.
void set_parameters(StackOptions& options, const Json& parameters, const std::string& where);

}  // namespace ferry::engine
