/*
 * The core of one shard: all decisions of the server. It takes events and gives outputs, and has no I/O, no thread, no
 * clock and no randomness: with the same events at the same times it does the same, bit for bit. The I/O layer
 * (server/io, or the simulator in its place) calls it:
 *
 *     ampd_core_step(core, now_ms, &event);
 *     while (ampd_core_next(core, &output))
 *         ... do it ...
 *
 * One thread at a time. `now_ms` is a monotonic clock of the caller's and must not go back.
 */
#ifndef AMPD_CORE_H
#define AMPD_CORE_H

#include "base/err.h"
#include "server/core/core_info.h"
#include "server/core/events.h"
#include "server/core/model/model_memory.h"
#include "server/core/outputs.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

#define AMPD_LEASE_MS  30000 /* a worker's lease: longer than a pause of its process or of the network */
#define AMPD_CALLS_MAX 65536 /* calls that wait or stream at one time: 1,024 connections of 64 streams */
/* While at least this many calls wait or stream, a Pull is refused unless its worker is known to hold a rank. */
#define AMPD_CALLS_WITHOUT_RANK_MAX (AMPD_CALLS_MAX / 2)
#define AMPD_MODELS_MAX             1024

/*
 * Memory for copies of blocks that apply writes over before a checkpoint in the background has them, in percent of the
 * masters and moments that a model has on this shard, and at least one block. While it is used up, apply waits on
 * further such blocks until the checkpoint's writer has them; with 100 it waits only for those that the writer holds
 * (AMPD_PART_OUT_MAX).
 */
#define AMPD_CHECKPOINT_MEMORY 8

/*
 * How far a shard's new fence may be above the highest one known of it. A fence grows by one with each start, or with
 * each write to etcd by any of its users: 2^40 is ten thousand writes a second for three years. A number that is
 * further above comes from no counter, and a fence near the largest number would leave none for the processes after it.
 */
#define AMPD_FENCE_LEAP ((uint64_t)1 << 40)

/*
 * A worker is a straggler when, in AMPD_STRAGGLER_STEPS steps in a row, its push was complete last, AMPD_STRAGGLER_MS
 * or more after the one before it, and that wait was more than half of the step. Shorter waits are common on a shared
 * machine, and a single step may be due to a page fault.
 */
#define AMPD_STRAGGLER_STEPS 8
#define AMPD_STRAGGLER_MS    200
/*
 * A rank that has kept another's complete push waiting for this time, or for a third of the lease if that is longer, is
 * named in the log and in the status. Such lines about one model are at least this far apart.
 */
#define AMPD_AWAITED_MS 10000
/* A worker is named after this many pushes in a row with an Inf or NaN where at least half of the workers had none. */
#define AMPD_NONFINITE_PUSHES 5
/*
 * After AMPD_QUARANTINE_PUSHES such pushes in a row, steps go on without the worker, if they can, and nobody may join
 * as its rank for AMPD_QUARANTINE_MS. By the scale alone that would take eight halvings, after each of which one worker
 * still overflows and others do not.
 */
#define AMPD_QUARANTINE_PUSHES 8
#define AMPD_QUARANTINE_MS     60000
/*
 * A worker is also put in quarantine when AMPD_QUARANTINE_SHARE of its newest AMPD_QUARANTINE_WINDOW pushes were such
 * pushes, in any order, so that no worker alone has a quarter of the steps skipped. A push counts for this only at a
 * scale that is not above that of the worker's last finite push: above it, the grown scale is to blame, which may cause
 * any share.
 */
#define AMPD_QUARANTINE_WINDOW 64
#define AMPD_QUARANTINE_SHARE  16

struct ampd_core;

/* Zero means the default. */
struct ampd_core_config {
    uint32_t shard, shards;     /* this is shard `shard` of `shards` (default 1) */
    struct ampd_fence fence;    /* of this process, which must be stored before the core is made */
    uint64_t block_elements;    /* AMPD_BLOCK_ELEMENTS; a multiple of 64 */
    uint64_t lease_ms;          /* AMPD_LEASE_MS */
    uint64_t memory_max;        /* bytes that all models together may ever need; 0: no bound but the machine's */
    unsigned checkpoint_memory; /* percent (AMPD_CHECKPOINT_MEMORY), 1 to 100 */
    const char *checkpoint_dir; /* as messages to people name it; outlives the core. NULL: it has no name */
    uint64_t epoch_above; /* epochs of new models, and those after a loss, are above this; a lost store may know it */
    bool carry_own;       /* messages of the process to itself are outputs, too (the simulator delays them) */
    /* Where cast copies come from, so that workers on this machine can map them. NULL: from malloc. */
    const struct ampd_copy_memory *copy_memory;
    struct ampd_large_memory large_memory; /* who frees the memory of deleted models */
    bool check;       /* assert the invariants of every machine after each event, over all blocks (tests) */
    bool asks_epochs; /* epochs are counted outside of the stores, too: ask for a new one's number (RAISE_EPOCH) */
};

/* ---- life ---- */

/*
 * Makes a core without models. On success *core is the caller's (ampd_core_free). AMP_EINVAL (shard, shards or
 * block_elements), AMP_ENOMEM: *core is NULL.
 */
int ampd_core_new(const struct ampd_core_config *config, struct ampd_core **core);

/* Frees the core and all memory of its models; no job, stream or writer may use that any more. NULL is allowed. */
void ampd_core_free(struct ampd_core *core);

/* ---- operate ---- */

/* Handles one event. Never fails: a call that cannot be served gets an error as its reply. */
void ampd_core_step(struct ampd_core *core, uint64_t now_ms, const struct ampd_event *event);

/*
 * Counts memory outside of the core against memory_max, until _uncount_memory is called with the same number of bytes.
 * AMP_EEXHAUSTED with a text if less is left: nothing is counted.
 */
int ampd_core_count_memory(struct ampd_core *core, uint64_t bytes, struct amp_error *error);
void ampd_core_uncount_memory(struct ampd_core *core, uint64_t bytes);

/* The bytes that count against memory_max: those, and what all models may come to need. */
uint64_t ampd_core_memory_counted(const struct ampd_core *core);

/*
 * Whether a call of that incarnation, which does not come to the core, is to be refused, as a Push of it would be; then
 * *error says why, and the refusal is counted. Its line of the log is an output that follows the next event. A shard
 * other than 0 does not know of Joins, and refuses no incarnation that is newer than those that steps have listed.
 * index < ampd_core_models_count, rank < spec->world_size.
 */
bool ampd_core_refuse(struct ampd_core *core, uint32_t index, uint32_t rank, struct ampd_incarnation incarnation,
                      struct amp_error *error);

/* Turns lines of level DEBUG on or off, of which there are some for each step. At first they are off. */
void ampd_core_set_debug(struct ampd_core *core, bool on);

/* Sets *output to the next thing to do and returns true; false when there is none. See outputs.h for what it owns. */
bool ampd_core_next(struct ampd_core *core, struct ampd_output *output);

#endif
