/*
 * The worker's side of one model as a machine without I/O: what to call, what to send, when to try again.
 *
 * The host (client/io) owns connections and the user's thread; this owns the decisions. Events and the user's
 * wishes go in, outputs come out:
 *
 *     ampclient_core_step(core, now_ms, &event);
 *     while (ampclient_core_next(core, &output))
 *         ... do it ...
 *
 * One thread at a time (the host locks). No clock, no randomness. `now_ms` is monotonic and does not go back.
 *
 * Calls. Each output that begins an RPC has a number, never used twice. The host answers each with exactly
 * one AMPCLIENT_EVENT_ENDED, also when the core has cancelled it (then its content does not matter).
 *
 * Errors of calls are AMP_E codes (amp_err_from_grpc_status) with reason and details. The core tries again by
 * itself what can be tried again: AMP_EUNAVAILABLE, AMP_EDEADLINE, AMP_ECANCELLED and AMP_EEXHAUSTED after a
 * pause, AMP_EABORTED by moving to the epoch and step in the details, AMP_EDATALOSS a few times.
 *
 * A rank that another process has taken (RANK_TAKEN) is not taken back unless the configuration says so: step_begin, push
 * and step_end end AMP_EABORTED then, with the server's sentence. Whoever is told FENCED asks shard 0 by KEEP_ALIVE which of the two it is
 * before it joins again.
 */
#ifndef AMPCLIENT_CORE_H
#define AMPCLIENT_CORE_H

#include "amp/dtype.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AMPCLIENT_SHARDS_MAX         16       /* endpoints of one model */
#define AMPCLIENT_NAME_MAX           128      /* as the server's */
#define AMPCLIENT_USER_STATE_MAX     65536    /* DESIGN section 7 */
#define AMPCLIENT_WEIGHT_MIN         0x1p-60f /* smaller ones would lose bits of the mean (docs/decisions.md) */
#define AMPCLIENT_WEIGHT_MAX         0x1p24f  /* STEP section 4 */
#define AMPCLIENT_RECONNECT_MS       600000   /* STEP section 5 */
#define AMPCLIENT_STEP_TIMEOUT_MS    900000   /* loss_timeout and a half */
#define AMPCLIENT_CALL_TIMEOUT_MS    60000
#define AMPCLIENT_BLOCK_RESENDS_MAX  3   /* STEP section 5 */
#define AMPCLIENT_BACKOFF_MS         100 /* first pause; doubles */
#define AMPCLIENT_BACKOFF_MAX_MS     500 /* a shard that is back is to be found well within two seconds */
#define AMPCLIENT_KEEP_ALIVE_DIVISOR 3   /* a lease is renewed three times within its life */

struct ampclient_core;

/* Where a handle is. The table in core.c says which follows which. */
enum ampclient_state {
    AMPCLIENT_STATE_NEW,         /* not joined */
    AMPCLIENT_STATE_JOINING,     /* Join is under way (first or again) with no step in hand */
    AMPCLIENT_STATE_READY,       /* joined, no step in hand */
    AMPCLIENT_STATE_PULLING,     /* step_begin waits for parameters */
    AMPCLIENT_STATE_COMPUTING,   /* the user has a step; blocks go out as they get ready */
    AMPCLIENT_STATE_WAITING,     /* step_end waits for the verdict */
    AMPCLIENT_STATE_ROLLED_BACK, /* the step in hand is void: pushes do nothing until step_end */
    AMPCLIENT_STATE_FETCHING,    /* ampclient_pull waits for parameters */
    AMPCLIENT_STATE_DONE,        /* the model is done */
    AMPCLIENT_STATE_LEAVING,
    AMPCLIENT_STATE_LEFT,
    AMPCLIENT_STATES_COUNT
};

/* One life of a worker, as the server gave it. */
struct ampclient_incarnation {
    uint64_t fence, counter;
};

/* Zero means the default; strings are copied. */
struct ampclient_core_config {
    const char *model;  /* name */
    const char *worker; /* name, or NULL: the server makes one from the rank */
    int32_t rank;       /* -1: the server gives one */
    int32_t world_size; /* -1: not checked */
    bool replace;
    bool take_back;      /* join again where another process has taken the rank; else the handle stops */
    uint32_t accumulate; /* pushes of each parameter a step, 1 */
    uint32_t shards;     /* K, 1 */
    uint64_t reconnect_timeout_ms, step_timeout_ms, call_timeout_ms;
};

/* ---- what the server answered ---- */

/* Verdicts have the numbers of the wire. ROLLED_BACK is the client's own. */
enum ampclient_core_verdict {
    AMPCLIENT_CORE_APPLIED = 1,
    AMPCLIENT_CORE_SKIPPED_OVERFLOW = 2,
    AMPCLIENT_CORE_SKIPPED_EMPTY = 3,
    AMPCLIENT_CORE_LATE = 4,
    AMPCLIENT_CORE_ROLLED_BACK = 5,
};

struct ampclient_core_result {
    uint64_t epoch, step;
    enum ampclient_core_verdict verdict;
    uint64_t applied, version;
    double norm;
    float clip; /* of group 0 */
    float scale, new_scale;
    uint64_t scale_id, new_scale_id;
    uint64_t overflow_parameters;
    uint64_t range_warnings;
    uint64_t durable_step;
};

/* Answer of Join, with what GetModel or Join tells of the model. */
struct ampclient_join_answer {
    uint32_t rank, world_size;
    struct ampclient_incarnation incarnation;
    uint64_t epoch, step; /* the step to begin with */
    uint64_t lease_ms;
    uint32_t parameters_count;
    const uint64_t *elements; /* [parameters_count] */
    uint64_t block_elements;
    enum amp_dtype cast;    /* of pulls */
    uint64_t restored_step; /* last step of the checkpoint that the epoch began from */
    const uint8_t *user_state;
    uint32_t user_state_size;
};

struct ampclient_pull_header {
    uint64_t epoch, step, version;
    uint64_t scale_id;
    float scale;
    enum amp_dtype dtype;
};

struct ampclient_range {
    uint64_t first, count;
};

/* ---- events ---- */

enum ampclient_event_type {
    /* the user's wishes; each but USER_STATE ends with AMPCLIENT_OUT_USER_DONE. One at a time */
    AMPCLIENT_EVENT_JOIN = 1,
    AMPCLIENT_EVENT_STEP_BEGIN,
    AMPCLIENT_EVENT_STEP_END,
    AMPCLIENT_EVENT_PULL_LATEST,
    AMPCLIENT_EVENT_LEAVE,
    AMPCLIENT_EVENT_USER_STATE, /* u.user_state, copied */
    /* from the network */
    AMPCLIENT_EVENT_PULL_HEADER = 20, /* u.header */
    AMPCLIENT_EVENT_PULL_BLOCK,       /* u.block is in memory and its checksum matched */
    AMPCLIENT_EVENT_PUSH_STATE,       /* u.push_state: before the ENDED (code 0) of that call */
    AMPCLIENT_EVENT_ENDED,            /* u.ended */
    AMPCLIENT_EVENT_TICK,             /* the time of AMPCLIENT_OUT_TIMER has come */
};

/* How a call ended. Code 0: the member of u that belongs to the kind of call is set. */
struct ampclient_ended {
    int code;
    const char *reason;   /* ErrorInfo reason, or "" */
    const char *text;     /* or "" */
    uint64_t epoch, step; /* of the details of ABORTED; 0, 0 if not given */
    uint64_t retry_ms;    /* RetryInfo, or 0 */
    union {
        struct ampclient_join_answer join;
        struct {
            uint64_t epoch, step;
            bool valid;              /* incarnation_valid of the answer */
            const char *taken_by;    /* sentence on the other process that holds the rank; NULL or "": none does */
            const char *waiting_for; /* what the model waits for; NULL or "": nothing */
        } keep_alive;
        struct ampclient_core_result push;
    } u;
};

struct ampclient_event {
    enum ampclient_event_type type;
    uint64_t call; /* of network events */
    union {
        struct {
            const void *data;
            size_t size; /* at most AMPCLIENT_USER_STATE_MAX */
        } user_state;
        struct ampclient_pull_header header;
        uint64_t block;
        struct {
            const struct ampclient_range *ranges;
            uint64_t ranges_count;
            bool complete; /* the server has the trailer too */
        } push_state;
        struct ampclient_ended ended;
    } u;
};

/* ---- outputs ---- */

enum ampclient_output_type {
    AMPCLIENT_OUT_JOIN = 1,       /* to shard 0 */
    AMPCLIENT_OUT_KEEP_ALIVE,     /* to shard 0 */
    AMPCLIENT_OUT_LEAVE,          /* to shard 0 */
    AMPCLIENT_OUT_PULL,           /* u.pull */
    AMPCLIENT_OUT_GET_PUSH_STATE, /* u.push */
    AMPCLIENT_OUT_PUSH,           /* u.push: begin the stream with this header */
    AMPCLIENT_OUT_PUSH_BLOCK,     /* u.block: send it on that stream (ampclient_core_block gives the bytes) */
    AMPCLIENT_OUT_PUSH_END,       /* u.end: send the trailer and half-close */
    AMPCLIENT_OUT_CANCEL,         /* cancel the call */
    AMPCLIENT_OUT_USER_DONE,      /* u.done: the user's call returns */
    AMPCLIENT_OUT_TIMER,          /* u.at_ms; replaces the time given before */
    AMPCLIENT_OUT_LOG,            /* u.log: a line on what the handle does meanwhile; a few in a minute at most */
};

enum ampclient_pull_by { AMPCLIENT_PULL_STEP = 1, AMPCLIENT_PULL_LATEST = 3 };

struct ampclient_out_pull {
    enum ampclient_pull_by by;
    uint64_t epoch;
    uint64_t number; /* the step */
    uint64_t have_epoch, have_version;
    uint8_t *memory; /* block b (of all shards) goes to memory + b * stride */
    size_t stride;
    enum amp_dtype dtype; /* a header of another dtype is an error of the host's peer */
};

struct ampclient_out_push {
    uint64_t epoch, step, scale_id;
    enum amp_dtype dtype;
    float weight;
    const uint8_t *user_state;
    uint32_t user_state_size;
};

/* Levels of lines have the numbers of ampclient.h. */
enum ampclient_core_level { AMPCLIENT_CORE_INFO = 2, AMPCLIENT_CORE_WARN = 3 };

/* What the user's call returns. */
struct ampclient_user_done {
    enum ampclient_event_type wish;
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
        uint64_t block;
        struct {
            const uint32_t *absent;
            uint32_t absent_count;
        } end;
        struct ampclient_user_done done;
        uint64_t at_ms;
        struct {
            enum ampclient_core_level level;
            char text[AMP_ERROR_TEXT_MAX];
        } log;
    } u;
};

/* ---- life ---- */

/* A handle that has not joined. On success *core is the caller's. AMP_EINVAL, AMP_ENOMEM. */
int ampclient_core_new(const struct ampclient_core_config *config, struct ampclient_core **core);

/* Frees it: no stream may read or write its memory any more. NULL is allowed. */
void ampclient_core_free(struct ampclient_core *core);

/* ---- operate ---- */

void ampclient_core_step(struct ampclient_core *core, uint64_t now_ms, const struct ampclient_event *event);
bool ampclient_core_next(struct ampclient_core *core, struct ampclient_output *output);

/*
 * The gradient of one parameter, all its elements. Borrowed until STEP_END is done with another code than
 * AMP_EDEADLINE, which leaves the step as it is (with accumulate > 1 it is added up at once and not kept). Drain the outputs afterwards. AMP_EINVAL, AMP_ERANGE, AMP_ESTATE with a
 * text; 0, and nothing done, after a rollback.
 */
int ampclient_core_push(struct ampclient_core *core, uint64_t now_ms, uint32_t parameter, const void *gradient,
                        enum amp_dtype dtype, struct amp_error *error);

/*
 * The weight of this worker's gradients, from the step on whose first push has not been made. AMP_EINVAL, AMP_ESTATE with a
 * text.
 */
int ampclient_core_weight(struct ampclient_core *core, float weight, struct amp_error *error);

/*
 * The bytes of one block of the push, in its dtype: a view if they lie in one piece, else gathered into
 * scratch (block_elements * 4 bytes). *size gets their number. The result is valid until scratch is used
 * again, and no longer than until STEP_END is done. The block must have been named by PUSH_BLOCK.
 */
const void *ampclient_core_block(const struct ampclient_core *core, uint64_t block, void *scratch, size_t *size);

/* ---- query ---- */

enum ampclient_state ampclient_core_state(const struct ampclient_core *core);
const char *ampclient_state_name(enum ampclient_state state);

/* Whether `to` may follow `from`. */
bool ampclient_state_allowed(enum ampclient_state from, enum ampclient_state to);

/* After Join: rank, world size, parameters. */
uint32_t ampclient_core_rank(const struct ampclient_core *core);
uint32_t ampclient_core_world_size(const struct ampclient_core *core);

/* The last pulled values of a parameter, in the cast's dtype; NULL before the first pull. *elements: how many. */
const void *ampclient_core_parameter(const struct ampclient_core *core, uint32_t parameter, uint64_t *elements);

/* The user state of this rank in the restored step (of the last Join); *size 0 if there is none. */
const uint8_t *ampclient_core_user_state(const struct ampclient_core *core, size_t *size);

/* Blocks of the flat space, and elements of one of them, after Join. */
uint64_t ampclient_core_blocks(const struct ampclient_core *core);
uint32_t ampclient_core_block_elements(const struct ampclient_core *core, uint64_t block);

#endif
