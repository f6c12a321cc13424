/* An engine in plain C: libferry decides by any named stack, "lru" or the one that is given; bytes are checked. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ferry/ferry.h"

enum { LAYERS = 4, EXPERTS = 8, TOP_K = 2, EXPERT_BYTES = 4096, TOKENS = 100 };

/* All experts in host memory, and the slots of a device, which here is memory, too, for some of them. */
typedef struct {
  unsigned char host[LAYERS][EXPERTS][EXPERT_BYTES];
  unsigned char* device;
  const uint64_t* slots; /* where each slot starts */
  ferry_seen seen;
} engine;

/* The link: a memcpy, done on the spot. A real one would hand the copy to a thread or a stream. */
static void submit(void* context, const ferry_copy* copy) {
  engine* e = context;
  memcpy(e->device + e->slots[copy->slot], e->host[copy->what.layer][copy->what.expert], EXPERT_BYTES);
  if (copy->demand) {
    e->seen.demand_landed = copy->ticket;
  } else {
    e->seen.prefetch_begun = e->seen.prefetch_landed = copy->ticket;
  }
}
static void seen(void* context, ferry_seen* to) {
  *to = ((engine*)context)->seen;
}
static int wait_for(void* context, uint64_t ticket) {
  return (void)context, (void)ticket, 0; /* what was submitted has landed */
}

/* Stands for the gate: which experts this layer likes for this token. */
static void gate(float* scores, uint32_t token, uint32_t layer) {
  for (uint32_t i = 0; i < EXPERTS; ++i) scores[i] = 0.02F;
  scores[(token / 3 + layer) % EXPERTS] = 0.5F;
  scores[(token + 2 * layer) % EXPERTS] = 0.38F;
}

static void check(ferry_status status) {
  if (status == FERRY_OK) return;
  fprintf(stderr, "engine: %s\n", ferry_last_error());
  exit(2);
}

/* Stands for computing a task: the bytes that it reads must be those of its expert. */
static void run(const engine* e, const ferry_task* task) {
  const unsigned char* own = e->host[task->what.layer][task->what.expert];
  const unsigned char* weights = task->slot == FERRY_NO_SLOT ? own : e->device + e->slots[task->slot];
  if (memcmp(weights, own, EXPERT_BYTES) == 0) return;
  fprintf(stderr, "engine: layer %u, expert %u: wrong bytes\n", task->what.layer, task->what.expert);
  exit(1);
}

static void decode(ferry_pipeline* pipe, const engine* e, const ferry_traits* traits, uint32_t token) {
  const uint32_t sequence = 0;
  float scores[EXPERTS], ahead[EXPERTS];
  ferry_plan plan;
  check(ferry_begin_step(pipe, FERRY_DECODE, &sequence, 1));
  for (uint16_t layer = 0; layer < LAYERS; ++layer) {
    gate(scores, token, layer);
    const ferry_scores now = {.layer = layer, .select = scores, .count = EXPERTS};
    check(ferry_plan_scores(pipe, &now, &plan));
    const uint8_t rows = traits->rows[FERRY_DECODE]; /* a real engine runs the later layer's gate on what it asks for */
    for (uint16_t distance = 1; traits->predicts; ++distance) {
      const uint16_t next = ferry_layer_ahead(pipe, rows, distance);
      if (next == FERRY_NO_LAYER) break;
      gate(ahead, token, next);
      const ferry_scores predicted = {.layer = next, .select = rows ? ahead : NULL, .count = EXPERTS};
      check(ferry_look_ahead(pipe, &predicted));
    }
    for (uint32_t i = 0; i < plan.resident_count; ++i) run(e, &plan.resident[i]);
    check(ferry_done(pipe, plan.resident, plan.resident_count));
    for (uint32_t i = 0; i < plan.arriving_count; ++i) {
      check(ferry_wait(pipe, &plan.arriving[i]));
      run(e, &plan.arriving[i]);
      check(ferry_done(pipe, &plan.arriving[i], 1));
    }
    for (uint32_t i = 0; i < plan.host_count; ++i) run(e, &plan.host[i]);
    check(ferry_finish(pipe, layer, NULL));
  }
}

int main(int argc, char** argv) {
  static engine e;
  for (int i = 0; i < LAYERS * EXPERTS; ++i) memset(e.host[i / EXPERTS][i % EXPERTS], i, EXPERT_BYTES);
  const uint64_t bytes[FERRY_PRECISIONS] = {0, 0, 0, 0, EXPERT_BYTES}; /* at the model's own precision only */
  const ferry_options options = {.size = sizeof options,
                                 .stack = argc > 1 ? argv[1] : "lru",
                                 .layers = LAYERS,
                                 .experts = EXPERTS,
                                 .top_k = TOP_K,
                                 .max_rows = 1,
                                 .renormalise = FERRY_RENORMALISE_YES,
                                 .expert_bytes = bytes,
                                 .expert_byte_rows = 1,
                                 .budget_bytes = sizeof e.host / 2};
  const ferry_link link = {.size = sizeof link, .context = &e, .submit = submit, .seen = seen, .wait = wait_for};
  ferry_pipeline* pipe = NULL;
  check(ferry_open(&options, &link, &pipe));
  e.slots = ferry_slot_offsets(pipe);
  e.device = malloc(e.slots[ferry_slot_count(pipe)]);
  if (e.device == NULL) return fputs("engine: out of memory\n", stderr), 2;
  ferry_traits traits = {.size = sizeof traits};
  check(ferry_get_traits(pipe, &traits));
  if (traits.preloads) check(ferry_preload(pipe));
  for (uint32_t token = 0; token < TOKENS; ++token) decode(pipe, &e, &traits, token);

  ferry_counters counters = {.size = sizeof counters};
  check(ferry_get_counters(pipe, &counters));
  const ferry_outcomes* o = &counters.phase[FERRY_DECODE];
  printf("%s: %" PRIu64 " of %" PRIu64 " requests were hits\n", options.stack, o->hits, o->requests);
  ferry_close(pipe);
  free(e.device);
  return 0;
}
