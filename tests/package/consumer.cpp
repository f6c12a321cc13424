// What another engine would write: nothing but our headers.
#include <ferry/ferry.hpp>

int main() {
  ferry::CoreConfig<ferry::stacks::LruCache> config;
  config.model.layers = 2;
  config.model.experts = 4;
  config.model.top_k = 1;
  config.model.max_rows = 1;
  config.model.renormalise = ferry::Renormalise::no;
  config.model.expert_bytes = {{0, 0, 0, 0, 64}};
  config.allotment = ferry::one_pool(config.model, 4 * 64);
  ferry::VirtualClock link(config.model, {});
  ferry::OffloadPipeline<ferry::stacks::LruCache, ferry::VirtualClock> pipe(config, link);
  const std::uint32_t sequence = 0;
  const float gate[] = {0.1F, 0.6F, 0.2F, 0.1F};
  pipe.begin_step({ferry::Phase::decode, {&sequence, 1}});
  const ferry::Plan plan = pipe.plan({0, {gate, 4}, {gate, 4}});
  pipe.wait(plan.arriving[0]);
  pipe.finish(0);
  return plan.arriving.size == 1 && plan.arriving[0].what.id.expert == 1 ? 0 : 1;
}
