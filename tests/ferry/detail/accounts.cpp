#include "ferry/detail/accounts.hpp"

#include <doctest/doctest.h>

#include <new>

#include "ferry/stacks.hpp"
#include "support/shapes.hpp"

using namespace ferry;
using namespace ferry::test;

namespace {

template <class StackT>
struct AccountsFixture {
  explicit AccountsFixture(const ModelShape& m, float top_score_alpha = -1.0F) {
    Carver carve(block + 1024);
    accounts.reserve(carve, m, 1, top_score_alpha);
  }
  const Counters& operator()() const { return accounts.counters(); }
  alignas(64) std::byte block[4096];
  detail::Accounts<StackT>& accounts = *new (block) detail::Accounts<StackT>;
};

Request request(std::uint16_t expert) {
  Request r;
  r.want = full(0, expert);
  return r;
}

}  // namespace

TEST_CASE("bytes and prefetches: what is taken back comes off the accounts of the phase that submitted it") {
  AccountsFixture<stacks::CrossLayerLru> f(model(2, 4, 1, 1, 100));
  f.accounts.begin_step(Phase::prefill, 1);
  f.accounts.submitted(full(1, 2), false);
  f.accounts.begin_step(Phase::decode, 1);
  f.accounts.submitted(full(0, 0), true);
  CHECK(f().of(Phase::prefill).bytes == 100);
  CHECK(f().of(Phase::decode).bytes == 100);
  CHECK(f().bytes_by_precision[4] == 200);
  CHECK(f().prefetch.issued == 1);
  CHECK(f().prefetch.issued_bytes == 100);
  f.accounts.dropped(full(1, 2), Phase::prefill);
  CHECK(f().of(Phase::prefill).bytes == 0);
  CHECK(f().bytes_by_precision[4] == 100);
  CHECK(f().prefetch.issued == 0);
  CHECK(f().prefetch.issued_bytes == 0);
  CHECK(f().prefetch.dropped == 1);
  f.accounts.submitted(full(0, 1), true);
  f.accounts.preloaded(full(0, 1));
  CHECK(f().of(Phase::decode).bytes == 100);
  CHECK(f().preload_bytes == 100);
}

TEST_CASE("a substitute that the gate did not ask for is run and not counted") {
  AccountsFixture<stacks::ImportanceRouter> f(model(1, 4, 2));
  f.accounts.begin_step(Phase::decode, 1);
  const Route routes[] = {{0, 0.6F}, {3, 0.4F, 1}};  // 3 stands for 1
  const Request run[] = {request(0), request(3)};
  f.accounts.ask(routes, run);
  CHECK(f().of(Phase::decode).requests == 2);
  CHECK(f().of(Phase::decode).substituted == 1);
  f.accounts.hit(run[0]);
  f.accounts.hit(run[1]);
  CHECK(f().of(Phase::decode).hits == 1);
  CHECK_FALSE(f.accounts.asked(3));
  f.accounts.miss(run[1]);
  CHECK(f().of(Phase::decode).misses == 0);
  CHECK(f().of(Phase::decode).miss_bytes == 0);
}

TEST_CASE("misses by score, if scores were seen") {
  AccountsFixture<stacks::LruCache> f(model(1, 4, 2), 0.5F);
  f.accounts.begin_step(Phase::decode, 1);
  const float select[] = {8, 4, 3, 1};  // beta = 3: 8 is above 4.5, 4 is not
  const Route routes[] = {{0, 0.6F}, {1, 0.4F}};
  const Request run[] = {request(0), request(1)};
  f.accounts.see({0, select, select});
  f.accounts.ask(routes, run);
  f.accounts.miss(run[0]);
  f.accounts.host(run[1]);
  const Outcomes& o = f().of(Phase::decode);
  CHECK(o.top_requests == 1);
  CHECK(o.low_requests == 1);
  CHECK(o.top_misses == 1);
  CHECK(o.low_misses == 1);
  f.accounts.see_no_scores();
  f.accounts.ask(routes, run);
  CHECK(o.requests == 4);
  CHECK(o.top_requests == 1);
}

TEST_CASE("an engine that substitutes by itself, beside a router that skips: outcomes still sum to the requests") {
  AccountsFixture<stacks::FerryLossy> f(model(1, 4, 2));
  f.accounts.begin_step(Phase::decode, 1);
  const Route routes[] = {{0, 0.6F}, {3, 0.4F, 1}};  // 3 stands for 1, which does not run
  const Request run[] = {request(0), request(3)};
  f.accounts.ask(routes, run);
  f.accounts.hit(run[0]);
  f.accounts.hit(run[1]);
  CHECK(f().of(Phase::decode).requests == 2);
  CHECK(f().of(Phase::decode).skipped == 1);
  CHECK(f().of(Phase::decode).hits == 1);
}
