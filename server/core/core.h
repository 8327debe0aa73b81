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
#include "server/core/core_info.h"
#include "server/core/events.h"
#include "server/core/model/copy_memory.h"
#include "server/core/outputs.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

#define AMPD_LEASE_MS  30000 /* of a worker: longer than a pause of its process or of the network */
#define AMPD_CALLS_MAX 65536 /* calls that wait or stream at one time; 1,024 connections of 64 streams */
/* From so many calls on that wait or stream, a Pull of nobody who is known to hold a rank is refused. */
#define AMPD_CALLS_WITHOUT_RANK_MAX (AMPD_CALLS_MAX / 2)
#define AMPD_MODELS_MAX             1024

/*
 * Memory for blocks that apply would write over before a checkpoint in the background has them, in percent of the
 * masters and moments of a model's part here, at least one block. When it is taken, apply waits for the writer on the
 * blocks concerned; with 100 only on those that the writer holds (AMPD_PART_OUT_MAX).
 */
#define AMPD_CHECKPOINT_MEMORY 8

/*
 * How far above the highest fence that is known of a shard a new one may be. Starts count by one, and revisions of etcd
 * by the writes of all who use it: ten thousand a second for three years, of which nothing was heard. Whoever says more
 * has not counted, and a fence near the end of the numbers would leave none for the processes after it.
 */
#define AMPD_FENCE_LEAP ((uint64_t)1 << 40)

/*
 * A worker is a straggler when in this many steps in a row it was complete last, at least so long after the one before
 * it, and for more than half of the step. Shorter waits are those of a shared machine; one step alone is a page fault.
 */
#define AMPD_STRAGGLER_STEPS 8
#define AMPD_STRAGGLER_MS    200
/*
 * A rank that has kept a complete push waiting for this time, or for a third of the lease if that is longer, is named.
 * Lines about one model are at least this far apart in the log.
 */
#define AMPD_AWAITED_MS 10000
/* Pushes in a row with an Inf or NaN of the worker's own, while another worker's had none. Chance does not do that. */
#define AMPD_NONFINITE_PUSHES 5
/*
 * After so many the steps go on without the worker, if they may, and its rank cannot be joined for so long. By chance
 * of the scale alone that would take eight halvings after which one worker still overflows and another does not.
 */
#define AMPD_QUARANTINE_PUSHES 8
#define AMPD_QUARANTINE_MS     60000
/*
 * The same after so many of the newest 64, in whatever turns, so that no worker alone has a quarter of the steps
 * skipped. One counts at a scale at which its last finite push was finite, too: a scale that has just grown makes any
 * share of them, and is to blame itself.
 */
#define AMPD_QUARANTINE_WINDOW 64
#define AMPD_QUARANTINE_SHARE  16

struct ampd_core;

/* Zero means the default. */
struct ampd_core_config {
    uint32_t shard, shards;     /* this is shard `shard` of `shards` (default 1) */
    struct ampd_fence fence;    /* of this process; stored before the core is made */
    uint64_t block_elements;    /* AMPD_BLOCK_ELEMENTS; a multiple of 64 */
    uint64_t lease_ms;          /* AMPD_LEASE_MS */
    uint64_t memory_max;        /* bytes that all models together may come to take; 0: no bound but the machine's */
    unsigned checkpoint_memory; /* percent (AMPD_CHECKPOINT_MEMORY), 1 to 100 */
    const char *checkpoint_dir; /* its name, for what is said of it; outlives the core. NULL: it has none */
    uint64_t epoch_above;       /* epochs that begin are above this: what a lost store may have known; 0: nothing */
    bool carry_own;             /* messages to itself go through the host too (the simulator delays them) */
    /* Where cast copies come from, so that workers of this host can map them. NULL: as all other memory. */
    const struct ampd_copy_memory *copy_memory;
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

/*
 * Memory beside the models' own that counts against memory_max: AMP_EEXHAUSTED with a text if it is not left. What is
 * counted is given back by _uncount.
 */
int ampd_core_count_memory(struct ampd_core *core, uint64_t bytes, struct amp_error *error);
void ampd_core_uncount_memory(struct ampd_core *core, uint64_t bytes);

/* Whether lines of level DEBUG are wanted: some for each step. At first none are. */
void ampd_core_set_debug(struct ampd_core *core, bool on);

/* Fills *output with the next thing to do and returns true; false when there is none. */
bool ampd_core_next(struct ampd_core *core, struct ampd_output *output);

#endif
