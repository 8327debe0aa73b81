/* The outputs of the worker's state machine (client_core.h): what the I/O layer is to do. */
#ifndef AMPCLIENT_CORE_OUTPUTS_H
#define AMPCLIENT_CORE_OUTPUTS_H

#include "amp/dtype.h"
#include "base/err.h"
#include "client/core/client_events.h"
#include "client/core/client_metrics.h"

enum ampclient_output_type {
    AMPCLIENT_OUT_JOIN = 1,       /* begin the RPC, to shard 0 */
    AMPCLIENT_OUT_KEEP_ALIVE,     /* begin the RPC, to shard 0 */
    AMPCLIENT_OUT_LEAVE,          /* begin the RPC, to shard 0 */
    AMPCLIENT_OUT_PULL,           /* begin the RPC that u.pull describes */
    AMPCLIENT_OUT_GET_PUSH_STATE, /* begin the RPC for the epoch and step of u.push */
    AMPCLIENT_OUT_PUSH,           /* begin the stream, with the header u.push */
    AMPCLIENT_OUT_PUSH_BLOCKS,    /* send u.blocks on the stream `call` (ampclient_core_block gives the bytes) */
    AMPCLIENT_OUT_PUSH_END,       /* send the trailer u.end on the stream `call`, and half-close it */
    AMPCLIENT_OUT_CANCEL,         /* cancel the call; its ENDED still comes */
    AMPCLIENT_OUT_USER_DONE,      /* the user's call returns u.done, once none of its memory is being sent */
    AMPCLIENT_OUT_TIMER,          /* send TICK at u.at_ms; replaces the time given before */
    AMPCLIENT_OUT_LOG,            /* write the line u.log; a few in a minute at most */
};

/* What names the version that a pull asks for: the step that begins with it, its number, or nothing (the newest). */
enum ampclient_pull_by { AMPCLIENT_PULL_STEP = 1, AMPCLIENT_PULL_VERSION = 2, AMPCLIENT_PULL_LATEST = 3 };

struct ampclient_out_pull {
    enum ampclient_pull_by by;
    uint64_t epoch;                    /* LATEST: 0 */
    uint64_t number;                   /* STEP: the step; VERSION: the version */
    uint64_t have_epoch, have_version; /* the version that the core holds, which need not be sent again; 0, 0: none */
    uint64_t first_block, block_count; /* the blocks wanted, in the whole flat space; 0, 0: all that the shard has */
    bool in_memory;  /* the server need not send blocks: the I/O layer has the server's copies mapped */
    uint8_t *memory; /* block b goes to memory + (b - first_block) * stride; NULL: blocks are not copied anywhere */
    size_t stride;   /* bytes of a whole block */
    enum amp_dtype dtype; /* the model's cast; a header with another one ends the call, by the I/O layer's judgement */
};

/* The header of a push. GET_PUSH_STATE has epoch and step alone. */
struct ampclient_out_push {
    uint64_t epoch, step, scale_id;
    enum amp_dtype dtype; /* of all blocks */
    float weight;
    bool has_lr; /* the user has given a learning rate (schedule WORKER) */
    double lr;
    const uint8_t *user_state; /* what the user set last before the output is taken; NULL: none */
    uint32_t user_state_size;
};

/* Levels of lines have the numbers of ampclient.h. */
enum ampclient_core_level { AMPCLIENT_CORE_INFO = 2, AMPCLIENT_CORE_WARN = 3 };

/* What the user's call returns. */
struct ampclient_user_done {
    enum ampclient_event_type request; /* the request that is answered */
    int code; /* 0; 1 (STEP_BEGIN: the model is done; GATHER, DRAIN: the step is void); negative, with `error` */
    struct amp_error error;
    struct { /* STEP_BEGIN with code 0; of PULL_LATEST epoch and version alone */
        uint64_t epoch, step, version;
        float scale;
        uint64_t scale_id;
        bool rolled_back; /* the first step that it begins in a new epoch, and it began this or a later one before */
        bool restored;    /* the first step that this handle begins in the epoch, and the one after restored_step */
    } step;
    struct ampclient_core_result result; /* STEP_END with code 0 */
};

/*
 * All pointers are views, valid until the next call of ampclient_core_next or ampclient_core_step; u.push.user_state
 * also ends with ampclient_core_set_user_state.
 */
struct ampclient_output {
    enum ampclient_output_type type;
    uint64_t call;        /* number of the RPC that begins, or that the output is about; 0: of none */
    uint32_t shard;       /* shard that the RPC goes to */
    uint64_t deadline_ms; /* of the RPC, from now */
    /* Fields of JOIN, KEEP_ALIVE, LEAVE, GET_PUSH_STATE and PUSH. */
    const char *model, *worker;               /* names; worker is "" if none was given */
    int32_t rank;                             /* -1: the server is to give one */
    int32_t world_size;                       /* JOIN; -1: not checked */
    bool replace;                             /* JOIN: take the rank of a worker whose lease has ended */
    struct ampclient_incarnation incarnation; /* of the last Join; zeroed before */
    union {
        struct ampclient_out_pull pull;
        struct ampclient_out_push push;
        struct ampclient_range blocks;
        struct {
            const uint32_t *absent; /* indices of parameters of which nothing was pushed */
            uint32_t absent_count;
            const struct ampclient_core_metrics *metrics;
        } end;
        struct ampclient_user_done done;
        uint64_t at_ms; /* on the clock of ampclient_core_step */
        struct {
            enum ampclient_core_level level;
            char text[AMP_ERROR_TEXT_MAX];
        } log;
    } u;
};

#endif
