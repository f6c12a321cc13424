#include "checkpoint/rope.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "support/errors.hpp"

namespace ferry::engine {
namespace {

/// YaRN's factor for the temperature of attention.
double mscale_of(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

/// Reads one rope_type field by field, so that no field that changes the result is missed.
class RopeReader {
 public:
  RopeReader(const Fields& config, const Fields& rope, const RopeNeeds& needs)
      : config_(config), rope_(rope), needs_(needs) {}

  Rope read(const std::string& type, double theta, double partial) {
    made_.theta = theta;
    made_.neighbours = needs_.neighbours;
    const bool proportional =
        type == "proportional" && needs_.layer_type != nullptr;  // heads keep their width; the rest has frequency 0
    // A share that was computed by a division may be rounded down: 1e-9 makes up for it.
    made_.width = proportional ? needs_.head_dim : static_cast<std::uint32_t>(needs_.head_dim * (partial + 1e-9));
    if (made_.width < 2 || made_.width % 2 != 0) {
      throw InputError(
          fmt::format("{}: positions turn {} of the {} columns of a head, expected an even number, 2 at least",
                      config_.where(), made_.width, needs_.head_dim));
    }
    if (needs_.sections) {  // which position of an image rotates which columns; for text all positions are the same
      for (const char* name : {"mrope_section", "mrope_interleaved"}) static_cast<void>(rope_.has(name));
    }
    if (needs_.tuning) {
      static_cast<void>(rope_.has("max_position_embeddings"));  // which is said once more
      made_.tuning = optional("llama_4_scaling_beta");
      const bool has_own = type == "yarn" || type == "longrope" || type == "su" || type == "llama3";
      if (has_own) {
        made_.tuning_floor = original();
      } else if (rope_.has(original_name) || made_.tuning > 0) {
        made_.tuning_floor = rope_.whole(original_name, 1, 1U << 28U);
      }
    }
    if (type == "default") {
      frequencies(theta);
    } else if (proportional) {
      frequencies(theta, rope_.has("factor") ? rope_.number("factor", 0) : 1);
      const auto turned = static_cast<std::size_t>(partial * needs_.head_dim / 2);
      std::fill(made_.frequency.begin() + static_cast<std::ptrdiff_t>(turned), made_.frequency.end(), 0);
    } else if (type == "linear") {
      frequencies(theta, rope_.number("factor", 0));
    } else if (type == "dynamic") {
      dynamic(theta);
    } else if (type == "yarn") {
      yarn(theta);
    } else if (type == "longrope" || type == "su") {
      long_rope(theta);
    } else if (type == "llama3") {
      llama3(theta);
    } else {
      rope_.refuse(rope_.has("rope_type") ? "rope_type" : "type",
                   needs_.layer_type != nullptr
                       ? "\"default\", \"proportional\", \"linear\", \"dynamic\", \"yarn\", \"longrope\" or \"llama3\""
                       : "\"default\", \"linear\", \"dynamic\", \"yarn\", \"longrope\" or \"llama3\"");
    }
    return made_;
  }

 private:
  /// A pair's wavelength divided by that of the first pair. Each step is in single precision, as in the models' own code: at
  /// position 100,000 the last bit makes a hundredth of a radian.
  [[nodiscard]] float longer(double theta, std::uint32_t pair) const {
    const float share = static_cast<float>(2 * pair) / static_cast<float>(made_.width);
    return static_cast<float>(std::pow(static_cast<double>(static_cast<float>(theta)), static_cast<double>(share)));
  }

  void frequencies(double theta, double divisor = 1) {
    made_.frequency.clear();
    for (std::uint32_t i = 0; i < made_.width / 2; ++i) {
      made_.frequency.push_back(static_cast<double>(1.0F / longer(theta, i)) / divisor);
    }
  }

  /// Changes only texts longer than the context, which this engine does not run. With a fixed `alpha`, as in Hunyuan's files,
  /// it scales the base, for all lengths.
  void dynamic(double theta) {
    const bool fixed = needs_.alpha && rope_.has("alpha");
    made_.within_context = !fixed;
    if (rope_.has("factor")) static_cast<void>(rope_.number("factor", 0));
    const double alpha = fixed ? rope_.number("alpha", 0) : 1;
    // Hunyuan's files have these fields, but its makers' code does not read them for this type.
    for (const char* name : {"beta_fast", "beta_slow", "mscale", "mscale_all_dim"}) {
      if (needs_.alpha) static_cast<void>(rope_.has(name));
    }
    frequencies(theta * std::pow(alpha, made_.width / (made_.width - 2.0)));
  }

  static constexpr const char* original_name = "original_max_position_embeddings";
  /// If the top level has the field too, its value wins, as in transformers, except for Phi-MoE. If each type of layers has
  /// a rope of its own, transformers ignores the top level.
  double original() const {
    const char* const name = original_name;
    if (needs_.layer_type != nullptr) return rope_.whole(name, 1, 1U << 28U);
    const std::uint32_t inside = rope_.has(name) ? rope_.whole(name, 1, 1U << 28U) : needs_.context;
    const std::uint32_t outside = config_.has(name) ? config_.whole(name, 1, 1U << 28U) : inside;
    return needs_.mscales && rope_.has(name) ? inside : outside;
  }

  void yarn(double theta) {
    const double length = original();
    const double factor = rope_.has("factor") ? rope_.number("factor", 0) : needs_.context / length;
    const double fast = rope_.has("beta_fast") ? rope_.number("beta_fast", 0) : 32;
    const double slow = rope_.has("beta_slow") ? rope_.number("beta_slow", 0) : 1;
    const double mscale = optional("mscale"), all = optional("mscale_all_dim");
    made_.factor = factor;
    made_.mscale_all_dim = all;
    const bool outside = needs_.layer_type == nullptr && config_.has(original_name);
    if (rope_.has(original_name) || outside) made_.stretched_context = length * factor;
    if (rope_.has("attention_factor")) {
      made_.scale = rope_.number("attention_factor", 0);
    } else {
      made_.scale = mscale != 0 && all != 0 ? mscale_of(factor, mscale) / mscale_of(factor, all) : mscale_of(factor, 1);
    }
    const double width = made_.width;
    auto turns_at = [&](double turns) {  // the column that turns so often in the original length
      return width * std::log(length / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
    };
    double low = turns_at(fast), high = turns_at(slow);
    const bool truncated = rope_.flag("truncate", !rope_.is_null("truncate"));  // null is false, as in Python
    if (!truncated && needs_.layer_type != nullptr) {
      rope_.refuse("truncate", "true, transformers does not read it where each type of layers has its own");
    }
    if (truncated) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, width - 1);
    if (low == high) high += 0.001;
    for (std::uint32_t i = 0; i < made_.width / 2; ++i) {  // in single precision, as `longer`
      const float ramp = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
      const float own = 1 - std::clamp(ramp, 0.0F, 1.0F), wave = longer(theta, i);
      const float stretched = 1 / (static_cast<float>(factor) * wave);
      made_.frequency.push_back(static_cast<double>(stretched * (1 - own) + 1 / wave * own));
    }
  }

  /// A number; 0 counts as absent, as in transformers.
  double optional(const char* name) const {
    if (!rope_.has(name)) return 0;
    const Json& value = rope_.at(name);
    return value.is_number() && value.get<double>() == 0 ? 0 : rope_.number(name, 0);
  }

  std::vector<double> factors(const char* name) const {
    const Json& list = rope_.at(name);
    std::vector<double> all;
    if (list.is_array()) {
      for (const Json& one : list) {
        if (one.is_number() && one.get<double>() > 0) all.push_back(one.get<double>());
      }
    }
    if (all.size() != made_.width / 2 || all.size() != list.size()) {
      rope_.refuse(
          name, fmt::format("a list of {} numbers above 0, half of the columns that positions turn", made_.width / 2));
    }
    return all;
  }

  void long_rope(double theta) {
    const double length = original();
    const std::vector<double> brief = factors("short_factor"), extended = factors("long_factor");
    const double factor = rope_.has("factor") ? rope_.number("factor", 0) : needs_.context / length;
    double scale = factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(length));
    if (rope_.has("attention_factor")) scale = rope_.number("attention_factor", 0);
    for (std::uint32_t i = 0; i < brief.size(); ++i) {
      made_.frequency.push_back(static_cast<double>(1.0F / (static_cast<float>(brief[i]) * longer(theta, i))));
      made_.long_frequency.push_back(static_cast<double>(1.0F / (static_cast<float>(extended[i]) * longer(theta, i))));
    }
    made_.long_from = static_cast<std::uint32_t>(length);
    made_.scale = needs_.mscales ? rope_.number("short_mscale", 0) : scale;
    made_.long_scale = needs_.mscales ? rope_.number("long_mscale", 0) : scale;
  }

  void llama3(double theta) {
    const double length = original(), factor = rope_.number("factor", 0);
    const double low = rope_.number("low_freq_factor", 0), high = rope_.number("high_freq_factor", 0);
    if (high < low) rope_.refuse("high_freq_factor", fmt::format("low_freq_factor, {}, at least", low));
    frequencies(theta);
    for (double& f : made_.frequency) {
      const double turns = length * f / (2 * std::numbers::pi);  // over the original length
      if (turns < low) {
        f /= factor;
      } else if (turns <= high && high > low) {
        const double smooth = (turns - low) / (high - low);
        f *= (1 - smooth) / factor + smooth;
      }
    }
  }

  const Fields &config_, &rope_;
  const RopeNeeds& needs_;
  Rope made_;
};

/// A field of rope_parameters or of the top level; where both have it, they agree.
std::optional<double> one_of_both(const Fields& config, const Fields* rope, const char* name) {
  const bool inside = rope != nullptr && rope->has(name), outside = config.has(name);
  if (inside && outside && config.number(name, 0) != rope->number(name, 0)) {
    config.refuse(name, fmt::format("{} as in rope_parameters, or none here", rope->number(name, 0)));
  }
  if (inside) return rope->number(name, 0);
  if (outside) return config.number(name, 0);
  return std::nullopt;
}

}  // namespace

Rope read_rope(const Fields& config, const RopeNeeds& needs) {
  // An empty object counts as absent, as in transformers. Files with a rope for each type of layers have only the new name.
  const bool older = needs.layer_type == nullptr && config.has("rope_scaling") && !config.at("rope_scaling").empty();
  std::string name = older ? "rope_scaling" : "rope_parameters";
  static const Json none = Json::object();
  const bool said = config.has(name);
  const Json* found = needs.absent != nullptr ? needs.absent : &none;
  if (said) found = &config.at(name);
  if (said && needs.layer_type != nullptr) {
    found = &Fields(*found, config.where() + ": " + name).at(needs.layer_type);
    name += fmt::format(": {}", needs.layer_type);
  }
  const Fields rope(*found, config.where() + ": " + name);
  std::string type = "default";
  for (const char* field : {"type", "rope_type"}) {
    if (!rope.has(field)) continue;
    if (!rope.at(field).is_string()) rope.refuse(field, "\"default\" or another type by its name");
    type = rope.text(field);
  }
  const Fields* inside = said || needs.absent != nullptr ? &rope : nullptr;
  std::optional<double> theta = one_of_both(config, inside, "rope_theta");
  if (!theta && needs.theta > 0) theta = needs.theta;
  const Fields& place = said ? rope : config;
  if (!theta) static_cast<void>(place.at("rope_theta"));  // throws by name if it is missing
  if (!theta) place.refuse("rope_theta", "a number above 0");
  if (type == "yarn" && *theta == 1) place.refuse("rope_theta", "another number, \"yarn\" divides by its logarithm");
  // Null is not the family's default: with null, transformers rotates whole heads.
  const double absent_partial = config.is_null("partial_rotary_factor") ? 1 : needs.partial;
  const double partial = one_of_both(config, inside, "partial_rotary_factor").value_or(absent_partial);
  const bool may_be_partial = needs.may_be_partial || (type == "proportional" && needs.layer_type != nullptr);
  if (partial > 1 || (!may_be_partial && partial != 1)) {
    const Fields& has = rope.has("partial_rotary_factor") ? rope : config;
    has.refuse("partial_rotary_factor", may_be_partial ? "at most 1" : "none, heads of this family turn as a whole");
  }
  const Rope made = RopeReader(config, rope, needs).read(type, *theta, partial);
  for (const std::string& field :
       rope.unread()) {  // transformers would ignore the field, and compute something that its writer did not mean
    rope.refuse(field, fmt::format("none, it means nothing to the type \"{}\"", type));
  }
  return made;
}

}  // namespace ferry::engine
