/*
 * The core of one shard: all decisions of the server. Events in, outputs out: no I/O, no thread, no clock, no
 * randomness. With the same events at the same times it does the same, bit for bit.
 *
 *     ampd_core_step(core, now_ms, &event);
 *     while (ampd_core_next(core, &output))
 *         ... do it ...
 *
 * One thread at a time. `now_ms` is a monotonic clock of the host's and must not go back.
 */
#ifndef AMPD_CORE_H
#define AMPD_CORE_H

#include "base/err.h"
#include "server/core/events.h"
#include "server/core/layout.h"
#include "server/core/outputs.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

#define AMPD_LEASE_MS   30000 /* STEP section 1 */
#define AMPD_CALLS_MAX  65536 /* calls that wait or stream at one time; 1,024 connections of 64 streams */
#define AMPD_MODELS_MAX 1024

/*
 * A worker is a straggler when in this many steps in a row it was complete last, at least so long after the one before it,
 * and for more than half of the step. Shorter waits are those of a shared machine; one step alone is a page fault.
 */
#define AMPD_STRAGGLER_STEPS 8
#define AMPD_STRAGGLER_MS    200
/*
 * A rank that has kept a complete push waiting for this time, or for a third of the lease if that is longer, is named. Lines
 * about one model are at least this far apart in the log.
 */
#define AMPD_AWAITED_MS 10000
/* Pushes in a row with an Inf or NaN of the worker's own, while another worker's had none. Chance does not do that. */
#define AMPD_NONFINITE_PUSHES 5
/*
 * After so many the steps go on without the worker, if they may, and its rank cannot be joined for so long. By chance of the scale
 * alone that would take eight halvings after which one worker still overflows and another does not.
 */
#define AMPD_QUARANTINE_PUSHES 8
#define AMPD_QUARANTINE_MS     60000
/*
 * The same after so many of the newest 64, in whatever turns, so that no worker alone has a quarter of the steps skipped. One counts at
 * a scale at which its last finite push was finite, too: a scale that has just grown makes any share of them, and is to blame itself.
 */
#define AMPD_QUARANTINE_WINDOW 64
#define AMPD_QUARANTINE_SHARE  16

struct ampd_core;
struct ampd_model;

/* Zero means the default. */
struct ampd_core_config {
    uint32_t shard, shards;     /* this is shard `shard` of `shards` (default 1) */
    struct ampd_fence fence;    /* of this process; stored before the core is made */
    uint64_t block_elements;    /* AMPD_BLOCK_ELEMENTS; a multiple of 64 */
    uint64_t lease_ms;          /* AMPD_LEASE_MS */
    uint64_t memory_max;        /* bytes that all models together may come to take; 0: no bound but the machine's */
    const char *checkpoint_dir; /* its name, for what is said of it; outlives the core. NULL: it has none */
    uint64_t epoch_above;       /* epochs that begin are above this: what a lost store may have known; 0: nothing */
    bool carry_own;             /* messages to itself go through the host too (the simulator delays them) */
    bool check;       /* the invariants of every machine are asserted after each event, over all blocks (tests) */
    bool asks_epochs; /* the highest epochs are kept outside of the stores, too: a new one is asked for (RAISE_EPOCH) */
};

/* ---- life ---- */

/* A core without models. On success *core is the caller's (ampd_core_free). AMP_EINVAL, AMP_ENOMEM. */
int ampd_core_new(const struct ampd_core_config *config, struct ampd_core **core);

/* Frees the core and all memory of its models: no job, stream or writer may use it any more. NULL is allowed. */
void ampd_core_free(struct ampd_core *core);

/* ---- operate ---- */

/* Takes one event. Never fails: what is wrong with a call is told in its reply. */
void ampd_core_step(struct ampd_core *core, uint64_t now_ms, const struct ampd_event *event);

/* Fills *output with the next thing to do and returns true; false when there is none. */
bool ampd_core_next(struct ampd_core *core, struct ampd_output *output);

/* ---- query: pure views, valid until the next ampd_core_step ---- */

/* Places of models; that of a deleted one is there until another model takes it (info.deleted). */
uint32_t ampd_core_models_count(const struct ampd_core *core);

/* Whether shard 0 knows what all shards hold; on another shard: always. Until then no model can be created. */
bool ampd_core_synced(const struct ampd_core *core);

/* Index of a model by name, or -1. */
int64_t ampd_core_find(const struct ampd_core *core, const char *name);

struct ampd_model_info {
    const struct ampd_model_spec *spec; /* with defaults filled in; it never changes. See ampd_core_hold */
    const struct ampd_layout *layout;   /* likewise */
    enum ampd_model_state state;
    bool recovering; /* after a start, until the new epoch is stored */
    const char *trouble; /* recovering: what must be mended before the model can go on, as a sentence; NULL: nothing */
    bool deleted;  /* there is no such model any more: nothing else is set but spec and layout */
    bool deleting; /* it is about to be deleted */
    bool unstable; /* max_consecutive_overflows reached */
    bool frozen;   /* at the floor of the scale: no step opens before an operator acts */
    uint64_t epoch;
    uint64_t base_epoch, base_step; /* where the epoch began */
    uint64_t step;                  /* the open step, or the next one */
    uint64_t decided_step;          /* last decided */
    uint64_t version;               /* newest complete one */
    uint64_t durable_step;
    struct amp_scaler_state scaler;   /* acts that wait for the next step included */
    uint64_t step_scale_id;           /* that the gradients of the open step carry */
    const struct ampd_step_row *last; /* row of decided_step in this process, or NULL */
    uint32_t missing_rank;            /* STALLED: who */
    /* Times of shard 0; 0: no step is open, or no complete push waits in it. */
    uint64_t open_since_ms;    /* when the present try of the step was opened */
    uint64_t awaited_since_ms; /* since when a complete push has waited for those of other ranks */
    uint64_t awaited_late_ms;  /* from when on those ranks are named (`awaited` of ampd_worker_info) */
    uint32_t checkpoints_count;
    const struct ampd_checkpoint_record *checkpoints; /* ascending */
    uint64_t range_total;                             /* values beyond the cast's range in the last apply */
    uint64_t memory_bytes;
    int64_t created_us; /* UTC, as the store has it */
};

/*
 * Keeps the specification and the layout of a model in memory until it is let go, even if it is deleted meanwhile: for those who
 * read them after this event, on any thread. index < ampd_core_models_count.
 */
struct ampd_model *ampd_core_hold(struct ampd_core *core, uint32_t index);
void ampd_core_let_go(struct ampd_model *held); /* before ampd_core_free; NULL is allowed */

/* index < ampd_core_models_count. */
void ampd_core_model(const struct ampd_core *core, uint32_t index, struct ampd_model_info *info);

struct ampd_worker_info {
    char name[AMPD_NAME_MAX]; /* "" : nobody ever held the rank */
    struct ampd_incarnation incarnation;
    bool joined;            /* under the present epoch */
    uint64_t lease_left_ms; /* 0: the lease has ended */
    bool left;
    uint64_t pushes;                        /* that counted, since this process started */
    uint64_t overflow_pushes;               /* of these, with an Inf or NaN of the worker's own */
    bool straggles;                         /* all others wait for it, again and again */
    bool nonfinite;                         /* its own gradients have Inf or NaN, again and again */
    bool quarantined;                       /* and steps go on without it: nobody may join as this rank for a while */
    uint64_t last_step;                     /* of the last push that counted; 0: none */
    uint64_t blocks_present, blocks_wanted; /* of the open step */
    bool awaited;                           /* another worker's push is complete and waits for this one's */
    const char *peer;                       /* where its last Join came from; "": not since this process started */
    uint64_t joins, leaves, fences;         /* Joins, Leaves and refused calls of the rank since this process started */
    uint64_t replacements;                  /* Joins by another process while the lease of the rank ran */
};

/* What this process knows of a shard of the cluster. */
struct ampd_shard_info {
    struct ampd_fence fence; /* the highest seen; counter 0: none */
    bool up;                 /* it is this one, or there is a session with it */
    bool leaving;            /* it has asked to end, and its next process has not spoken yet */
    /* of the models; shard 0 knows them of all, another shard of itself */
    uint64_t decided_step, applied_step; /* where one model is asked for */
    uint32_t behind, awaited; /* models: last decided step not applied; vote missing, while another is there */
};

/* shard < config.shards. `model`: an index, or -1: all. */
void ampd_core_shard(const struct ampd_core *core, uint32_t shard, int64_t model, struct ampd_shard_info *info);

/* rank < spec->world_size. */
void ampd_core_worker(const struct ampd_core *core, uint32_t index, uint32_t rank, uint64_t now_ms,
                      struct ampd_worker_info *info);

#endif
