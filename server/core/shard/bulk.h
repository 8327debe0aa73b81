/*
 * Jobs over all blocks of a shard: apply, load, restore, replay (bulk.c). At most one such kind is under way for a
 * model at a time. All functions run on the thread that steps the core. Private to server/core.
 */
#ifndef AMPD_CORE_BULK_H
#define AMPD_CORE_BULK_H

#include "server/core/model/tensors.h"
#include "server/core/wire/messages.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_job;
struct ampd_model;
struct ampd_plan;

/* Which jobs over all blocks are under way. */
enum ampd_bulk {
    AMPD_BULK_NONE,
    AMPD_BULK_APPLY,   /* the decided step goes into the masters */
    AMPD_BULK_LOAD,    /* loaded masters are cast */
    AMPD_BULK_RESTORE, /* masters read from a checkpoint are cast */
    AMPD_BULK_REPLAY,  /* a step of the journal goes into the masters */
    AMPD_BULK_VOID     /* a restore has made the jobs pointless: only their end is waited for */
};

/* The jobs of one model that the compute threads have. */
struct ampd_shard_jobs {
    uint64_t out;         /* jobs handed out and not yet back, of every kind */
    uint32_t *busy;       /* per block: jobs that are out for it */
    enum ampd_bulk bulk;  /* what runs over all blocks */
    uint64_t bulk_left;   /* blocks whose job of that kind is not done, the blocked ones included */
    uint64_t bulk_serial; /* numbers these runs: a job with an older number counts for nothing */
};

/* A decided step on its way into the masters and their cast copies. */
struct ampd_apply {
    struct ampd_plan *plan;       /* what the jobs of the apply share; one reference, or NULL */
    bool waits;                   /* the step is APPLYING, but its jobs are not out yet */
    struct ampd_applied warnings; /* values beyond the cast's range, found by the last cast of all blocks */
    uint8_t *pending;             /* per block: 1 while slots hold bytes of the decided step that apply must read */
    uint8_t *published;           /* per block: 1 when its cast of the version being written is complete */
    /* Of two versions, the shard's and the one before, each has its copy; true: it holds all of that version. */
    bool copy_valid[AMPD_COPIES];
    uint64_t streamed;        /* the newest version that was granted to a pull which wants its blocks as a stream */
    uint8_t *blocked;         /* per block: 1 while its apply waits for the checkpoint's writer */
    uint64_t blocked_count;   /* blocks with `blocked` set */
    uint64_t blocked_next;    /* no block below this index is blocked */
    uint64_t blocked_from_ms; /* since when the apply has waited for nothing but a checkpoint; 0: it does not */
};

/*
 * Hands out one job with this work for each block, as the run `kind`; none may be under way. Takes references to the
 * plan of its own. A shard without blocks is done at once.
 */
void ampd_shard_bulk(struct ampd_model *model, enum ampd_bulk kind, uint32_t work, struct ampd_plan *plan);

/* The last job of the run is back: ends it, and goes on with what it was for (load, restore, replay or apply). */
void ampd_shard_bulk_done(struct ampd_model *model);

/*
 * Begins the apply of the decided step, if it waits and may begin: no other run is under way, no checkpoint waits to
 * begin, and no pull reads the copy that it writes over (such pulls are revoked, and this is called again).
 */
void ampd_shard_try_apply(struct ampd_model *model);

/*
 * Counts the time in which the apply has nothing to do but wait: for blocks that a checkpoint has yet to write, or with
 * all blocks for a second checkpoint to begin. Called before and after each change of that.
 */
void ampd_shard_watch_blocked(struct ampd_model *model);

/* Hands out the apply jobs of blocked blocks that the checkpoint has let go of. */
void ampd_shard_try_blocked(struct ampd_model *model);

/* A restore or deletion begins: jobs that are out come back and count for nothing; blocked ones are not begun. */
void ampd_shard_forget_bulk(struct ampd_model *model);

/* A job is back (AMPD_EVENT_JOB_DONE): drops its reference to the plan, and goes on with all that waited for it. */
void ampd_shard_job_done(struct ampd_model *model, const struct ampd_job *job);

#endif
