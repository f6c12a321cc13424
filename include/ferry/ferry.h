/* @file
 * Ferry for engines that are not written in C++: any named stack behind a C interface, in the library libferry.
 *
 * A pipeline decides; the engine computes and moves the bytes. Either a ferry_link of callbacks carries copies out, or the
 * commands are data that the engine takes and carries out itself. One step of an engine with callbacks:
 *
 *     ferry_begin_step(pipe, FERRY_DECODE, sequences, rows);
 *     for each MoE layer:
 *       ferry_plan_scores(pipe, &scores, &plan);           demand copies are on their way
 *       look ahead, if the stack predicts                  prefetches for the layers that follow: ferry_layer_ahead
 *       run plan.resident;                                 ferry_done(pipe, plan.resident, plan.resident_count);
 *       for each task of plan.arriving:                    ferry_wait; run it; ferry_done
 *       run plan.host on the host
 *       ferry_finish(pipe, layer, NULL);
 *
 * Every function that can fail returns a ferry_status; ferry_last_error() then says in one sentence what was wrong and
 * what was expected. A refused call changes nothing. Calls are checked in every build, but a pointer cannot be: those that
 * are not said to be optional must be valid.
 *
 * Threads: one at a time for each pipeline. Memory: a pipeline allocates when it is opened, not when it decides (commands
 * that nobody takes are the one exception).
 *
 * Growth: structures that may grow begin with `size`, which the caller sets to sizeof of his own. Members that are added
 * later mean nothing when zero, so a structure is cleared before it is filled in:
 *
 *     ferry_options options = {.size = sizeof options, .stack = "ferry", ...};
 */
#ifndef FERRY_H
#define FERRY_H

#include <stddef.h>
#include <stdint.h>

/* What libferry exports. */
#if defined(_WIN32)
#define FERRY_API
#else
#define FERRY_API __attribute__((visibility("default")))
#endif

/* The library reads and writes these structures as types of its own. */
#if defined(__GNUC__)
#define FERRY_SHARED __attribute__((may_alias))
#else
#define FERRY_SHARED
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What became of a call; ferry_last_error says why. */
typedef enum ferry_status {
  FERRY_OK = 0,           /* the call has succeeded */
  FERRY_CONFIG_ERROR = 1, /* a set-up that cannot work */
  FERRY_USAGE_ERROR = 2,  /* a call out of turn, or one whose arrays do not fit the step */
  FERRY_LINK_ERROR = 3,   /* a copy that can never land */
  FERRY_MEMORY_ERROR = 4  /* no room for the tables */
} ferry_status;

/* Of this header. */
#define FERRY_H_VERSION "0.1.0"
/* "0.1.0": of the library that was linked. */
FERRY_API const char* ferry_version(void);

/* About the last call of this thread that returned a status: empty after FERRY_OK. Valid until the next. */
FERRY_API const char* ferry_last_error(void);

/* The named stacks, 0 to ferry_stack_count() - 1; NULL beyond. */
FERRY_API size_t ferry_stack_count(void);
/* Its name, as ferry_options takes it. */
FERRY_API const char* ferry_stack_name(size_t index);
/* What it does, in a line. */
FERRY_API const char* ferry_stack_summary(size_t index);

/* Precisions, in ascending order. */
enum {
  FERRY_SKIP = 0,      /* the expert is left out, unless it is there anyway */
  FERRY_INT2 = 1,      /* 2 bits a weight */
  FERRY_INT4 = 2,      /* 4 bits a weight */
  FERRY_INT8 = 3,      /* 8 bits a weight */
  FERRY_FULL = 4,      /* the model's own */
  FERRY_PRECISIONS = 5 /* how many there are */
};

/* Whether the model divides the weights of a row's experts by their sum: Mixtral does, Qwen1.5-MoE does not. A guess would
 * give wrong weights in silence, so it must be set. */
enum {
  FERRY_RENORMALISE_UNSET = 0, /* nobody has said: a set-up is refused */
  FERRY_RENORMALISE_NO = 1,    /* weights are what the gate gives */
  FERRY_RENORMALISE_YES = 2    /* they are divided by their sum */
};

/* What the rows of a step are. */
typedef enum ferry_phase {
  FERRY_PREFILL = 0, /* a chunk of one sequence's prompt */
  FERRY_DECODE = 1   /* a token of each sequence */
} ferry_phase;

/* What makes the rows that a predictor reads. */
enum {
  FERRY_ROWS_NONE = 0,          /* it reads none: it counts earlier routes, for instance */
  FERRY_ROWS_GATE_INPUT = 1,    /* the next layers' gates on this layer's gate input */
  FERRY_ROWS_PARTIAL_HIDDEN = 2 /* the same on the partial hidden state behind the attention of the layer predicted */
};

#define FERRY_NO_SLOT 0xffffffffU /* of a task: it runs on the host */
#define FERRY_NO_TASK 0xffffffffU /* of freed_by: waits for no other task */
#define FERRY_NO_EXPERT 0xffffU   /* of a route: this assignment is skipped */
#define FERRY_NO_LAYER 0xffffU    /* of ferry_layer_ahead: none is asked for */

/* What a pipeline is made of. Times are nanoseconds, sizes bytes; what is 0 is unknown, or has the value in brackets. */
typedef struct ferry_options {
  size_t size;                   /* sizeof(ferry_options) */
  const char* stack;             /* a name: "ferry", "lru", "fate", ... */
  const char* const* parameters; /* "name=value" as the ferry command has them: "half-life=64"; optional */
  size_t parameter_count;        /* how many of them */

  /* The model. Layers are MoE layers only, from 0. Where layers differ, the largest. */
  uint16_t layers, experts, top_k;
  uint8_t renormalise; /* FERRY_RENORMALISE_YES or _NO */
  uint8_t in_order;    /* without a link: each copy lands before what comes behind it, and nothing is reported */
  float least_sum;     /* weights are divided by max(sum + added_to_sum, least_sum) (0) */
  float added_to_sum;  /* DeepSeek-V3 adds 1e-20 (0) */
  float scale;         /* of the weights, behind the division (1) */
  uint32_t max_rows;   /* the most rows of one step: the largest prefill chunk or batch */
  const uint64_t* expert_bytes;  /* [expert_byte_rows, FERRY_PRECISIONS], 0: not stored at that precision */
  size_t expert_byte_rows;       /* 1: all layers alike, or as many as layers */
  const uint16_t* layer_experts; /* [layers], or NULL */
  const uint16_t* layer_top_k;   /* [layers], or NULL */

  /* Device memory for experts. */
  uint64_t budget_bytes; /* not read by resident stacks: they take what all experts do */
  uint32_t stream_slots; /* (2); with max(2, min(experts, max_rows * top_k)) no task has freed_by */

  /* The machine, for stacks that weigh costs. A copy takes copy_start_ns + bytes / copy_bytes_per_s. */
  double copy_bytes_per_s;
  uint64_t copy_start_ns;               /* added to each copy */
  uint64_t device_ns[FERRY_PRECISIONS]; /* an expert on the device */
  uint64_t host_ns[FERRY_PRECISIONS];   /* on the host, with one row */
  uint64_t host_row_ns;                 /* no expert takes less than this on the host for each of its rows */
  uint64_t host_start_ns;               /* a layer's share of the host, whatever it computes */
  uint32_t link_beside_host;            /* how fast copies are while the host computes, in thousandths (1000) */
  uint32_t host_beside_copies;          /* how fast the host is while a copy is on the link (1000) */
} ferry_options;

/* One expert at one precision: what crosses the link and sits in a slot. */
typedef struct FERRY_SHARED ferry_variant {
  uint16_t layer, expert; /* MoE layers only, both from 0 */
  uint8_t precision;      /* FERRY_INT2 to FERRY_FULL */
} ferry_variant;

/* One copy into a slot. Tickets ascend; odd ones are prefetches. Not one byte of the slot may be written before the fence
 * `after` is reached; 0: there is nothing to wait for. Demand copies go before prefetches that have not begun. */
typedef struct FERRY_SHARED ferry_copy {
  uint64_t ticket;    /* its number */
  ferry_variant what; /* which expert, at which precision */
  uint32_t slot;      /* where to */
  uint64_t after;     /* the slot's last reader */
  uint8_t demand;     /* the gate asked for it; else it is a prefetch */
} ferry_copy;

/* How far copies have got; no ticket ever goes back. A prefetch that was dropped counts as begun and landed. */
typedef struct FERRY_SHARED ferry_seen {
  uint64_t demand_landed;   /* every demand copy up to this ticket has landed */
  uint64_t prefetch_begun;  /* every prefetch up to this one has begun */
  uint64_t prefetch_landed; /* every prefetch up to this one has landed */
  int64_t link_ns;          /* until the copy on the link has landed, as a guess; 0: none is, or unknown */
  int64_t chunk_ns;         /* until a demand copy may go ahead of the prefetch on the link; 0: none may */
} ferry_seen;

/* Carries copies out. Called from within the pipeline's calls, on their thread; must not call the pipeline. The rules are
 * those of the concept Link in concepts.hpp. */
typedef struct ferry_link {
  size_t size;                                           /* sizeof(ferry_link) */
  void* context;                                         /* the first argument of each call */
  void (*submit)(void* context, const ferry_copy* copy); /* carries this copy out, or begins to */
  void (*drop)(void* context, uint64_t ticket);          /* a prefetch that need not begin any more; optional */
  void (*seen)(void* context, ferry_seen* seen);         /* writes how far copies have got */
  void (*fence)(void* context, uint64_t fence);          /* names the present end of the device's work; optional */
  int (*wait)(void* context, uint64_t ticket);           /* 0 once it has landed; anything else if it never can */
} ferry_link;

/* A row's assignment to an expert. */
typedef struct FERRY_SHARED ferry_route {
  uint16_t expert;     /* who computes the row; FERRY_NO_EXPERT: nobody */
  float weight;        /* what its output is multiplied by */
  uint16_t instead_of; /* the gate's choice, if `expert` is a substitute or it is left out; else FERRY_NO_EXPERT */
} ferry_route;

/* One expert to run. Its rows are assignments[first .. first + rows) of the plan. */
typedef struct FERRY_SHARED ferry_task {
  ferry_variant what;   /* the variant that is there, which may be better than asked for */
  uint32_t slot;        /* FERRY_NO_SLOT: runs on the host */
  uint32_t first, rows; /* of assignments */
  uint32_t freed_by;    /* index in `arriving` whose ferry_done lets this task's copy start; else FERRY_NO_TASK */
  uint64_t ready;       /* the ticket to wait for before computing; 0: none */
  uint8_t transient;    /* in a stream slot: gone once done */
} ferry_task;

/* Valid until the pipeline's next plan. */
typedef struct ferry_plan {
  const ferry_route* routes;   /* [rows, top_k] */
  uint32_t route_count;        /* how many routes */
  const uint32_t* assignments; /* by task; each is row * top_k + rank, an index into routes */
  uint32_t assignment_count;   /* how many assignments */
  const ferry_task* resident;  /* can run at once */
  uint32_t resident_count;     /* how many resident tasks */
  const ferry_task* arriving;  /* in this order: wait, run, done */
  uint32_t arriving_count;     /* how many arriving tasks */
  const ferry_task* host;      /* run on the host */
  uint32_t host_count;         /* how many host tasks */
} ferry_plan;

/* Gate scores of one layer, real or predicted: [rows, experts] floats each, row by row. */
typedef struct ferry_scores {
  uint16_t layer;       /* whose gate, from 0 */
  const float* select;  /* chooses */
  const float* weight;  /* scales the output, not negative; NULL: the same array */
  uint32_t count;       /* floats in each: rows * experts */
  const uint32_t* rows; /* which rows of the step these are, ascending; NULL: all */
  uint32_t row_count;   /* 0: all */
} ferry_scores;

/* What a layer took, for stacks that learn costs; 0: not measured. */
typedef struct FERRY_SHARED ferry_times {
  int64_t attention_ns; /* of the layer, with all else that each token needs */
  int64_t gate_ns;      /* of the layer */
  int64_t device_ns;    /* of one expert */
  int64_t host_ns;      /* of one row of one expert */
} ferry_times;

/* What a stack is like. */
typedef struct ferry_traits {
  size_t size;               /* sizeof(ferry_traits) */
  uint8_t predicts;          /* look-aheads are of use to it */
  uint8_t caches;            /* keeps experts in slots */
  uint8_t substitutes;       /* may run other experts than the gate chose */
  uint8_t skips;             /* may leave out what the gate chose */
  uint8_t preloads;          /* wants ferry_preload before the first step */
  uint8_t computes_on_host;  /* may leave misses to the host */
  uint8_t needs_scores;      /* takes ferry_plan_scores only */
  uint8_t rows[2];           /* by ferry_phase: FERRY_ROWS_..., what makes the rows that it predicts from */
  uint16_t look_ahead_depth; /* how many layers ahead its predictor looks; 0: it does not */
} ferry_traits;

/* hits + late_hits + misses + substituted + skipped + host_computed == requests, each counted once an expert, layer and
 * step. */
typedef struct ferry_outcomes {
  uint64_t steps, requests; /* forward passes; experts that the gate asked for */
  uint64_t hits;            /* resident when asked for */
  uint64_t late_hits;       /* on the link already: the layer waits for the rest of that copy */
  uint64_t misses;          /* copied because it was asked for */
  uint64_t substituted;     /* another expert ran instead */
  uint64_t skipped;         /* nothing ran instead */
  uint64_t host_computed;   /* ran on the host */
  uint64_t bytes;           /* given to the link, less what was taken back */
} ferry_outcomes;

/* What a pipeline has counted since it was opened. */
typedef struct ferry_counters {
  size_t size;                 /* sizeof(ferry_counters) */
  ferry_outcomes phase[2];     /* by ferry_phase */
  uint64_t prefetches;         /* submitted, less those taken back */
  uint64_t prefetches_used;    /* asked for by the gate before they left */
  uint64_t prefetches_dropped; /* taken back */
  uint64_t promoted;           /* submitted because the cache wanted them most */
  uint64_t prefetched_bytes;   /* of `prefetches` */
  uint64_t wasted_bytes;       /* evicted without having been asked for */
  uint64_t preload_bytes;      /* copied by ferry_preload */
  uint64_t layers_not_asked;   /* where a stack that predicts was not asked to look ahead */
  uint64_t unfinished_steps;   /* given up by the next one's ferry_begin_step */
} ferry_counters;

/* A core, its tables and its link. One thread at a time may call it. For NULL, calls with a status return FERRY_USAGE_ERROR, and the
 * others do nothing and return 0, NULL or FERRY_NO_LAYER. */
typedef struct ferry_pipeline ferry_pipeline;

/* Opens a pipeline. `link`: copied; its context outlives the pipeline. NULL: commands are data (ferry_take_commands).
 * `*pipe` is set if the status is FERRY_OK alone. */
FERRY_API ferry_status ferry_open(const ferry_options* options, const ferry_link* link, ferry_pipeline** pipe);
/* Ends it, and frees what it has. */
FERRY_API void ferry_close(ferry_pipeline* pipe);

/* The slots: slot s takes bytes offsets[s] to offsets[s + 1] of an arena that the engine owns, [slot_count + 1]. Offsets are
 * multiples of 64. */
FERRY_API uint32_t ferry_slot_count(const ferry_pipeline* pipe);
/* [ferry_slot_count + 1], ascending; valid until ferry_close. */
FERRY_API const uint64_t* ferry_slot_offsets(const ferry_pipeline* pipe);

/* What the stack is like; `traits->size` is set by the caller. */
FERRY_API ferry_status ferry_get_traits(const ferry_pipeline* pipe, ferry_traits* traits);
/* What has been counted so far; `counters->size` is set by the caller. */
FERRY_API ferry_status ferry_get_counters(const ferry_pipeline* pipe, ferry_counters* counters);

/* Fills free slots, before the first step. */
FERRY_API ferry_status ferry_preload(ferry_pipeline* pipe);
/* One forward pass: a chunk of a prompt, or one token of each sequence. `sequence`: [rows]. */
FERRY_API ferry_status ferry_begin_step(ferry_pipeline* pipe, ferry_phase phase, const uint32_t* sequence,
                                        uint32_t rows);
/* Who runs, where, at which precision, by the gate's scores of a layer. */
FERRY_API ferry_status ferry_plan_scores(ferry_pipeline* pipe, const ferry_scores* scores, ferry_plan* plan);
/* The same for an engine with a top-k of its own: [rows, top_k] routes, best first. `rows`: as in ferry_scores. */
FERRY_API ferry_status ferry_plan_routes(ferry_pipeline* pipe, uint16_t layer, const ferry_route* routes,
                                         uint32_t route_count, const uint32_t* rows, uint32_t row_count,
                                         ferry_plan* plan);
/* The layer `distance` (1, 2, ...) ahead of the one planned last, if a look-ahead for it from such rows is of use now; else
 * FERRY_NO_LAYER, behind which no farther one is. */
FERRY_API uint16_t ferry_layer_ahead(const ferry_pipeline* pipe, uint8_t rows_from, uint16_t distance);
/* Scores predicted for a later layer. For a predictor that reads no rows: select and weight NULL, and `predicted->count`
 * is not read. */
FERRY_API ferry_status ferry_look_ahead(ferry_pipeline* pipe, const ferry_scores* predicted);
/* Waits for the copy that the task reads, by the link's own; of a resident task nothing. */
FERRY_API ferry_status ferry_wait(ferry_pipeline* pipe, const ferry_task* task);
/* Tasks that have been computed, or will have been once the device's present work is. */
FERRY_API ferry_status ferry_done(ferry_pipeline* pipe, const ferry_task* tasks, uint32_t count);
/* The layer is over. `times`: optional. */
FERRY_API ferry_status ferry_finish(ferry_pipeline* pipe, uint16_t layer, const ferry_times* times);
/* Gives the step up after an error, at any point. */
FERRY_API void ferry_abandon(ferry_pipeline* pipe);
/* No step will have rows of this sequence any more; its number may be used again. */
FERRY_API void ferry_end_sequence(ferry_pipeline* pipe, uint32_t sequence);

/* The plan as data, for a pipeline without a link: what a link would have been told, in order. The engine takes the commands
 * before it passes a group of tasks on, and gives both to the other side in that order.
 *
 * With `in_order` the other side carries out one thing after the other; nothing is reported, and drops, fences and waits may
 * be passed over. Without, copies run beside computation, and ferry_report says how far they have got. */
enum {
  FERRY_COMMAND_COPY = 0,  /* carry out `copy` */
  FERRY_COMMAND_DROP = 1,  /* take the prefetch copy.ticket back, if it has not begun */
  FERRY_COMMAND_FENCE = 2, /* copy.after is reached once the work that was given before it is */
  FERRY_COMMAND_WAIT = 3   /* the work that follows reads what the copy copy.ticket brings */
};
/* One call of a link, as data. */
typedef struct FERRY_SHARED ferry_command {
  uint8_t kind;    /* FERRY_COMMAND_... */
  ferry_copy copy; /* of other kinds only the member that is named there */
} ferry_command;
/* The commands since the last time. Valid until the next time. */
FERRY_API ferry_status ferry_take_commands(ferry_pipeline* pipe, const ferry_command** commands, uint32_t* count);
/* How far the other side has got. What is known stays known, so that reports may overtake each other. */
FERRY_API ferry_status ferry_report(ferry_pipeline* pipe, const ferry_seen* seen);

#ifdef __cplusplus
}
#endif
#endif
