/// @file
/// What one rendering has used up so far, and where it is: every operation on values reports to it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/value.hpp"

namespace ferry::engine::jinja {

/// Templates come from strangers. These bounds are far above what a conversation needs.
inline constexpr std::size_t most_steps = 20'000'000;
inline constexpr std::size_t longest_text = 64U << 20U;
inline constexpr std::size_t most_bytes = 256U << 20U;  ///< of values that live at the same time
inline constexpr std::uint32_t deepest_value = 256;
inline constexpr std::uint32_t deepest_recursion = 1500;
inline constexpr std::size_t most_kept = 100'000;  ///< namespaces, or calls whose variables outlive them

using Clock = std::function<std::tm()>;

class Namespace;

class Rendering {
 public:
  Rendering(std::string name, Clock clock) : name_(std::move(name)), clock_(std::move(clock)) {}
  Rendering(const Rendering&) = delete;
  Rendering& operator=(const Rendering&) = delete;
  ~Rendering();

  /// The line that errors name from now on.
  void at(std::uint32_t line) { line_ = line; }
  [[nodiscard]] std::uint32_t line() const { return line_; }
  /// Throws InputError, with the template's name and the line before it.
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void fail_undefined(const Value& value) const;

  /// A step is about a node, an item of a list or a line of text.
  void work(std::size_t steps = 1) {
    steps_ += steps;
    if (steps_ > most_steps) too_much_work();
  }
  void work_on_text(std::size_t bytes) { work(bytes / 256); }
  /// Refuses what is about to be made if it is too large.
  void room_for(std::size_t items, std::size_t bytes_each) const;
  void room_for_text(std::size_t bytes) const;

  Value text(std::string text, bool safe = false);
  Value list(Values items) { return List{hold(std::move(items))}; }
  Value tuple(Values items) { return Tuple{hold(std::move(items))}; }
  /// Fails for keys that no dict can have.
  Value dict(std::vector<std::pair<Value, Value>> entries);

  template <class T, class... Given>
  std::shared_ptr<T> make(std::uint32_t depth, Given&&... given) {
    check_depth(depth);
    room_for(1, sizeof(T) + overhead);
    auto made = std::make_shared<T>(std::forward<Given>(given)...);
    made->depth = depth;
    made->charge = Charge(account_, sizeof(T) + overhead);
    return made;
  }

  /// Namespaces change and may hold themselves: they are emptied at the end.
  void keep(std::shared_ptr<Namespace> made);

  [[nodiscard]] Account& account() { return account_; }
  [[nodiscard]] std::tm now() const { return clock_(); }

  /// Counts what recurses.
  class Deeper {
   public:
    explicit Deeper(Rendering& run) : run_(run) {
      if (++run_.recursion_ > deepest_recursion) run_.too_deep();
    }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    ~Deeper() { --run_.recursion_; }

   private:
    Rendering& run_;
  };

 private:
  static constexpr std::size_t overhead = 64;  // of an allocation with its counters

  std::shared_ptr<const ListData> hold(Values items);
  void check_depth(std::uint32_t depth) const;
  [[noreturn]] void too_much_work() const;
  [[noreturn]] void too_deep();

  Account account_;
  std::string name_;
  Clock clock_;
  std::uint32_t line_ = 1, recursion_ = 0;
  std::size_t steps_ = 0;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

/// A text that grows, on the account, and not without end.
class TextBuilder {
 public:
  explicit TextBuilder(Rendering& run) : run_(run), charge_(run.account(), 0) {}

  void add(std::string_view text) {
    run_.room_for_text(text_.size() + text.size());
    run_.work_on_text(text.size());
    charge_.grow(text.size());
    text_ += text;
  }
  void add(std::size_t times, char c);
  [[nodiscard]] const std::string& text() const { return text_; }
  /// Empty afterwards.
  std::string take() {
    charge_ = Charge(run_.account(), 0);
    return std::exchange(text_, {});
  }

 private:
  Rendering& run_;
  std::string text_;
  Charge charge_;
};

/// Gives each parameter of a function its argument, as Python's calls do.
class Parameters {
 public:
  /// The first `required` must be given. `function` begins the messages.
  Parameters(Rendering& run, std::string function, const Arguments& given, std::vector<std::string_view> names,
             std::size_t required);

  [[nodiscard]] bool has(std::size_t index) const { return given_[index] != nullptr; }
  [[nodiscard]] const Value& at(std::size_t index) const { return *given_[index]; }
  [[nodiscard]] Value value_or(std::size_t index, Value fallback) const {
    return has(index) ? at(index) : std::move(fallback);
  }
  /// The text; of an argument that may be none or absent, the fallback.
  [[nodiscard]] const TextData& text(std::size_t index) const;
  [[nodiscard]] std::int64_t whole(std::size_t index) const;
  [[nodiscard]] std::int64_t whole_or(std::size_t index, std::int64_t fallback) const {
    return has(index) ? whole(index) : fallback;
  }
  [[nodiscard]] bool flag_or(std::size_t index, bool fallback) const;

 private:
  Rendering& run_;
  std::string function_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> given_;
};

}  // namespace ferry::engine::jinja
