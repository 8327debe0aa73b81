/*
 * One process: its models, its messages, and what it knows of the other shards (process.c). All functions run on the
 * thread that steps the core. Private to server/core.
 */
#ifndef AMPD_CORE_PROCESS_H
#define AMPD_CORE_PROCESS_H

#include "base/list.h"
#include "server/core/base/limits.h"
#include "server/core/core.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_message;
struct ampd_model;
struct ampd_out_node;

/* What is known of another shard. */
struct ampd_peer {
    struct ampd_fence fence;   /* the highest seen, which is stored; counter 0: none */
    struct ampd_fence storing; /* a higher one that is being stored; counter 0: none */
    struct ampd_message *held; /* the last HELLO or SYNC under `storing`, handled when that is stored; owned */
    bool up;                   /* a session with it has begun, and is not over */
    uint64_t leaving;          /* shard 0: counter of the fence that has said LEAVE; 0: none */
    uint64_t let_go;           /* shard 0: counter of the fence that was sent MAY_LEAVE; 0: none */
};

/* SYNC of this process, which it asks for as shard 0 and answers as any shard. */
struct ampd_sync_round {
    uint64_t round;                        /* shard 0: number of the newest round: a SYNC, a RESTORE alone, a DELETE */
    uint64_t current;                      /* shard 0: number of the newest SYNC */
    bool running;                          /* shard 0: not all shards have answered it */
    bool unlearned;                        /* shard 0: another shard holds a model that there is no room for here */
    uint64_t done;                         /* shard 0: bits of the shards that have answered it */
    uint64_t synced_with[AMPD_SHARDS_MAX]; /* shard 0: counter of the fence under which each shard answered last */
    uint64_t asked;                        /* the round that waits for this shard's answer; 0: none */
    uint64_t seen;                         /* the newest round of the present coordinator; 0: none */
};

/* The end of this process in order (process/leave.c). */
struct ampd_leave {
    bool draining, drained; /* DRAIN has come; DRAINED has been answered */
    uint64_t may;           /* counter of the fence of shard 0 that has sent MAY_LEAVE; 0: none */
    bool given_up;          /* it waits no longer for the other side, and ends without a last checkpoint */
    bool busy;              /* its threads had something to do when it last tried to end */
    uint64_t alone_ms;      /* until when the other side is waited for; 0: no longer, or it is there */
};

/* HELLO of another shard than 0 (process/resend.c). */
struct ampd_hello {
    uint64_t again_ms; /* when it is sent again; 0: nothing is awaited of shard 0 */
    bool heard;        /* shard 0 has sent something in this session */
    unsigned agains;   /* times it was sent in a row without a message of shard 0 */
};

struct ampd_core {
    struct ampd_core_config config;
    uint64_t now_ms; /* of the present event */
    int64_t utc_us;  /* of the present event, for the records alone */
    bool started;    /* START has come */
    bool debug;      /* lines of level DEBUG are wanted */
    struct ampd_model *models[AMPD_MODELS_MAX];
    uint32_t models_count;
    struct amp_list replaced; /* models that are gone, whose places others have taken, until nobody holds them */
    struct ampd_peer peers[AMPD_SHARDS_MAX];
    struct ampd_sync_round sync;
    uint64_t refused_ms; /* when the log last named a message that was refused; 0: never */
    bool fenced;         /* another process has this shard's place: nothing is received or sent any more */
    struct ampd_leave leave;
    uint64_t memory_bytes;                    /* what counts against config.memory_max */
    struct amp_list outputs;                  /* ampd_out_node: not taken yet */
    struct ampd_out_node *handed;             /* the output that ampd_core_next has returned last */
    struct amp_list inbox;                    /* messages of this shard to itself */
    struct amp_list calls[AMPD_CALL_BUCKETS]; /* ampd_call.link, by a hash of the id */
    uint32_t calls_count;
    struct amp_list pendings;  /* ampd_pending: writes that are not stored yet, in the order of their outputs */
    uint64_t last_token;       /* that was given to a write, read, part or RAISE_EPOCH */
    uint64_t last_incarnation; /* number of the last Join of this process */
    uint64_t deleted_epoch;    /* the highest epoch of a deleted model that workers had joined; at least epoch_above */
    uint64_t timer_ms;         /* the time of the last TIMER that has not come; 0: none was asked for */
    uint64_t sweep_ms;         /* next look for calls that have waited too long; 0: none wait */
    struct ampd_hello hello;
};

#define AMPD_COUNT(core)      ((core)->config.shards)
#define AMPD_BIT(shard)       ((uint64_t)1 << (shard))
#define AMPD_ALL_SHARDS(core) (UINT64_MAX >> (64 - AMPD_COUNT(core)))

/* The checkpoint directory as messages to people name it; never NULL. */
const char *ampd_checkpoint_dir(const struct ampd_core *core);

/* Frees the models in core->replaced that nobody holds any more. */
void ampd_core_free_replaced(struct ampd_core *core);

/* The model with this name, in whatever state, or NULL. */
struct ampd_model *ampd_core_model_named(struct ampd_core *core, const char *name);

/*
 * The model of a call, if it is not being deleted and nothing stands against bringing it back. Else NULL, and the call
 * has its answer: AMP_ENOTFOUND, or AMP_EUNAVAILABLE with what is to be done.
 */
struct ampd_model *ampd_core_known(struct ampd_core *core, uint64_t call, const char *name);

/* The model of a call, as ampd_core_known, if its memory is there too. Else NULL, and the call has its answer. */
struct ampd_model *ampd_core_usable(struct ampd_core *core, uint64_t call, const char *name);

/*
 * The model of a call that the coordinator alone answers, as ampd_core_usable. NULL with AMP_EUNAVAILABLE as the call's
 * answer also on another shard than 0 (NOT_COORDINATOR), and while SYNC or a new epoch holds the model up.
 */
struct ampd_model *ampd_core_coordinated(struct ampd_core *core, uint64_t call, const char *name);

/* Whether a shard is about to end, or has ended in order and no other process has taken its place yet. */
bool ampd_core_leaves(const struct ampd_core *core, uint32_t shard);

/* Whether steps pause: none is opened or decided, since this process, or on shard 0 any shard, is about to end. */
bool ampd_core_pauses(const struct ampd_core *core);

#endif
