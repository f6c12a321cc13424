/// @file
/// Watches a pipeline from outside and throws when an invariant of docs/design.md is broken.
///
/// It shares no code with Residency, and only relies on the commands, plans and fences that it is shown.
#pragma once
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "ferry/allotment.hpp"
#include "ferry/model.hpp"
#include "ferry/timeline.hpp"

namespace ferry::test {

struct Violation : std::logic_error {
  Violation(int number, const std::string& what)
      : std::logic_error("invariant " + std::to_string(number) + ": " + what), invariant(number) {}
  int invariant;
};

/// Invariant 7, and the budget part of 1.
inline void check_budget(std::uint64_t budget_bytes, const Allotment& a) {
  std::uint64_t used = a.stream_slots * a.stream_slot_bytes;
  for (const Pool& p : a.pools) used += p.slots * p.slot_bytes;
  if (used > budget_bytes) {
    throw Violation(1, "slots take " + std::to_string(used) + " of " + std::to_string(budget_bytes) + " bytes");
  }
  bool everything = true;
  for (const Pool& p : a.pools) everything = everything && p.slots > 0;
  if (a.stream_slots < 2 && (!everything || a.pools.empty())) {
    throw Violation(7, "accepted with " + std::to_string(a.stream_slots) + " stream slots");
  }
}

class InvariantChecker {
 public:
  InvariantChecker(const ModelShape& model, const Allotment& allotment, std::uint32_t transient_rows = ~0U)
      : model_(model), transient_rows_(transient_rows) {
    for (const Pool& p : allotment.pools) {
      for (std::uint32_t i = 0; i < p.slots; ++i) slots_.push_back({p.slot_bytes, false, {}, Ticket::none, {}, {}});
    }
    for (std::uint32_t i = 0; i < allotment.stream_slots; ++i) {
      slots_.push_back({allotment.stream_slot_bytes, true, {}, Ticket::none, {}, {}});
    }
  }

  void preload(View<const Copy> copies) {
    for (const Copy& c : copies) submit(c);
  }

  void begin_step(Phase phase, std::uint32_t rows) {
    phase_ = phase;
    rows_ = rows;
  }

  /// Checks a plan, and the commands that came with it.
  void plan(std::uint16_t layer, const Plan& plan, const Commands& commands) {
    waiting_.clear();
    layer_ = layer;
    std::set<std::uint32_t> in_use;
    for (const Task& t : plan.resident) {
      if (t.ready != Ticket::none) throw Violation(4, "a resident task waits for a copy");
      use(t, in_use);
    }
    for (const Task& t : plan.arriving) {
      if (t.ready == Ticket::none) throw Violation(2, "an arriving task waits for no copy");
      if (t.freed_by != no_task) {  // its slot still belongs to the task before it
        if (t.freed_by >= plan.arriving.size || plan.arriving[t.freed_by].slot != t.slot) {
          throw Violation(2, "freed_by names a task of another slot");
        }
        waiting_.push_back(t);
        continue;
      }
      use(t, in_use);
    }
    for (Slot& s : slots_) {  // a prefetched expert that is not asked for gives up its stream slot
      if (s.stream && !s.reading) s.what.reset();
    }
    commands_of(commands, true);
    for (const Task& t : plan.arriving) {
      if (t.freed_by != no_task) continue;
      // Invariant 4: a task waits for the copy that brings its expert, even if that is a prefetch in flight.
      if (slots_[t.slot].ticket != t.ready) throw Violation(4, "a task waits for another copy than its slot's");
      if (!(slots_[t.slot].what == t.what)) throw Violation(1, "a task's slot is promised to another expert");
    }
    for (const Task& t : plan.resident) {
      if (!(slots_[t.slot].what == t.what)) throw Violation(1, "a resident task's slot holds another expert");
    }
    complete(layer, plan);
  }

  void look_ahead(const Commands& commands) {
    if (!waiting_.empty() && commands.submit.size > 0) {
      throw Violation(4, "a prefetch ahead of demand copies that wait for their slots");
    }
    commands_of(commands, false);
  }

  /// `done` was called for these tasks with this fence, and gave these commands.
  void done(View<const Task> tasks, Fence fence, const Commands& commands) {
    for (const Task& t : tasks) {
      if (t.slot == no_slot) continue;
      slots_[t.slot].reading.reset();
      slots_[t.slot].last_reader = fence;
      if (slots_[t.slot].stream) slots_[t.slot].what.reset();
    }
    for (const Copy& c : commands.submit) {
      if (!c.demand && waiting_.empty()) {  // prefetches that were held back
        submit(c);
        continue;
      }
      if (waiting_.empty() || !(waiting_.front().what == c.what) || waiting_.front().ready != c.ticket ||
          waiting_.front().slot != c.slot) {
        throw Violation(2, "done started a copy that the plan did not announce");
      }
      submit(c);
      slots_[c.slot].reading = c.what;
      waiting_.erase(waiting_.begin());
    }
  }

  void finish(Fence fence, const Commands& commands) {
    for (Slot& s : slots_) {
      if (!s.reading) continue;
      s.reading.reset();
      s.last_reader = fence;
      if (s.stream) s.what.reset();
    }
    waiting_.clear();
    commands_of(commands, false);
  }

  /// Checks the order in which the link's log says that it carried out copies. Invariant 4: `begun` holds, for each demand
  /// copy, how far prefetches had begun when it was submitted; no later one may have gone before it. A prefetch that was
  /// overtaken has several entries, with no later prefetch in between.
  static void service_order(const std::vector<Span>& link_spans, const std::map<Ticket, Ticket>& begun) {
    Ticket latest_prefetch = Ticket::none, latest_demand = Ticket::none;
    for (const Span& s : link_spans) {
      if (s.lane != Lane::link) continue;
      if (is_prefetch(s.ticket)) {
        if (s.ticket < latest_prefetch) throw Violation(4, "a prefetch goes on behind a later one");
        latest_prefetch = s.ticket;
        continue;
      }
      if (s.ticket <= latest_demand) throw Violation(4, "demand copies out of order");
      latest_demand = s.ticket;
      const auto at = begun.find(s.ticket);
      if (at != begun.end() && latest_prefetch > at->second) {
        throw Violation(4, "prefetch " + std::to_string(static_cast<std::uint64_t>(latest_prefetch)) +
                               " went ahead of demand " + std::to_string(static_cast<std::uint64_t>(s.ticket)));
      }
    }
  }

 private:
  struct Slot {
    std::uint64_t bytes;
    bool stream;
    std::optional<Variant> what;  ///< here or on its way
    Ticket ticket;                ///< of the copy that brings it
    std::optional<Variant> reading;
    Fence last_reader;
  };

  void use(const Task& t, std::set<std::uint32_t>& in_use) {
    if (t.slot >= slots_.size()) throw Violation(1, "no such slot");
    if (!in_use.insert(t.slot).second) throw Violation(1, "two tasks in one slot");
    slots_[t.slot].reading = t.what;
  }

  void commands_of(const Commands& commands, bool planning) {
    for (const Ticket t : commands.drop) {
      if (!is_prefetch(t)) throw Violation(4, "a demand copy is dropped");
      for (Slot& s : slots_) {
        if (s.ticket != t) continue;
        s.what.reset();
        s.ticket = Ticket::none;
      }
    }
    bool promoted = false;
    for (const Copy& c : commands.submit) {
      if (c.demand && !planning) throw Violation(4, "demand comes from plan");
      if (planning && promoted) throw Violation(4, "a plan promotes one expert, behind every demand copy");
      promoted = planning && !c.demand;
      if (promoted && phase_ == Phase::prefill) throw Violation(4, "a promotion in prefill");
      submit(c);
    }
  }

  void submit(const Copy& c) {
    if (c.slot >= slots_.size()) throw Violation(1, "no such slot");
    if (is_prefetch(c.ticket) == c.demand) throw Violation(4, "a ticket of the wrong kind");
    Slot& s = slots_[c.slot];
    const std::uint64_t bytes = model_.bytes(c.what.id.layer, c.what.precision);
    if (bytes == 0 || bytes > s.bytes) throw Violation(1, "an expert that does not fit its slot");
    if (c.what.id.expert >= model_.experts_of(c.what.id.layer)) throw Violation(1, "a copy of no expert of its layer");
    if (s.reading && !(*s.reading == c.what)) {
      throw Violation(2, "a copy into the slot of an expert that this step still computes");
    }
    if (c.after < s.last_reader) throw Violation(3, "a copy does not wait for the slot's last reader");
    if (!s.stream) {
      for (std::uint32_t i = 0; i < slots_.size(); ++i) {
        if (i != c.slot && !slots_[i].stream && slots_[i].what && *slots_[i].what == c.what) {
          throw Violation(1, "one expert in two slots");
        }
      }
      if (s.what && phase_ == Phase::prefill && rows_ > transient_rows_) {
        throw Violation(8, "a long prefill evicts");
      }
    } else if (!c.demand) {
      if (phase_ != Phase::prefill || c.what.id.layer != layer_ + 1) {
        throw Violation(2, "a prefetch into a stream slot, and not for the next layer of a prefill");
      }
      for (const Slot& other : slots_) {
        if (other.what && *other.what == c.what) throw Violation(1, "one expert in two slots");
      }
      if (s.what) throw Violation(2, "a prefetch into a stream slot that another waits in");
    }
    s.what = c.what;
    s.ticket = c.ticket;
  }

  /// Every assignment that is not skipped is computed exactly once, by its own expert.
  void complete(std::uint16_t layer, const Plan& plan) const {
    std::vector<int> computed(plan.routes.size, 0);
    std::vector<bool> listed(plan.routes.size, false);
    for (const std::uint32_t a : plan.assignments) {
      if (a >= plan.routes.size || listed[a])
        throw Violation(2, "an assignment of no route, or a second one of a route");
      listed[a] = true;
    }
    for (std::uint32_t a = 0; a < plan.routes.size; ++a) {
      if (plan.routes[a].expert != no_expert && !listed[a])
        throw Violation(2, "a route to an expert has no assignment");
    }
    for (const View<const Task>& tasks : {plan.resident, plan.arriving, plan.host}) {
      for (const Task& t : tasks) {
        if (t.what.id.layer != layer) throw Violation(2, "a task of another layer");
        for (std::uint32_t i = 0; i < t.rows; ++i) {
          const std::uint32_t a = plan.assignments[t.first + i];
          if (a >= plan.routes.size || plan.routes[a].expert != t.what.id.expert) {
            throw Violation(2, "a task computes another expert's rows");
          }
          ++computed[a];
        }
      }
    }
    for (std::uint32_t a = 0; a < plan.routes.size; ++a) {
      const bool chosen = a % model_.top_k < model_.top_k_of(layer);
      if (plan.routes[a].expert >= (chosen ? model_.experts_of(layer) : 0) && plan.routes[a].expert != no_expert) {
        throw Violation(2, "a route to no expert of the layer");
      }
      if (computed[a] != (plan.routes[a].expert == no_expert ? 0 : 1)) {
        throw Violation(2, "an assignment is not computed exactly once");
      }
    }
  }

  ModelShape model_;
  std::uint32_t transient_rows_;
  std::vector<Slot> slots_;
  std::vector<Task> waiting_;
  std::uint16_t layer_ = 0;
  Phase phase_ = Phase::decode;
  std::uint32_t rows_ = 0;
};

}  // namespace ferry::test
