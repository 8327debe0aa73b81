/*
 * Messages of a step: Load, Pull, Push. How the functions behave: proto/msg_common.h.
 *
 * LoadRequest, PullResponse and PushRequest carry tensor bytes and have no struct: proto/block.h reads and writes
 * them, and the messages here are their headers and trailers.
 */
#ifndef AMPD_PROTO_MSG_STEP_H
#define AMPD_PROTO_MSG_STEP_H

#include "proto/msg_common.h"

/* The one answer to a step, the same for every worker and from every shard. */
struct ampd_msg_step_result {
    uint64_t epoch;
    uint64_t step;
    enum ampd_msg_verdict verdict;
    uint64_t applied; /* applied steps of the model, this one included */
    uint64_t version; /* version of the parameters after the step */
    double norm;      /* 2-norm of the unscaled mean gradient before clipping; 0 when skipped */
    uint32_t clip_coefficients_count;
    float clip_coefficients[16]; /* per parameter group, in (0, 1]; empty when skipped */
    float old_scale;             /* the scale that the gradients of this step carried */
    uint64_t old_scale_id;
    float new_scale; /* the scale of the next step */
    uint64_t new_scale_id;
    struct ampd_msg_overflow_row_list overflows; /* the first 64 by (parameter, rank) */
    bool has_overflow_totals;
    struct ampd_msg_overflow_totals overflow_totals;   /* absent: none */
    struct ampd_msg_range_warning_list range_warnings; /* of the apply before this step; the first 64 parameters */
    uint64_t durable_step;          /* the last step that survives a crash; 0: only the initial values do */
    double learning_rate;           /* base learning rate used; 0 when skipped */
    uint32_t consecutive_overflows; /* overflows in a row, up to this step */
    bool unstable;                  /* max_consecutive_overflows in a row are reached */
    bool frozen;                    /* floor_policy freeze: no further step opens until the scale is set or reset */
    bool failed;                    /* floor_policy fail: training should end; the overflows name the parameters */
    uint64_t range_total;           /* elements over all range warnings, also those that are not listed */
};

/* Where a model stands that a full Load brings from elsewhere: all of one checkpoint. */
struct ampd_msg_load_state {
    uint64_t step;    /* last decided step; the first step here is the next one */
    uint64_t version; /* of the parameters: how many of the steps were applied */
    bool has_record;
    struct ampd_msg_scale_record record; /* after that step; its policy is not looked at */
    double learning_rate;                /* base rate that an operator had set; 0: none was */
};

struct ampd_msg_load_header {
    char model[128];
    uint32_t shard;        /* index of the shard that is addressed; default 0 */
    char worker_name[128]; /* name of the loader, which the server does not read; default "" */
    uint64_t load;         /* number of this load, the same on every shard; not 0 where there are several; default 0 */
    bool has_state;
    struct ampd_msg_load_state state; /* a full load: training goes on after this step; absent: first values */
};

struct ampd_msg_load_response {
    bool already_loaded; /* another Load was first; the values of this one were not taken */
};

/* The version that a client holds. */
struct ampd_msg_held_version {
    uint64_t epoch;
    uint64_t version;
};

/* Exactly one of step, version and latest is given. */
struct ampd_msg_pull_request {
    char model[128];
    uint64_t epoch; /* must be the present one; default 0: the present one, whichever it is */
    bool has_step;
    uint64_t step; /* the parameters that this step computes on; waits for the open or next step */
    bool has_version;
    uint64_t version; /* this version, if it is held */
    bool latest;      /* the version of the last decided step */
    bool has_have_version;
    struct ampd_msg_held_version have_version; /* if it is the one to be sent, no blocks come; default: none */
    uint32_t shard;                            /* index of the shard that is addressed; default 0 */
    uint32_t first_block;                      /* first block wanted, in the whole flat space; default 0 */
    uint32_t block_count; /* blocks wanted; default 0: all that the shard owns from first_block on */
    bool has_rank;
    uint32_t rank; /* of a worker that has joined; renews its lease; default: none */
    bool has_incarnation;
    struct ampd_msg_incarnation incarnation; /* given with rank */
    bool in_memory; /* of a worker with attached memory, with step: `placed` comes and no data; default false */
};

struct ampd_msg_pull_header {
    uint64_t epoch;
    uint64_t step; /* step that computes on this version; with latest: the open or next step */
    uint64_t version;
    uint64_t scale_id;
    float scale;               /* multiply the loss by it */
    enum ampd_msg_dtype dtype; /* of the blocks: the model's cast_dtype */
    uint32_t first_block;      /* first block that follows */
    uint32_t block_count;      /* blocks that follow; 0: the client holds this version, or the range is empty */
    bool unchanged;            /* have_version is this version */
};

struct ampd_msg_push_header {
    char model[128];
    uint64_t epoch;
    uint64_t step;
    uint32_t rank;
    bool has_incarnation;
    struct ampd_msg_incarnation incarnation;
    uint64_t scale_id;         /* of the scale that the gradients carry; from the header of Pull */
    enum ampd_msg_dtype dtype; /* of the blocks; must be given */
    bool has_weight;
    float weight;   /* weighting PUSHED: finite, 0 to 2^24; EQUAL: 1; default 1 */
    uint32_t shard; /* index of the shard that is addressed; default 0 */
    bool has_learning_rate;
    double learning_rate; /* schedule WORKER: of the step, the same in all its pushes; finite, >= 0; else absent */
    struct ampd_msg_bytes user_state; /* kept with the step and given back by Join; up to 65536 bytes; default: empty */
};

struct ampd_msg_push_trailer {
    uint32_t absent_count;
    uint32_t absent[8192]; /* indexes of parameters without a gradient; up to 8192, rising */
    bool has_loss;
    float loss; /* of this worker's samples, not scaled; any, also Inf and NaN; default: none is sent */
    uint32_t metrics_count;
    struct ampd_msg_metric metrics[AMPD_MSG_METRICS_MAX]; /* other numbers of the step; each name once; default: none */
};

struct ampd_msg_push_response {
    bool has_result;
    struct ampd_msg_step_result result;
};

struct ampd_msg_get_push_state_request {
    char model[128];
    uint64_t epoch;
    uint64_t step;
    uint32_t rank;
    bool has_incarnation;
    struct ampd_msg_incarnation incarnation;
    uint32_t shard; /* index of the shard that is asked; default 0 */
};

struct ampd_msg_get_push_state_response {
    struct ampd_msg_block_range_list present; /* blocks that need not be sent again, rising; up to 4096 ranges */
    bool complete;                            /* the push has ended and counts: ask for its result by an empty push */
};

struct ampd_msg_attach_memory_request {
    char model[128];
    uint32_t rank;
    bool has_incarnation;
    struct ampd_msg_incarnation incarnation;
    uint32_t shard;            /* index of the shard that is addressed; default 0 */
    enum ampd_msg_dtype dtype; /* widest of the gradients that are to be placed; must be given */
    bool seals;                /* the worker will seal its slot; must be true */
};

struct ampd_msg_attach_memory_response {
    uint64_t nonce_low;
    uint64_t nonce_high;
    char socket[128];     /* path of a unix socket */
    uint32_t first_block; /* of this shard, in the whole flat space */
    uint32_t block_count;
    uint64_t copy_bytes; /* size of each copy */
    uint64_t slot_bytes;
    bool waits; /* sync_mode is SYNC: while this worker holds its rank, no step can overtake it */
};

int ampd_msg_step_result_encode(const struct ampd_msg_step_result *message, struct amp_buf *out);
int ampd_msg_step_result_decode(struct ampd_msg_step_result *message, const void *data, size_t size,
                                struct amp_error *error);
void ampd_msg_step_result_free(struct ampd_msg_step_result *message);

int ampd_msg_load_header_encode(const struct ampd_msg_load_header *message, struct amp_buf *out);
int ampd_msg_load_header_decode(struct ampd_msg_load_header *message, const void *data, size_t size,
                                struct amp_error *error);

int ampd_msg_load_response_encode(const struct ampd_msg_load_response *message, struct amp_buf *out);
int ampd_msg_load_response_decode(struct ampd_msg_load_response *message, const void *data, size_t size,
                                  struct amp_error *error);

int ampd_msg_pull_request_encode(const struct ampd_msg_pull_request *message, struct amp_buf *out);
int ampd_msg_pull_request_decode(struct ampd_msg_pull_request *message, const void *data, size_t size,
                                 struct amp_error *error);

int ampd_msg_pull_header_encode(const struct ampd_msg_pull_header *message, struct amp_buf *out);
int ampd_msg_pull_header_decode(struct ampd_msg_pull_header *message, const void *data, size_t size,
                                struct amp_error *error);

int ampd_msg_push_header_encode(const struct ampd_msg_push_header *message, struct amp_buf *out);
int ampd_msg_push_header_decode(struct ampd_msg_push_header *message, const void *data, size_t size,
                                struct amp_error *error);
void ampd_msg_push_header_free(struct ampd_msg_push_header *message);

int ampd_msg_push_trailer_encode(const struct ampd_msg_push_trailer *message, struct amp_buf *out);
int ampd_msg_push_trailer_decode(struct ampd_msg_push_trailer *message, const void *data, size_t size,
                                 struct amp_error *error);

int ampd_msg_push_response_encode(const struct ampd_msg_push_response *message, struct amp_buf *out);
int ampd_msg_push_response_decode(struct ampd_msg_push_response *message, const void *data, size_t size,
                                  struct amp_error *error);
void ampd_msg_push_response_free(struct ampd_msg_push_response *message);

int ampd_msg_get_push_state_request_encode(const struct ampd_msg_get_push_state_request *message, struct amp_buf *out);
int ampd_msg_get_push_state_request_decode(struct ampd_msg_get_push_state_request *message, const void *data,
                                           size_t size, struct amp_error *error);

int ampd_msg_get_push_state_response_encode(const struct ampd_msg_get_push_state_response *message,
                                            struct amp_buf *out);
int ampd_msg_get_push_state_response_decode(struct ampd_msg_get_push_state_response *message, const void *data,
                                            size_t size, struct amp_error *error);
void ampd_msg_get_push_state_response_free(struct ampd_msg_get_push_state_response *message);

int ampd_msg_attach_memory_request_encode(const struct ampd_msg_attach_memory_request *message, struct amp_buf *out);
int ampd_msg_attach_memory_request_decode(struct ampd_msg_attach_memory_request *message, const void *data, size_t size,
                                          struct amp_error *error);

int ampd_msg_attach_memory_response_encode(const struct ampd_msg_attach_memory_response *message, struct amp_buf *out);
int ampd_msg_attach_memory_response_decode(struct ampd_msg_attach_memory_response *message, const void *data,
                                           size_t size, struct amp_error *error);

#endif
