/*
 * Queries of the core of a shard (core.h). What they point to is valid until the next ampd_core_step. All functions are
 * called on the thread that steps the core. A model is named by its index, below ampd_core_models_count.
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
struct ampd_vote_terms;

/*
 * How many places for models there are. The place of a deleted one (info.deleted) stays until another model takes it.
 */
uint32_t ampd_core_models_count(const struct ampd_core *core);

/* Whether shard 0 knows what all shards hold, before which no model can be created; true on any other shard. */
bool ampd_core_synced(const struct ampd_core *core);

/* The index of the model with this name, or -1. */
int64_t ampd_core_find(const struct ampd_core *core, const char *name);

/* What a model waits for. Times are of the core's clock and on shard 0 alone; else 0. */
struct ampd_model_waits {
    uint32_t missing_rank;     /* STALLED: the rank that is waited for */
    uint64_t open_since_ms;    /* when the present try of the step was opened; 0: no step is open */
    uint64_t awaited_since_ms; /* since when a complete push waits for those of other ranks; 0: none does */
    uint64_t awaited_late_ms;  /* from when on the log names those ranks (ampd_worker_info.awaited); 0: none wait */
};

struct ampd_model_info {
    const struct ampd_model_spec *spec; /* with defaults filled in; it never changes. See ampd_core_hold */
    const struct ampd_layout *layout;   /* it never changes. See ampd_core_hold */
    enum ampd_model_state state;
    bool recovering;     /* after a start, until the new epoch is stored */
    const char *trouble; /* recovering: what must be repaired before it can go on, as a sentence. NULL: nothing */
    bool deleted;        /* there is no such model any more: of the other fields only spec and layout count */
    bool deleting;       /* it is about to be deleted */
    bool unstable;       /* max_consecutive_overflows is reached */
    bool frozen;         /* at the floor of the scale: no step opens before an operator acts */
    uint64_t epoch;
    uint64_t base_epoch, base_step;   /* the checkpoint that the epoch began from; base_epoch 0: none */
    uint64_t step;                    /* the open step, or the next one */
    uint64_t decided_step;            /* the last decided step */
    uint64_t version;                 /* the newest that is complete on this shard */
    uint64_t durable_step;            /* the last step that no crash can take back, as far as this shard knows */
    struct amp_scaler_state scaler;   /* loss-scale record, with operator actions that wait for the next step */
    double lr;                        /* base learning rate of the next verdict; 0: the workers give it */
    uint64_t step_scale_id;           /* scale id that the gradients of the open step carry */
    const struct ampd_step_row *last; /* row of decided_step; NULL: not decided in this epoch and process */
    struct ampd_model_waits waits;
    uint32_t checkpoints_count;              /* checkpoints that this shard has its part of */
    uint32_t checkpoints_whole, parts_count; /* the first, up to the newest that is whole; parts of each */
    const struct ampd_checkpoint_record *checkpoints; /* [checkpoints_count] ascending steps */
    uint64_t range_total;              /* values of this shard beyond the cast's range in the last apply */
    uint64_t memory_bytes;             /* of its tensors on this shard */
    uint64_t first_block, block_count; /* the blocks of this shard */
    uint8_t *const *copies; /* [AMPD_COPIES] cast copies, of config.copy_memory; valid as long as the model */
    size_t copy_bytes;      /* of each copy */
    int64_t created_us;     /* UTC microseconds, as the store has it */
};

/*
 * Keeps the specification and the layout of a model in memory until ampd_core_let_go, even if it is deleted meanwhile,
 * so that any thread may read them after this event. It is let go before ampd_core_free; NULL is allowed.
 */
struct ampd_model *ampd_core_hold(struct ampd_core *core, uint32_t index);
void ampd_core_let_go(struct ampd_model *held);

/* The state of a model, as this process knows it. */
void ampd_core_model(const struct ampd_core *core, uint32_t index, struct ampd_model_info *info);

/* A rank and its worker. Shard 0 knows all of it; another shard knows `listed`, `fences` and the blocks alone. */
struct ampd_worker_info {
    char name[AMPD_NAME_MAX]; /* "": no worker has ever held the rank */
    struct ampd_incarnation incarnation;
    struct ampd_incarnation listed; /* another shard than 0: the newest that a step has listed; counter 0: none yet */
    bool joined;                    /* under the present epoch */
    uint64_t lease_left_ms;         /* 0: the lease has ended */
    uint64_t lost_since_ms;         /* when the lease ended, if not by a Leave; 0: it has not */
    bool left;                      /* given back by a Leave, or an eviction */
    uint64_t pushes;                /* that counted, since this process started */
    uint64_t overflow_pushes;       /* of these, with an Inf or NaN of the worker's own */
    bool straggles;                 /* its lease lives, and all others wait for it, again and again */
    uint64_t slow_steps, slow_ms;   /* steps in which all others waited for it, and how long, since the start */
    bool nonfinite;                 /* its lease lives, and its own gradients have Inf or NaN, again and again */
    bool quarantined;               /* steps go on without it, and nobody may join as this rank for a while */
    uint64_t last_step;             /* step of the last push that counted; 0: none */
    uint64_t blocks_present, blocks_wanted; /* of the open step, on this shard */
    bool awaited;                           /* another worker's push is complete and waits for this one's */
    const char *peer;                       /* address of its last Join; "": none since this process started */
    uint64_t joins, leaves, fences;         /* Joins, Leaves and refused calls of the rank since this process started */
    uint64_t replacements;                  /* Joins by another process while the lease of the rank ran */
};

/* What this process knows of a shard of the cluster. */
struct ampd_shard_info {
    struct ampd_fence fence; /* the highest seen; counter 0: none */
    bool up;                 /* it is this shard, or there is a session with it */
    bool leaving;            /* it has asked to end, and its next process has sent nothing yet */
    /* Shard 0 knows the following of all shards, another shard of itself alone. */
    uint64_t decided_step, applied_step; /* of the one model that was asked for; else 0 */
    /* Models whose last decided step it has not applied; and that lack its vote, while another shard's is there. */
    uint32_t behind, awaited;
};

/* What is known of a shard, below config.shards, with regard to one model; -1: all models. */
void ampd_core_shard(const struct ampd_core *core, uint32_t shard, int64_t model, struct ampd_shard_info *info);

/* What is known of a rank, below spec->world_size. now_ms: the core's clock now. */
void ampd_core_worker(const struct ampd_core *core, uint32_t index, uint32_t rank, uint64_t now_ms,
                      struct ampd_worker_info *info);

/* Whether all shards have their part of checkpoints[i], as this one knows, and of how many. Users see no others. */
bool ampd_core_is_whole(const struct ampd_model_info *info, uint32_t i);
uint32_t ampd_core_count_whole(const struct ampd_model_info *info);

/*
 * The name of the worker that holds, or held, the rank under that incarnation; "": not known, as when another worker
 * has taken the rank since. rank < spec->world_size.
 */
const char *ampd_core_worker_name(const struct ampd_core *core, uint32_t index, uint32_t rank,
                                  struct ampd_incarnation incarnation);

/*
 * The terms of a vote on the rank's blocks as they come, for ampd_take_block. False, and *terms is unchanged: the rank
 * is not the only contributor of the open step, as far as is known yet, or weights are pushed, or the vote keeps g.
 * rank < spec->world_size.
 */
bool ampd_core_vote_terms(const struct ampd_core *core, uint32_t index, uint32_t rank, struct ampd_vote_terms *terms);

/* Whether the vote that is being written to the journal is that of the open step; if not, nothing needs it. */
bool ampd_core_wants_vote(const struct ampd_core *core, uint32_t index);

#endif
