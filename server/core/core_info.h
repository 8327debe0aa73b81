/*
 * Questions to the core of a shard (core.h): pure views, valid until the next ampd_core_step. One thread at a time, the
 * one that steps it.
 */
#ifndef AMPD_CORE_INFO_H
#define AMPD_CORE_INFO_H

#include "server/core/model/layout.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct amp_error;
struct ampd_core;
struct ampd_model;

/* Places of models; that of a deleted one is there until another model takes it (info.deleted). */
uint32_t ampd_core_models_count(const struct ampd_core *core);

/* Whether shard 0 knows what all shards hold; on another shard: always. Until then no model can be created. */
bool ampd_core_synced(const struct ampd_core *core);

/* Index of a model by name, or -1. */
int64_t ampd_core_find(const struct ampd_core *core, const char *name);

/* What a model waits for. Times of shard 0; 0: no step is open, or no complete push waits in it. */
struct ampd_model_waits {
    uint32_t missing_rank;     /* STALLED: who */
    uint64_t open_since_ms;    /* when the present try of the step was opened */
    uint64_t awaited_since_ms; /* since when a complete push has waited for those of other ranks */
    uint64_t awaited_late_ms;  /* from when on those ranks are named (`awaited` of ampd_worker_info) */
};

struct ampd_model_info {
    const struct ampd_model_spec *spec; /* with defaults filled in, it never changes. See ampd_core_hold */
    const struct ampd_layout *layout;   /* likewise */
    enum ampd_model_state state;
    bool recovering;     /* after a start, until the new epoch is stored */
    const char *trouble; /* recovering: what must be mended before the model can go on, as a sentence, NULL: nothing */
    bool deleted;        /* there is no such model any more: nothing else is set but spec and layout */
    bool deleting;       /* it is about to be deleted */
    bool unstable;       /* max_consecutive_overflows reached */
    bool frozen;         /* at the floor of the scale: no step opens before an operator acts */
    uint64_t epoch;
    uint64_t base_epoch, base_step; /* where the epoch began */
    uint64_t step;                  /* the open step, or the next one */
    uint64_t decided_step;          /* last decided */
    uint64_t version;               /* newest complete one */
    uint64_t durable_step;
    struct amp_scaler_state scaler;   /* operator actions that wait for the next step included */
    double lr;                        /* base learning rate of the next verdict; 0: the workers give it */
    uint64_t step_scale_id;           /* that the gradients of the open step carry */
    const struct ampd_step_row *last; /* row of decided_step in this process, or NULL */
    struct ampd_model_waits waits;
    uint32_t checkpoints_count;                       /* that this shard has its part of */
    uint32_t checkpoints_whole;                       /* the first of them: as far as shard 0 knows, all have theirs */
    const struct ampd_checkpoint_record *checkpoints; /* ascending */
    uint64_t range_total;                             /* values beyond the cast's range in the last apply */
    uint64_t memory_bytes;
    uint64_t first_block, block_count; /* of this shard */
    uint8_t *const *copies;            /* [AMPD_COPIES], of config.copy_memory, as long as there is the model */
    size_t copy_bytes;                 /* of each */
    int64_t created_us;                /* UTC, as the store has it */
};

/*
 * Keeps the specification and the layout of a model in memory until it is let go, even if it is deleted meanwhile: for
 * those who read them after this event, on any thread. index < ampd_core_models_count.
 */
struct ampd_model *ampd_core_hold(struct ampd_core *core, uint32_t index);
void ampd_core_let_go(struct ampd_model *held); /* before ampd_core_free; NULL is allowed */

/* index < ampd_core_models_count. */
void ampd_core_model(const struct ampd_core *core, uint32_t index, struct ampd_model_info *info);

struct ampd_worker_info {
    char name[AMPD_NAME_MAX]; /* "" : nobody ever held the rank */
    struct ampd_incarnation incarnation;
    struct ampd_incarnation listed; /* another shard than 0: the newest that a step counts on; counter 0: none yet */
    bool joined;                    /* under the present epoch */
    uint64_t lease_left_ms;         /* 0: the lease has ended */
    uint64_t lost_since_ms;         /* when the lease has ended, and not by a Leave; 0: it has not. Shard 0 knows it */
    bool left;
    uint64_t pushes;              /* that counted, since this process started */
    uint64_t overflow_pushes;     /* of these, with an Inf or NaN of the worker's own */
    bool straggles;               /* its lease lives, and all others wait for it, again and again */
    uint64_t slow_steps, slow_ms; /* steps in which they did, since this process started, and how long */
    bool nonfinite;               /* its lease lives, and its own gradients have Inf or NaN, again and again */
    bool quarantined;             /* and steps go on without it: nobody may join as this rank for a while */
    uint64_t last_step;           /* of the last push that counted; 0: none */
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

/*
 * The name of who held, or holds, the rank under that incarnation; "": it is not known, as where another worker has the
 * rank since. rank < spec->world_size.
 */
const char *ampd_core_worker_name(const struct ampd_core *core, uint32_t index, uint32_t rank,
                                  struct ampd_incarnation incarnation);

/*
 * Whether a call of that incarnation is to be refused, as a Push of it would be; then *error says why. Another shard
 * than 0 does not know of Joins: there one that is newer than `listed` is not refused. rank < spec->world_size.
 */
bool ampd_core_is_fenced(const struct ampd_core *core, uint32_t index, uint32_t rank,
                         struct ampd_incarnation incarnation, struct amp_error *error);

#endif
