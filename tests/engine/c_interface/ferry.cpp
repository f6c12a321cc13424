// The C interface against the templates: the same random load, call for call.
#include "ferry/ferry.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ferry/pipeline.hpp"
#include "ferry/stacks.hpp"
#include "stacks/configured_stack.hpp"
#include "stacks/stack_options.hpp"
#include "support/quick.hpp"

namespace {

using namespace ferry;

constexpr std::uint16_t layers = 5, experts = 12, top_k = 3;
constexpr std::uint32_t max_rows = 6;
constexpr std::uint64_t sizes[precision_count] = {0, 640, 1152, 2176, 4096};
constexpr double copy_rate = 4e9;

/// What a link was told: the ticket of a copy and all else of it, or the number of a drop or a fence.
struct Told {
  char what;
  std::uint64_t number;
  Copy copy;
  friend bool operator==(const Told& a, const Told& b) {
    return a.what == b.what && a.number == b.number && a.copy.ticket == b.copy.ticket && a.copy.what == b.copy.what &&
           a.copy.slot == b.copy.slot && a.copy.after == b.copy.after && a.copy.demand == b.copy.demand;
  }
};

/// Copies land some time later, at random; a wait makes them land.
class ChanceLink {
 public:
  explicit ChanceLink(std::uint32_t seed) : random_(seed) {}

  void submit(const Copy& c) noexcept {
    told.push_back({'c', static_cast<std::uint64_t>(c.ticket), c});
    if (c.demand) {
      demand_.push_back(c.ticket);
    } else {
      prefetch_.push_back(c.ticket);
      last_prefetch_ = c.ticket;
    }
  }
  void drop(Ticket t) noexcept {
    told.push_back({'d', static_cast<std::uint64_t>(t), {}});
    const auto at = std::find(prefetch_.begin(), prefetch_.end(), t);
    if (at != prefetch_.end() && !(begun_ && at == prefetch_.begin())) prefetch_.erase(at);
  }
  [[nodiscard]] Seen seen() noexcept {
    for (auto n = random_() % 3; n > 0; --n) land();
    if (random_() % 4 == 0) begun_ = begun_ || !prefetch_.empty();
    return sample();
  }
  void fence(Fence f) noexcept { told.push_back({'f', static_cast<std::uint64_t>(f), {}}); }
  void wait(Ticket t) {
    told.push_back({'w', static_cast<std::uint64_t>(t), {}});
    const auto waits = [&](const std::deque<Ticket>& q) { return std::find(q.begin(), q.end(), t) != q.end(); };
    while (waits(demand_) || waits(prefetch_)) land();
  }

  std::vector<Told> told;

 private:
  void land() noexcept {
    if (!demand_.empty() && !begun_) {
      seen_.demand_landed = demand_.front();
      demand_.pop_front();
    } else if (!prefetch_.empty()) {
      prefetch_.pop_front();
      begun_ = false;
    }
  }
  /// Prefetches have odd tickets, so all before the first that is queued are over.
  Seen sample() noexcept {
    const auto before = [](Ticket t) { return static_cast<Ticket>(static_cast<std::uint64_t>(t) - 2); };
    if (prefetch_.empty()) {
      seen_.prefetch_begun = seen_.prefetch_landed = last_prefetch_;
    } else {
      seen_.prefetch_landed = before(prefetch_.front());
      seen_.prefetch_begun = begun_ ? prefetch_.front() : seen_.prefetch_landed;
    }
    return seen_;
  }

  std::minstd_rand random_;
  std::deque<Ticket> demand_, prefetch_;
  Ticket last_prefetch_ = Ticket::none;
  bool begun_ = false;
  Seen seen_;
};
static_assert(Link<ChanceLink>);

ferry_link link_to(ChanceLink& link) {
  ferry_link calls{};
  calls.size = sizeof calls;
  calls.context = &link;
  calls.submit = [](void* to, const ferry_copy* c) {
    Copy copy;
    copy.ticket = static_cast<Ticket>(c->ticket);
    copy.what = {{c->what.layer, c->what.expert}, static_cast<Precision>(c->what.precision)};
    copy.slot = c->slot;
    copy.after = static_cast<Fence>(c->after);
    copy.demand = c->demand != 0;
    static_cast<ChanceLink*>(to)->submit(copy);
  };
  calls.drop = [](void* to, std::uint64_t t) { static_cast<ChanceLink*>(to)->drop(static_cast<Ticket>(t)); };
  calls.seen = [](void* to, ferry_seen* seen) {
    const Seen s = static_cast<ChanceLink*>(to)->seen();
    seen->demand_landed = static_cast<std::uint64_t>(s.demand_landed);
    seen->prefetch_begun = static_cast<std::uint64_t>(s.prefetch_begun);
    seen->prefetch_landed = static_cast<std::uint64_t>(s.prefetch_landed);
    seen->link_ns = s.link_ns;
    seen->chunk_ns = s.chunk_ns;
  };
  calls.fence = [](void* to, std::uint64_t f) { static_cast<ChanceLink*>(to)->fence(static_cast<Fence>(f)); };
  calls.wait = [](void* to, std::uint64_t t) {
    static_cast<ChanceLink*>(to)->wait(static_cast<Ticket>(t));
    return 0;
  };
  return calls;
}

ferry_options options_for(const char* stack, std::uint64_t budget) {
  ferry_options o{};
  o.size = sizeof o;
  o.stack = stack;
  o.layers = layers;
  o.experts = experts;
  o.top_k = top_k;
  o.renormalise = FERRY_RENORMALISE_YES;
  o.max_rows = max_rows;
  o.expert_bytes = sizes;
  o.expert_byte_rows = 1;
  o.budget_bytes = budget;
  o.copy_bytes_per_s = copy_rate;
  for (unsigned p = 1; p < precision_count; ++p) {
    o.device_ns[p] = 200;
    o.host_ns[p] = 900 + 100 * p;
  }
  o.host_row_ns = 150;
  o.host_start_ns = 50;
  return o;
}

ModelShape shape() {
  ModelShape m;
  m.layers = layers;
  m.experts = experts;
  m.top_k = top_k;
  m.max_rows = max_rows;
  m.renormalise = Renormalise::yes;
  m.expert_bytes = {{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]}};
  return m;
}

void add_machine(CoreSettings& s) {
  for (unsigned p = 1; p < precision_count; ++p) {
    s.costs.device_ns[p] = 200;
    s.costs.host_ns[p] = 900 + 100 * p;
  }
  s.costs.host_row_ns = 150;
  s.costs.host_start_ns = 50;
}

Nanoseconds copy_ns(std::uint64_t bytes) {
  return static_cast<Nanoseconds>(static_cast<double>(bytes) * 1e9 / copy_rate);
}

bool same(const ferry_task& a, const Task& b) {
  return a.what.layer == b.what.id.layer && a.what.expert == b.what.id.expert &&
         a.what.precision == static_cast<unsigned>(b.what.precision) && a.slot == b.slot && a.first == b.first &&
         a.rows == b.rows && a.freed_by == b.freed_by && a.ready == static_cast<std::uint64_t>(b.ready) &&
         (a.transient != 0) == b.transient;
}
bool same(const ferry_task* a, std::uint32_t count, View<const Task> b) {
  if (count != b.size) return false;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!same(a[i], b[i])) return false;
  }
  return true;
}
bool same(const ferry_plan& a, const Plan& b) {
  if (a.route_count != b.routes.size || a.assignment_count != b.assignments.size) return false;
  for (std::uint32_t i = 0; i < a.route_count; ++i) {
    const ferry_route& r = a.routes[i];
    if (r.expert != b.routes[i].expert || r.weight != b.routes[i].weight || r.instead_of != b.routes[i].instead_of) {
      return false;
    }
  }
  return std::equal(a.assignments, a.assignments + a.assignment_count, b.assignments.begin()) &&
         same(a.resident, a.resident_count, b.resident) && same(a.arriving, a.arriving_count, b.arriving) &&
         same(a.host, a.host_count, b.host);
}

/// What a call of the templates threw, or nothing.
template <class Call>
std::string thrown_by(const Call& call) {
  try {
    call();
    return "";
  } catch (const UsageError& e) {
    return e.what();
  }
}

/// Whether this pipeline's type allows routes. A pipeline without its types only says so at run time.
template <class Pipe>
constexpr bool may_take_routes() {
  if constexpr (requires { typename Pipe::Stack; }) {
    return !Pipe::traits().router_needs_scores && !Pipe::traits().cache_needs_scores;
  } else {
    return true;
  }
}

/// Drives both with one load until the first difference; returns how many plans were the same.
template <class Pipe>
std::uint32_t drive(ferry_pipeline* c, ChanceLink& c_link, Pipe& cpp, ChanceLink& cpp_link, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto draw = [&](unsigned below) { return static_cast<std::uint32_t>(random() % below); };
  const auto chance = [&](unsigned in) { return draw(in) == 0; };
  const StackTraits traits = cpp.traits();
  std::vector<float> scores, ahead;
  std::vector<std::uint32_t> rows_left;
  const auto fill = [&](std::vector<float>& to, std::uint32_t rows) {
    to.resize(std::size_t{rows} * experts);
    for (float& s : to) s = static_cast<float>(draw(1000)) / 1000 * (chance(4) ? 3.0F : 0.5F);
  };
  /// Both sides answer alike, and their links were told the same.
  const auto agree = [&](ferry_status status, const std::string& thrown) {
    REQUIRE(std::string(ferry_last_error()) == thrown);
    REQUIRE((status == FERRY_OK) == thrown.empty());
    REQUIRE(c_link.told.size() == cpp_link.told.size());
    REQUIRE(c_link.told == cpp_link.told);
  };
  std::uint32_t plans = 0;
  for (int step = 0; step < 60; ++step) {
    const std::uint32_t rows = chance(30) ? max_rows + 1 : 1 + draw(max_rows);
    const Phase phase = chance(3) ? Phase::prefill : Phase::decode;
    std::vector<std::uint32_t> sequence(rows);
    for (std::uint32_t i = 0; i < rows; ++i) sequence[i] = phase == Phase::decode ? i : 7;
    agree(ferry_begin_step(c, phase == Phase::decode ? FERRY_DECODE : FERRY_PREFILL, sequence.data(), rows),
          thrown_by([&] {
            cpp.begin_step({phase, sequence});
          }));
    if (rows > max_rows) continue;
    for (std::uint16_t l = 0; l < layers; ++l) {
      if (chance(20)) continue;
      const std::uint16_t layer = chance(50) ? layers : l;
      rows_left.clear();
      for (std::uint32_t r = 0; r < rows && l + 1 == layers; ++r) {
        if (chance(2)) rows_left.push_back(r);
      }
      const auto given = static_cast<std::uint32_t>(rows_left.empty() ? rows : rows_left.size());
      fill(scores, chance(50) ? given + 1 : given);
      const View<const std::uint32_t> left = rows_left;
      ferry_plan c_plan{};
      Plan plan;
      ferry_status status = FERRY_OK;
      std::string thrown;
      bool routed = false;
      if constexpr (may_take_routes<Pipe>()) {
        if (chance(3)) {
          routed = true;
          std::vector<Route> routes(std::size_t{given} * top_k);
          std::vector<ferry_route> c_routes(routes.size());
          for (std::size_t i = 0; i < routes.size(); ++i) {
            const unsigned at = i % top_k == 0 ? draw(experts) : routes[i - 1].expert + 1U;
            routes[i].expert = static_cast<std::uint16_t>(at % (chance(300) ? experts + 1U : experts));
            routes[i].weight = 1.0F / static_cast<float>(1 + i % top_k);
            c_routes[i] = {routes[i].expert, routes[i].weight, FERRY_NO_EXPERT};
          }
          const auto count = static_cast<std::uint32_t>(routes.size());
          status = ferry_plan_routes(c, layer, c_routes.data(), count, left.data, left.size, &c_plan);
          thrown = thrown_by([&] { plan = cpp.plan(layer, View<const Route>(routes), left); });
        }
      }
      if (!routed) {
        const ferry_scores now{layer,     scores.data(), nullptr, static_cast<std::uint32_t>(scores.size()),
                               left.data, left.size};
        status = ferry_plan_scores(c, &now, &c_plan);
        thrown = thrown_by([&] { plan = cpp.plan(Scores{layer, scores, scores, left}); });
      }
      agree(status, thrown);
      if (status != FERRY_OK) continue;
      REQUIRE(same(c_plan, plan));
      ++plans;
      const RowSource source = traits.rows[static_cast<unsigned>(phase)];
      for (std::uint16_t distance = 1; traits.predicts && !chance(10); ++distance) {
        const std::uint16_t next = cpp.layer_ahead(source, distance);
        REQUIRE(ferry_layer_ahead(c, static_cast<std::uint8_t>(source), distance) == next);
        if (next == no_layer) break;
        fill(ahead, rows);
        const bool reads = source != RowSource::none;
        const ferry_scores predicted{next,    reads ? ahead.data() : nullptr,
                                     nullptr, static_cast<std::uint32_t>(reads ? ahead.size() : 0),
                                     nullptr, 0};
        agree(ferry_look_ahead(c, &predicted), thrown_by([&] {
                cpp.look_ahead(reads ? Scores{next, ahead, ahead} : Scores{next, {}, {}});
              }));
      }
      if (chance(40)) {
        ferry_abandon(c);
        cpp.abandon();
        break;
      }
      if (chance(40)) break;  // so that begin_step finds an unfinished layer
      agree(ferry_done(c, c_plan.resident, c_plan.resident_count), thrown_by([&] { cpp.done(plan.resident); }));
      for (std::uint32_t i = 0; i < plan.arriving.size; ++i) {
        agree(ferry_wait(c, &c_plan.arriving[i]), thrown_by([&] { cpp.wait(plan.arriving[i]); }));
        agree(ferry_done(c, &c_plan.arriving[i], 1), thrown_by([&] { cpp.done(plan.arriving[i]); }));
      }
      const ferry_times times{1000, 20, 200, 900};
      if (chance(2)) {
        agree(ferry_finish(c, l, &times), thrown_by([&] { cpp.finish(l, {1000, 20, 200, 900}); }));
      } else {
        agree(ferry_finish(c, l, nullptr), thrown_by([&] { cpp.finish(l, {}); }));
      }
    }
    if (chance(5)) {
      ferry_end_sequence(c, 0);
      cpp.end_sequence(0);
    }
  }
  return plans;
}

/// Whether both count alike.
void check_counters(ferry_pipeline* c, const Counters& counters) {
  ferry_counters mine{};
  mine.size = sizeof mine;
  REQUIRE(ferry_get_counters(c, &mine) == FERRY_OK);
  for (unsigned p = 0; p < 2; ++p) {
    const ferry_outcomes& a = mine.phase[p];
    const Outcomes& b = counters.phase[p];
    CHECK(a.requests == b.requests);
    CHECK(a.hits == b.hits);
    CHECK(a.late_hits == b.late_hits);
    CHECK(a.misses == b.misses);
    CHECK(a.substituted == b.substituted);
    CHECK(a.skipped == b.skipped);
    CHECK(a.host_computed == b.host_computed);
    CHECK(a.bytes == b.bytes);
    CHECK(a.steps == counters.steps[p]);
    CHECK(a.hits + a.late_hits + a.misses + a.substituted + a.skipped + a.host_computed == a.requests);
  }
  CHECK(mine.prefetches == counters.prefetch.issued);
  CHECK(mine.prefetches_used == counters.prefetch.used);
  CHECK(mine.promoted == counters.prefetch.promoted);
  CHECK(mine.wasted_bytes == counters.prefetch.wasted_bytes);
  CHECK(mine.unfinished_steps == counters.unfinished_steps);
}

struct Close {
  void operator()(ferry_pipeline* p) const { ferry_close(p); }
};
using Opened = std::unique_ptr<ferry_pipeline, Close>;

Opened open(const ferry_options& options, const ferry_link* link) {
  ferry_pipeline* pipe = nullptr;
  const ferry_status status = ferry_open(&options, link, &pipe);
  INFO(ferry_last_error());
  REQUIRE(status == FERRY_OK);
  return Opened(pipe);
}

/// The stack as a template, set up as its header says.
template <class S>
void compare_with_template(const char* name) {
  CAPTURE(name);
  const std::uint32_t seeds = test::quick() ? 1 : 6;
  for (std::uint32_t seed = 1; seed <= seeds; ++seed) {
    const std::uint64_t budget = (8 + 9 * std::uint64_t{seed}) * sizes[4];
    CoreConfig<S> config;
    config.model = shape();
    config.top_score_alpha = 0.3F;  // what the command counts by
    for (unsigned p = 1; p < precision_count; ++p) config.copy_ns[p] = copy_ns(sizes[p]);
    S::set_up(config, budget);
    add_machine(config);
    ChanceLink cpp_link(seed), c_link(seed);
    OffloadPipeline<S, ChanceLink> cpp(config, cpp_link);
    const ferry_link calls = link_to(c_link);
    const Opened c = open(options_for(name, budget), &calls);
    const std::vector<std::uint64_t> offsets = config.allotment.offsets();
    REQUIRE(ferry_slot_count(c.get()) + 1 == offsets.size());
    CHECK(std::equal(offsets.begin(), offsets.end(), ferry_slot_offsets(c.get())));
    CHECK(drive(c.get(), c_link, cpp, cpp_link, 100 + seed) > 50);
    check_counters(c.get(), cpp.counters());
  }
}

}  // namespace

TEST_CASE("the C interface decides as the template does, call for call") {
  compare_with_template<stacks::LruCache>("lru");
  compare_with_template<stacks::LayerStream>("layer-stream");
  compare_with_template<stacks::MoeInfinity>("moe-infinity");
  compare_with_template<stacks::Fate>("fate");
  compare_with_template<stacks::Hobbit>("hobbit");
  compare_with_template<stacks::ImportanceDriven>("importance-driven");
  compare_with_template<stacks::Ferry>("ferry");
  compare_with_template<stacks::FerryDevice>("ferry-device");
}

TEST_CASE("every named stack decides through C as it does through AnyPipeline") {
  REQUIRE(ferry_stack_count() == engine::all_stacks().size());
  CHECK(ferry_stack_name(ferry_stack_count()) == nullptr);
  for (std::size_t i = 0; i < ferry_stack_count(); i += test::quick() ? 3 : 1) {
    const char* name = ferry_stack_name(i);
    CAPTURE(name);
    const std::uint64_t budget = 30 * sizes[4];
    engine::StackOptions options;
    options.stack = name;
    options.budget_bytes = budget;
    options.stream_slots = 4;
    options.max_rows = max_rows;
    const engine::ConfiguredStack stack = engine::configure_stack(shape(), options, copy_ns);
    add_machine(stack.config->settings());
    ChanceLink cpp_link(3), c_link(3);
    const auto cpp = stack.config->start(cpp_link);
    const ferry_link calls = link_to(c_link);
    ferry_options given = options_for(name, budget);
    given.stream_slots = 4;
    const Opened c = open(given, &calls);
    ferry_traits traits{};
    traits.size = sizeof traits;
    REQUIRE(ferry_get_traits(c.get(), &traits) == FERRY_OK);
    CHECK((traits.preloads != 0) == stack.preloads);
    CHECK(traits.look_ahead_depth == cpp->look_ahead_depth());
    if (stack.preloads) {
      CHECK(ferry_preload(c.get()) == FERRY_OK);
      cpp->preload();
    }
    CHECK(drive(c.get(), c_link, *cpp, cpp_link, 7) > 50);
    check_counters(c.get(), cpp->counters());
  }
}

namespace {

/// The commands taken from a pipeline without a link, in the form in which a link would have noted them.
std::vector<Told> taken(ferry_pipeline* pipe) {
  const ferry_command* commands = nullptr;
  std::uint32_t count = 0;
  REQUIRE(ferry_take_commands(pipe, &commands, &count) == FERRY_OK);
  std::vector<Told> all;
  for (std::uint32_t i = 0; i < count; ++i) {
    const ferry_copy& c = commands[i].copy;
    switch (commands[i].kind) {
      case FERRY_COMMAND_COPY: {
        Copy copy{static_cast<Ticket>(c.ticket),
                  {{c.what.layer, c.what.expert}, static_cast<Precision>(c.what.precision)},
                  c.slot,
                  static_cast<Fence>(c.after),
                  c.demand != 0};
        all.push_back({'c', c.ticket, copy});
        break;
      }
      case FERRY_COMMAND_DROP:
        all.push_back({'d', c.ticket, {}});
        break;
      case FERRY_COMMAND_FENCE:
        all.push_back({'f', c.after, {}});
        break;
      default:
        all.push_back({'w', c.ticket, {}});
    }
  }
  return all;
}

/// Everything lands on the spot, and is noted.
struct InstantLink {
  std::vector<Told> told;
  Seen at;

  void submit(const Copy& c) noexcept {
    told.push_back({'c', static_cast<std::uint64_t>(c.ticket), c});
    (c.demand ? at.demand_landed : at.prefetch_landed) = c.ticket;
    at.prefetch_begun = at.prefetch_landed;
  }
  void drop(Ticket t) noexcept { told.push_back({'d', static_cast<std::uint64_t>(t), {}}); }
  [[nodiscard]] Seen seen() const noexcept { return at; }
  void fence(Fence f) noexcept { told.push_back({'f', static_cast<std::uint64_t>(f), {}}); }
  void wait(Ticket t) { told.push_back({'w', static_cast<std::uint64_t>(t), {}}); }
};

}  // namespace

TEST_CASE("a plan as data is what a link would have been told, in order or reported") {
  for (const bool in_order : {true, false}) {
    CAPTURE(in_order);
    const std::uint64_t budget = 25 * sizes[4];
    engine::StackOptions stack_options;
    stack_options.stack = "ferry-device";
    stack_options.budget_bytes = budget;
    stack_options.max_rows = max_rows;
    const engine::ConfiguredStack stack = engine::configure_stack(shape(), stack_options, copy_ns);
    add_machine(stack.config->settings());
    InstantLink link;
    const auto cpp = stack.config->start(link);
    ferry_options options = options_for("ferry-device", budget);
    options.in_order = in_order ? 1 : 0;
    const Opened data = open(options, nullptr);
    std::mt19937 random(5);
    std::vector<float> scores(experts);
    const std::uint32_t sequence = 0;
    std::uint32_t arriving = 0;
    for (int step = 0; step < 60; ++step) {
      REQUIRE(ferry_begin_step(data.get(), FERRY_DECODE, &sequence, 1) == FERRY_OK);
      cpp->begin_step({Phase::decode, {&sequence, 1}});
      for (std::uint16_t l = 0; l < layers; ++l) {
        for (float& s : scores) s = static_cast<float>(random() % 1000);
        const ferry_scores now{l, scores.data(), nullptr, experts, nullptr, 0};
        ferry_plan plan{};
        REQUIRE(ferry_plan_scores(data.get(), &now, &plan) == FERRY_OK);
        const Plan other = cpp->plan(Scores{l, scores, scores});
        REQUIRE(same(plan, other));
        for (std::uint32_t i = 0; i < plan.arriving_count; ++i) {
          CHECK(ferry_wait(data.get(), &plan.arriving[i]) == FERRY_OK);
          cpp->wait(other.arriving[i]);
          CHECK(ferry_done(data.get(), &plan.arriving[i], 1) == FERRY_OK);
          cpp->done(other.arriving[i]);
          ++arriving;
        }
        REQUIRE(ferry_finish(data.get(), l, nullptr) == FERRY_OK);
        cpp->finish(l);
        REQUIRE(taken(data.get()) == link.told);
        link.told.clear();
        ferry_seen seen{};
        std::memcpy(&seen, &link.at, sizeof seen);
        if (!in_order) CHECK(ferry_report(data.get(), &seen) == FERRY_OK);
      }
    }
    CHECK(arriving > 50);
    check_counters(data.get(), cpp->counters());
    ferry_task never{};
    never.ready = 1'000'000;
    CHECK(ferry_wait(data.get(), &never) == FERRY_LINK_ERROR);
  }
  ChanceLink told(1);
  const ferry_link calls = link_to(told);
  const Opened linked = open(options_for("lru", 25 * sizes[4]), &calls);
  const ferry_command* commands = nullptr;
  std::uint32_t count = 0;
  CHECK(ferry_take_commands(linked.get(), &commands, &count) == FERRY_USAGE_ERROR);
  const ferry_seen seen{};
  CHECK(ferry_report(linked.get(), &seen) == FERRY_USAGE_ERROR);
}

TEST_CASE("a set-up through C that cannot work is refused with what was expected") {
  const auto refusal = [](const auto& change) {
    ferry_options o = options_for("lru", 30 * sizes[4]);
    change(o);
    ferry_pipeline* pipe = nullptr;
    const ferry_status status = ferry_open(&o, nullptr, &pipe);
    CHECK(status == FERRY_CONFIG_ERROR);
    CHECK(pipe == nullptr);
    return std::string(ferry_last_error());
  };
  CHECK(refusal([](auto& o) { o.stack = "lur"; }).find("did you mean \"lru\"?") != std::string::npos);
  CHECK(refusal([](auto& o) { o.stack = nullptr; }).find("expected the name of a stack") != std::string::npos);
  CHECK(refusal([](auto& o) { o.size = 8; }).find("ferry_options.size is 8, expected sizeof") != std::string::npos);
  CHECK(refusal([](auto& o) { o.renormalise = 0; }).find("renormalise is not set") != std::string::npos);
  CHECK(refusal([](auto& o) { o.renormalise = 9; }).find("renormalise is 9") != std::string::npos);
  CHECK(refusal([](auto& o) { o.budget_bytes = 100; }).find("budget of 100 bytes is too small") != std::string::npos);
  CHECK(refusal([](auto& o) { o.expert_byte_rows = 3; }).find("has 3 rows") != std::string::npos);
  CHECK(refusal([](auto& o) { o.layers = 0, o.expert_byte_rows = 0; }).find("layers and experts must be at least 1") !=
        std::string::npos);
  CHECK(refusal([](auto& o) { o.scale = -1; }).find("scale is negative") != std::string::npos);
  CHECK(refusal([](auto& o) { o.least_sum = -1; }).find("least_sum is negative") != std::string::npos);
  CHECK(refusal([](auto& o) { o.scale = std::numeric_limits<float>::infinity(); }).find("infinite") !=
        std::string::npos);
  CHECK(refusal([](auto& o) { o.added_to_sum = std::nanf(""); }).find("added_to_sum is neg") != std::string::npos);
  CHECK(refusal([](auto& o) { o.copy_bytes_per_s = -1; }).find("copy_bytes_per_s") != std::string::npos);
  CHECK(refusal([](auto& o) { o.stream_slots = 1; }).find("1 stream slots, expected at least 2") != std::string::npos);
  const auto parameter = [&](const char* text) {
    const char* const all[] = {text};
    return refusal([&](auto& o) { o.parameters = all, o.parameter_count = 1; });
  };
  CHECK(parameter("pools").find("expected \"name=value\"") != std::string::npos);
  CHECK(parameter("pool=one").find("did you mean \"pools\"?") != std::string::npos);
  CHECK(parameter("pools=two").find("is \"pools=two\", expected \"pools=\" and one of stack") != std::string::npos);
  CHECK(parameter("half-life=64").find("stack lru has no parameter half-life") != std::string::npos);
  // Texts of any bytes and any length leave the sentence whole.
  const std::string strange = parameter("half-life=\xff\x1b[2J");
  CHECK(strange.find("is \"half-life=??[2J\", expected \"half-life=\" and ") != std::string::npos);
  const std::string lengthy = parameter(("half-life=" + std::string(5000, 'x')).c_str());
  CHECK(lengthy.find("xxx...\", expected \"half-life=\" and ") != std::string::npos);
  CHECK(lengthy.size() < 300);
  const char* const twice[] = {"pools=one", "pools=per-layer"};
  CHECK(refusal([&](auto& o) { o.parameters = twice, o.parameter_count = 2; }).find("expected each parameter once") !=
        std::string::npos);

  ferry_options o = options_for("ferry", 30 * sizes[4]);
  const char* const good[] = {"half-life=64", "pools=one"};
  o.parameters = good;
  o.parameter_count = 2;
  CHECK(open(o, nullptr) != nullptr);

  ferry_pipeline* pipe = nullptr;
  CHECK(ferry_open(nullptr, nullptr, &pipe) == FERRY_USAGE_ERROR);
  ferry_link link{};
  link.size = sizeof link;
  CHECK(ferry_open(&o, &link, &pipe) == FERRY_CONFIG_ERROR);
  CHECK(std::string(ferry_last_error()) == "ferry_link: submit, seen or wait is NULL, expected all three");
  ferry_close(nullptr);
  ferry_abandon(nullptr);
  ferry_end_sequence(nullptr, 1);
  CHECK(ferry_slot_count(nullptr) == 0);
  CHECK(ferry_slot_offsets(nullptr) == nullptr);
  CHECK(ferry_layer_ahead(nullptr, FERRY_ROWS_GATE_INPUT, 1) == FERRY_NO_LAYER);
  CHECK(ferry_begin_step(nullptr, FERRY_DECODE, nullptr, 0) == FERRY_USAGE_ERROR);
}

TEST_CASE("what C can hold and C++ cannot is refused") {  // a phase of 9, too: tests/package/c_consumer.c
  const auto pipe = open(options_for("lru", 30 * sizes[4]), nullptr);
  ferry_task task{};
  task.transient = 2;
  for (const ferry_status status : {ferry_wait(pipe.get(), &task), ferry_done(pipe.get(), &task, 1)}) {
    CHECK(status == FERRY_USAGE_ERROR);
  }
  CHECK(std::string(ferry_last_error()) == "done: a task's transient is 2, expected 0 or 1, as the plan has it");
}

TEST_CASE("structures of a newer caller are taken as long as they ask for nothing new") {
  struct Newer {
    ferry_options known;
    std::uint64_t more;
  } newer{options_for("lru", 30 * sizes[4]), 0};
  newer.known.size = sizeof newer;
  ferry_pipeline* pipe = nullptr;
  REQUIRE(ferry_open(&newer.known, nullptr, &pipe) == FERRY_OK);
  struct NewerCounters {
    ferry_counters known;
    std::uint64_t more;
  } counters{{}, 0};
  counters.known.size = sizeof counters;
  CHECK(ferry_get_counters(pipe, &counters.known) == FERRY_OK);
  CHECK(counters.known.size == sizeof counters);
  ferry_close(pipe);
  newer.more = 1;
  CHECK(ferry_open(&newer.known, nullptr, &pipe) == FERRY_CONFIG_ERROR);
  CHECK(std::string(ferry_last_error()).find("does not know") != std::string::npos);
  CHECK(std::string(ferry_version()) == FERRY_H_VERSION);
}
