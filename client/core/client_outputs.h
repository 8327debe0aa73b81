/* What the worker's machine wants done. See client_core.h. */
#ifndef AMPCLIENT_CORE_OUTPUTS_H
#define AMPCLIENT_CORE_OUTPUTS_H

#include "amp/dtype.h"
#include "base/err.h"
#include "client/core/client_events.h"
#include "client/core/client_metrics.h"

enum ampclient_output_type {
    AMPCLIENT_OUT_JOIN = 1,       /* to shard 0 */
    AMPCLIENT_OUT_KEEP_ALIVE,     /* to shard 0 */
    AMPCLIENT_OUT_LEAVE,          /* to shard 0 */
    AMPCLIENT_OUT_PULL,           /* u.pull */
    AMPCLIENT_OUT_GET_PUSH_STATE, /* u.push */
    AMPCLIENT_OUT_PUSH,           /* u.push: begin the stream with this header */
    AMPCLIENT_OUT_PUSH_BLOCKS,    /* u.blocks: send them on that stream (ampclient_core_block gives the bytes) */
    AMPCLIENT_OUT_PUSH_END,       /* u.end: send the trailer and half-close */
    AMPCLIENT_OUT_CANCEL,         /* cancel the call */
    AMPCLIENT_OUT_USER_DONE,      /* u.done: the user's call returns */
    AMPCLIENT_OUT_TIMER,          /* u.at_ms; replaces the time given before */
    AMPCLIENT_OUT_LOG,            /* u.log: a line on what the handle does meanwhile; a few in a minute at most */
};

enum ampclient_pull_by { AMPCLIENT_PULL_STEP = 1, AMPCLIENT_PULL_VERSION = 2, AMPCLIENT_PULL_LATEST = 3 };

struct ampclient_out_pull {
    enum ampclient_pull_by by;
    uint64_t epoch;
    uint64_t number; /* the step, or the version */
    uint64_t have_epoch, have_version;
    uint64_t first_block, block_count; /* what is wanted, in the whole flat space; 0, 0: all that the shard has */
    bool in_memory;                    /* the host has the server's copies mapped, and the blocks come there */
    uint8_t *memory; /* block b goes to memory + (b - first_block) * stride; NULL: nowhere, the header alone counts */
    size_t stride;
    enum amp_dtype dtype; /* a header of another dtype is an error of the host's peer */
};

struct ampclient_out_push {
    uint64_t epoch, step, scale_id;
    enum amp_dtype dtype;
    float weight;
    bool has_lr; /* schedule WORKER */
    double lr;
    const uint8_t *user_state;
    uint32_t user_state_size;
};

/* Levels of lines have the numbers of ampclient.h. */
enum ampclient_core_level { AMPCLIENT_CORE_INFO = 2, AMPCLIENT_CORE_WARN = 3 };

/* What the user's call returns. */
struct ampclient_user_done {
    enum ampclient_event_type request;
    int code; /* 0; 1 (STEP_BEGIN: the model is done); negative with the text */
    struct amp_error error;
    struct { /* STEP_BEGIN, code 0; PULL_LATEST: epoch and version */
        uint64_t epoch, step, version;
        float scale;
        uint64_t scale_id;
        bool rolled_back;
        bool restored; /* the first step of this handle or of this epoch, and the one after restored_step */
    } step;
    struct ampclient_core_result result; /* STEP_END, code 0 */
};

/* Views are valid until the next call of ampclient_core_next or _step. */
struct ampclient_output {
    enum ampclient_output_type type;
    uint64_t call;
    uint32_t shard;
    uint64_t deadline_ms; /* of the RPC, from now */
    /* of JOIN, KEEP_ALIVE, LEAVE, GET_PUSH_STATE, PUSH */
    const char *model, *worker; /* worker: "" if none was given */
    int32_t rank;               /* -1: to be given */
    int32_t world_size;         /* JOIN; -1: not checked */
    bool replace;
    struct ampclient_incarnation incarnation;
    union {
        struct ampclient_out_pull pull;
        struct ampclient_out_push push;
        struct ampclient_range blocks;
        struct {
            const uint32_t *absent;
            uint32_t absent_count;
            const struct ampclient_core_metrics *metrics;
        } end;
        struct ampclient_user_done done;
        uint64_t at_ms;
        struct {
            enum ampclient_core_level level;
            char text[AMP_ERROR_TEXT_MAX];
        } log;
    } u;
};

#endif
