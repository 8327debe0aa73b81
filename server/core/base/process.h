/* One process: its models, its messages, and what it knows of the other shards (process.c). Private to server/core. */
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
    struct ampd_fence fence;   /* the highest seen, stored; counter 0: none */
    struct ampd_fence storing; /* a higher one that is being stored; counter 0: none */
    struct ampd_message *held; /* its last HELLO or SYNC, taken when the fence is stored; owned */
    bool up;                   /* a session with it has begun, and is not over */
    uint64_t leaving;          /* shard 0: the counter of the fence that is about to end; 0: none */
    uint64_t let_go;           /* shard 0: ... and that was told that it may */
};

/* SYNC of a process: what it asked for, or was asked for. */
struct ampd_sync_round {
    uint64_t round;                        /* shard 0: number of the newest round, of SYNC or of a RESTORE alone */
    uint64_t current;                      /* shard 0: number of the newest SYNC */
    bool running;                          /* shard 0: not all have answered */
    bool unlearned;                        /* shard 0: another holds a model that there is no room for here */
    uint64_t done;                         /* shard 0: bits of those that have */
    uint64_t synced_with[AMPD_SHARDS_MAX]; /* shard 0: counter of the fence that answered last */
    uint64_t started;                      /* shard 0: bits of those that answer for the first time */
    uint64_t asked;                        /* the round that waits for our answer; 0: none */
    uint64_t seen;                         /* the newest round of the present coordinator */
};

/* The end of this process in order (process/leave.c). */
struct ampd_leave {
    bool draining, drained; /* it is to end; it may */
    uint64_t may;           /* the counter of the fence of shard 0 that has let this process go; 0: none */
    bool given_up;          /* what it waited for is not there */
    bool busy;              /* its threads had something to do when it last tried to end */
    uint64_t alone_ms;      /* how long the other side is waited for; 0: no longer, or it is there */
};

/* HELLO of another shard than 0 (process/resend.c). */
struct ampd_hello {
    uint64_t again_ms; /* when it is said again; 0: shard 0 is not waited for */
    bool heard;        /* the session's was answered */
    unsigned agains;   /* in a row, without a word of shard 0 */
};

struct ampd_core {
    struct ampd_core_config config;
    uint64_t now_ms;
    int64_t utc_us;
    bool started;
    bool debug; /* the host wants lines of level DEBUG */
    struct ampd_model *models[AMPD_MODELS_MAX];
    uint32_t models_count;
    struct amp_list graves; /* models that are gone, whose places others have taken, until nobody holds them */
    struct ampd_peer peers[AMPD_SHARDS_MAX];
    struct ampd_sync_round sync;
    uint64_t refused_ms; /* when the log was last told of a message that was refused, 0: never */
    bool fenced;         /* another process has this shard's place */
    struct ampd_leave leave;
    uint64_t memory_bytes;
    struct amp_list outputs;      /* ampd_out_node */
    struct ampd_out_node *handed; /* the one that the host looks at */
    struct amp_list inbox;        /* messages to this shard */
    struct amp_list calls[AMPD_CALL_BUCKETS];
    uint32_t calls_count;
    struct amp_list pendings;
    uint64_t last_token;
    uint64_t last_incarnation;
    uint64_t timer_ms; /* 0: none asked for */
    uint64_t sweep_ms; /* next look at calls that wait, 0: none wait */
    struct ampd_hello hello;
};

#define AMPD_COUNT(core)      ((core)->config.shards)
#define AMPD_BIT(shard)       ((uint64_t)1 << (shard))
#define AMPD_ALL_SHARDS(core) (UINT64_MAX >> (64 - AMPD_COUNT(core)))

const char *ampd_checkpoint_dir(const struct ampd_core *core); /* its name, for a person */
void ampd_core_free_graves(struct ampd_core *core);            /* of models that nobody holds any more */
struct ampd_model *ampd_core_model_named(struct ampd_core *core, const char *name);
/* The model of a call, if there is one that is served; else NULL, and the call has its answer. */
struct ampd_model *ampd_core_known(struct ampd_core *core, uint64_t call, const char *name);
/* Likewise, and it is ready now. */
struct ampd_model *ampd_core_usable(struct ampd_core *core, uint64_t call, const char *name);
/* Likewise for calls that the coordinator alone answers. */
struct ampd_model *ampd_core_coordinated(struct ampd_core *core, uint64_t call, const char *name);
bool ampd_core_leaves(const struct ampd_core *core, uint32_t shard); /* it is about to end, or has ended in order */
bool ampd_core_pauses(const struct ampd_core *core); /* no step is opened or decided: a shard is about to end */

#endif
