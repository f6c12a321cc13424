/* What another engine in C would write. */
#include <ferry/ferry.h>
#include <stdio.h>

int main(void) {
  const uint64_t bytes[FERRY_PRECISIONS] = {0, 0, 0, 0, 64};
  const ferry_options options = {.size = sizeof options,
                                 .stack = "ferry",
                                 .layers = 2,
                                 .experts = 4,
                                 .top_k = 1,
                                 .max_rows = 1,
                                 .renormalise = FERRY_RENORMALISE_NO,
                                 .expert_bytes = bytes,
                                 .expert_byte_rows = 1,
                                 .budget_bytes = 4 * 64};
  ferry_pipeline* pipe = NULL;
  if (ferry_open(&options, NULL, &pipe) != FERRY_OK) return fprintf(stderr, "%s\n", ferry_last_error()), 1;
  const float gate[] = {0.1F, 0.6F, 0.2F, 0.1F};
  const ferry_scores scores = {.select = gate, .count = 4};
  const uint32_t sequence = 0;
  ferry_plan plan;
  const int good = ferry_begin_step(pipe, (ferry_phase)9, &sequence, 1) == FERRY_USAGE_ERROR &&
                   ferry_begin_step(pipe, FERRY_DECODE, &sequence, 1) == FERRY_OK &&
                   ferry_plan_scores(pipe, &scores, &plan) == FERRY_OK && plan.routes[0].expert == 1;
  ferry_close(pipe);
  return good ? 0 : 1;
}
