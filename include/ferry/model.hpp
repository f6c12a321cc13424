/// @file
/// The words that everything else uses: experts, variants, requests, copies, tasks, plans.
///
/// All of them are trivially copyable. Times are integer nanoseconds, sizes are bytes.
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>

#include "ferry/macros.hpp"

namespace ferry::inline FERRY_ABI {

/// What a View can be made from: a vector, an array, a span, any contiguous range with `data()` and `size()`.
template <class R, class T>
concept ContiguousRange = requires(R& range) {
  { range.data() } -> std::convertible_to<T*>;
  { range.size() } -> std::convertible_to<std::size_t>;
};

/// A contiguous range that is passed by value and works in device code (`std::span` is host-only there).
template <class T>
struct View {
  T* data = nullptr;       ///< the first element
  std::uint32_t size = 0;  ///< how many

  constexpr View() noexcept = default;
  /// So many from there.
  FERRY_HD constexpr View(T* first, std::uint32_t count) noexcept : data(first), size(count) {}
  /// On the host, of fewer than 2^32 elements. The view does not own them: a view of a temporary is valid only until the
  /// end of the call.
  template <class R>
  requires ContiguousRange<R, T>
  constexpr View(R&& range) noexcept : data(range.data()), size(static_cast<std::uint32_t>(range.size())) {}
  /// All of an array.
  template <std::size_t n>
  FERRY_HD constexpr View(T (&array)[n]) noexcept : data(array), size(static_cast<std::uint32_t>(n)) {}

  /// The first element.
  FERRY_HD constexpr T* begin() const noexcept { return data; }
  /// One past the last.
  FERRY_HD constexpr T* end() const noexcept { return data + size; }
  /// Element i, unchecked.
  FERRY_HD constexpr T& operator[](std::uint32_t i) const noexcept { return data[i]; }
  /// A view to read.
  template <std::same_as<const T> U>
  requires(!std::is_const_v<T>) FERRY_HD constexpr operator View<U>() const noexcept { return {data, size}; }
  /// So many elements from `first` on.
  FERRY_HD constexpr View part(std::uint32_t first, std::uint32_t count) const noexcept {
    return {data + first, count};
  }
};

/// A caller's buffer that a policy fills from the front.
template <class T>
struct Out {
  T* data = nullptr;           ///< the first element
  std::uint32_t capacity = 0;  ///< how many fit
  std::uint32_t size = 0;      ///< how many there are

  /// Appends; false (and nothing written) when the buffer is full.
  FERRY_HD constexpr bool push(const T& value) noexcept {
    if (size == capacity) return false;
    data[size++] = value;
    return true;
  }
  /// Appends a default value, to be filled in place: copying one in would wait for parts of it that were just written. Null
  /// when the buffer is full.
  FERRY_HD T* add() noexcept {
    if (size == capacity) return nullptr;
    return new (data + size++) T{};
  }
  /// What was appended.
  FERRY_HD constexpr View<T> view() const noexcept { return {data, size}; }
};

/// One routed expert of the model. Layers count MoE layers only, from 0.
struct ExpertId {
  /// The layer, and the index of the expert in it.
  std::uint16_t layer = 0, expert = 0;
  friend constexpr bool operator==(ExpertId, ExpertId) = default;
};

/// The precision in which an expert is stored or wanted, in ascending order.
enum class Precision : std::uint8_t {
  skip,  ///< only wanted, never stored: the expert is left out, unless a variant of it is there anyway
  int2,  ///< 2 bits a weight
  int4,  ///< 4 bits a weight
  int8,  ///< 8 bits a weight
  full   ///< the model's own
};
/// How many Precisions there are.
inline constexpr std::uint32_t precision_count = 5;

/// What crosses a link and sits in a slot: one expert at one precision.
struct Variant {
  ExpertId id;                            ///< which expert
  Precision precision = Precision::full;  ///< at which precision
  friend constexpr bool operator==(Variant, Variant) = default;
};

/// What the rows of a step are.
enum class Phase : std::uint8_t {
  prefill,  ///< a chunk of one sequence's prompt
  decode    ///< a token of each sequence
};

/// Where a variant is on its way to the device.
enum class State : std::uint8_t {
  absent,     ///< in no slot, and no copy of it is under way
  queued,     ///< its copy was submitted and can be taken back
  in_flight,  ///< its copy can no longer be taken back
  resident    ///< in a slot, and the device may read it
};

/// Number of a copy; Core numbers them upwards and never reuses one. Odd: a prefetch.
enum class Ticket : std::uint64_t {
  none = 0  ///< nothing to wait for
};
/// Whether a copy brings what was only predicted.
FERRY_HD constexpr bool is_prefetch(Ticket t) noexcept {
  return (static_cast<std::uint64_t>(t) & 1U) != 0;
}

/// Number of a point in the device's work; Core numbers them upwards from 1.
enum class Fence : std::uint64_t {
  none = 0  ///< nothing to wait for
};

/// All times of the library.
using Nanoseconds = std::int64_t;

inline constexpr std::uint32_t no_slot = 0xffffffffU;  ///< runs on the host, or is nowhere
inline constexpr std::uint32_t no_task = 0xffffffffU;  ///< waits for no other task
inline constexpr std::uint16_t no_expert = 0xffffU;    ///< In a route: this assignment is skipped.
inline constexpr std::uint16_t no_layer = 0xffffU;     ///< none is asked for

/// One forward pass: a chunk of a prompt, or one token of each sequence of a batch.
struct Step {
  Phase phase = Phase::decode;         ///< what the rows are
  View<const std::uint32_t> sequence;  ///< [rows] which sequence each row belongs to
};

/// Gate scores of one layer, real or predicted. `select` chooses, non-negative `weight` scales the output
/// (they are the same array for softmax gates; families that bias or group the choice pass two). Where a layer has fewer
/// experts than others (ModelShape::layer_experts), the columns behind them belong to no expert: routers and predictors do
/// not read them, and to caches they are scores of experts that nobody asks for.
struct Scores {
  std::uint16_t layer = 0;              ///< whose gate, from 0
  View<const float> select;             ///< [rows, experts]
  View<const float> weight;             ///< [rows, experts]
  View<const std::uint32_t> rows = {};  ///< which rows of the step these are, ascending; empty: all of them
  /// This layer's own numbers, set by the core where the model's layers differ; 0: the model's.
  std::uint16_t layer_experts = 0, layer_top_k = 0;

  /// The experts of this layer, which has as many as the model unless it says otherwise.
  FERRY_HD constexpr std::uint32_t experts_or(std::uint32_t of_model) const noexcept {
    return layer_experts == 0 ? of_model : layer_experts;
  }
  /// How many of them each row uses, likewise.
  FERRY_HD constexpr std::uint32_t top_k_or(std::uint32_t of_model) const noexcept {
    return layer_top_k == 0 ? of_model : layer_top_k;
  }
};

/// One assignment of a row to an expert. `expert == no_expert`: skipped, contributes nothing.
struct Route {
  std::uint16_t expert = no_expert;      ///< who computes the row
  float weight = 0.0F;                   ///< what its output is multiplied by
  std::uint16_t instead_of = no_expert;  ///< the gate's choice, if `expert` is a substitute for it, or it is left out
};

/// What the gate itself chose.
FERRY_HD constexpr std::uint16_t gate_choice(const Route& r) noexcept {
  return r.instead_of == no_expert ? r.expert : r.instead_of;
}

/// What a layer needs of one expert: the union over the rows of a step, asked for or predicted.
struct Request {
  Variant want;               ///< set by QuantSelector, `full` before it
  std::uint32_t first = 0;    ///< where its assignments begin in Plan::assignments
  std::uint32_t rows = 0;     ///< rows that chose it (for a prediction: rows that voted for it)
  float importance = 0.0F;    ///< largest weight that any row gives it
  float unimportance = 0.0F;  ///< smallest share of a row's weights, 0 to 1, that goes to experts ranked above it
  float confidence = 0.0F;    ///< of a prediction, larger is surer; 1 for a real request
  State state =
      State::absent;  ///< of the best variant there is; after QuantSelector: of the best that satisfies `want`
  Precision held = Precision::skip;  ///< of that variant (the most precise of those nearest to resident); `skip`: none
  Nanoseconds copy_ns = 0;           ///< what its copy costs, 0 while unknown
  Nanoseconds device_ns = 0;         ///< what computing it on the device costs, 0 while unknown
  Nanoseconds host_ns = 0;           ///< what computing one of its rows on the host costs, 0 while unknown
  /// Of a miss: how much more a place is expected to save with it than with the expert that would leave. 0 unless the cache
  /// policy has `gain` and the placement weighs layers.
  Nanoseconds gain_ns = 0;
  std::uint32_t slot = no_slot;  ///< for the core: where that variant is
};

/// What made the rows that a Predictor reads.
enum class RowSource : std::uint8_t {
  none,           ///< the predictor reads no rows: it counts earlier routes, for instance
  gate_input,     ///< an earlier layer's gate input through the gate of the layer predicted
  partial_hidden  ///< what resident and shared experts gave so far, through that layer's attention and its gate
};

/// What a PrefetchLimit may spend: one layer's worth of look-aheads, from its plan to its finish.
struct PrefetchWindow {
  Phase phase = Phase::decode;  ///< of the step
  std::uint16_t distance = 1;   ///< layers from the one planned last to the one predicted
  Nanoseconds layer_ns = 0;     ///< what a layer takes without waiting, as measured last; 0 while unknown
  std::uint32_t taken = 0;      ///< absent experts taken since the plan, even if there was no slot for them
  Nanoseconds taken_ns = 0;     ///< cost of the copies of these that were submitted, or wait for a stream slot
};

/// One copy of a variant into a slot, to be carried out by a Link.
struct Copy {
  Ticket ticket = Ticket::none;  ///< its number
  Variant what;                  ///< which expert, at which precision
  std::uint32_t slot = no_slot;  ///< where to
  Fence after = Fence::none;     ///< the slot's last reader: not one byte may be written before it is reached
  bool demand = false;           ///< demand copies go before queued prefetches
};

/// One expert to run in this step. Its rows are `assignments[first .. first + rows)` of the plan.
struct Task {
  Variant what;                  ///< the variant that is there, which may be better than asked for
  std::uint32_t slot = no_slot;  ///< no_slot: runs on the host, from the host's copy
  /// Its rows: `rows` entries of Plan::assignments, from `first` on.
  std::uint32_t first = 0, rows = 0;
  std::uint32_t freed_by = no_task;  ///< index in `arriving` whose `done` lets this task's copy start
  Ticket ready = Ticket::none;       ///< wait for this before computing
  bool transient = false;            ///< in a stream slot: gone once done
};

/// Who runs, where, at which precision. Valid until the next `plan`; a plan never changes once given.
struct Plan {
  View<const Route> routes;  ///< [rows, k], final, best first
  /// By task (first, rows); each is row * k + rank, an index into `routes`. What the router left to `no_expert` has none; no
  /// task names those of experts that the precision leaves out.
  View<const std::uint32_t> assignments;
  View<const Task> resident;  ///< can run at once, as one group
  View<const Task> arriving;  ///< run one by one in this order: wait(ready), compute, done
  View<const Task> host;      ///< run on the host
};

/// How far the link has got, sampled once a call. No ticket goes back.
struct Seen {
  Ticket demand_landed = Ticket::none;    ///< every demand copy up to this one has landed
  Ticket prefetch_begun = Ticket::none;   ///< every prefetch up to this one has begun or was dropped
  Ticket prefetch_landed = Ticket::none;  ///< every prefetch up to this one has landed or was dropped
  Nanoseconds link_ns = 0;  ///< guessed time until the copy on the link lands; 0: none is there, or unknown
  /// Time until a demand copy may go ahead of the prefetch on the link; 0: none is there, or nothing may overtake it.
  Nanoseconds chunk_ns = 0;
};

/// What a Placement may weigh beside the requests: costs of the machine, given or learned, and the state of its link now.
/// 0: unknown.
struct LayerCosts {
  Nanoseconds device_ns[precision_count] = {};  ///< an expert on the device, by Precision
  Nanoseconds host_ns[precision_count] = {};    ///< on the host, with one row
  Nanoseconds host_row_ns = 0;                  ///< no expert takes less than this for each of its rows
  Nanoseconds host_start_ns = 0;  ///< fixed cost of a layer's share of the host: rows cross to it, and results back
  std::uint32_t link_beside_host = 1000;    ///< how fast copies are while the host computes, in thousandths
  std::uint32_t host_beside_copies = 1000;  ///< how fast the host is while a copy is on the link, likewise
  Nanoseconds link_ns = 0;                  ///< until what is on the link has landed
  Nanoseconds chunk_ns = 0;                 ///< until a load may go ahead of it; 0: it may not

  /// The link as it is now.
  FERRY_HD void see(const Seen& seen) noexcept {
    link_ns = seen.link_ns > 0 ? seen.link_ns : 0;
    chunk_ns = seen.chunk_ns > 0 ? seen.chunk_ns : 0;
  }
};

/// What a Placement makes of a layer's experts.
struct Split {
  std::uint32_t loads = 0;   ///< misses from the front that are copied; the host computes the others
  std::uint32_t hosted = 0;  ///< residents from the back that the host computes all the same
  bool waits = true;         ///< whether the layer waits for what is on its way; else the host computes that, too
};

/// What one use of an expert saves: `there`, because it is in a slot; `absent`, what it would save if it were in one.
struct Savings {
  /// In nanoseconds.
  Nanoseconds there = 0, absent = 0;
};

/// Measured costs of one layer of one step, fed back by the engine; 0 where not measured.
struct Times {
  Nanoseconds attention = 0;  ///< of the layer, with all else that each token needs: shared experts
  Nanoseconds gate = 0;       ///< of the layer
  Nanoseconds device = 0;     ///< of one expert on the device
  Nanoseconds host = 0;       ///< of one row of one expert on the host
};

/// What the core wants done now: first the drops, then the submissions, each in order.
struct Commands {
  View<const Ticket> drop;  ///< prefetches that need not begin any more
  View<const Copy> submit;  ///< copies to carry out
};

/// Whether a model divides the weights of a row's k experts by their sum: Mixtral does, Qwen1.5-MoE does not
/// (`norm_topk_prob` in the configurations of Hugging Face). A guess would give wrong weights in silence, so there is no
/// default.
enum class Renormalise : std::uint8_t {
  unset,  ///< nobody has said: a set-up is refused
  no,     ///< weights are what the gate gives
  yes     ///< they are divided by their sum
};
/// From what a model's configuration says.
FERRY_HD constexpr Renormalise renormalise_if(bool does) noexcept {
  return does ? Renormalise::yes : Renormalise::no;
}

/// The sizes that the core works with; where layers differ, the largest.
struct Shape {
  /// MoE layers, the experts of each, and how many of them each row uses.
  std::uint16_t layers = 0, experts = 0, top_k = 0;
  std::uint32_t max_rows = 0;                    ///< largest number of rows of one step
  Renormalise renormalise = Renormalise::unset;  ///< whether weights are divided by their sum
  float scale = 1.0F;  ///< factor of the weights after that division: DeepSeek's `routed_scaling_factor`
  /// Weights are divided by max(sum + added_to_sum, least_sum): where a bias chooses, the k chosen may weigh next to nothing.
  /// DeepSeek-V3 adds 1e-20, ERNIE 4.5 has a `moe_norm_min` of 1e-12.
  float least_sum = 0.0F, added_to_sum = 0.0F;
};

}  // namespace ferry::inline FERRY_ABI
