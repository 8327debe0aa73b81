/*
 * libampclient: train with an ampd server from C.
 *
 * A worker connects, creates the model (or finds it), loads its first values, joins, and then goes round:
 *
 *     while ((rc = ampclient_step_begin(model, &step)) == 0) {
 *         ... forward and backward of loss * step.scale, on ampclient_parameter(model, i) ...
 *         rc = ampclient_push(model, i, gradient, AMP_F16);   // per parameter, as soon as it is ready
 *         rc = ampclient_step_end(model, &result);            // the verdict, the same on every worker
 *     }
 *
 * Calls block; a loop thread of the client does the I/O. Lost connections, restarts of the server and
 * rollbacks are handled inside: the next ampclient_step_begin gives the step that the server is at.
 *
 * Errors: 0 or a negative AMP_E code (base/err.h); ampclient_error_text gives the sentence.
 * ampclient_step_begin alone returns 1 too, when the model is done. Bad arguments are answered with
 * AMP_EINVAL, never with an abort. Threads: a client and its models may be used by one thread at a time;
 * different clients are independent. The loop thread blocks all signals (SIGPIPE among them). After fork()
 * only exec is allowed in the child. Structs given by the caller begin with `size`, set to sizeof by the
 * _INIT macros, so that they can grow.
 */
#ifndef AMPCLIENT_H
#define AMPCLIENT_H

#include "amp/dtype.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define AMPCLIENT_API __attribute__((visibility("default")))

struct ampclient;
struct ampclient_model;

enum ampclient_optimizer {
    AMPCLIENT_SGD = 1,
    AMPCLIENT_ADAMW = 2,
    AMPCLIENT_ADAM = 3,
    AMPCLIENT_ADAGRAD = 4,
    AMPCLIENT_RMSPROP = 5,
    AMPCLIENT_LION = 6,
};
enum ampclient_schedule {
    AMPCLIENT_CONSTANT = 1,
    AMPCLIENT_LINEAR_WARMUP = 2,
    AMPCLIENT_STEP = 3,
    AMPCLIENT_COSINE = 4,
    AMPCLIENT_WORKER = 5, /* ampclient_set_learning_rate gives that of each step */
};
enum ampclient_sync { AMPCLIENT_SYNC = 1, AMPCLIENT_QUORUM = 2 };
enum ampclient_on_loss { AMPCLIENT_WAIT = 1, AMPCLIENT_SHRINK = 2 };
enum ampclient_durability { AMPCLIENT_DURABILITY_CHECKPOINT = 1, AMPCLIENT_DURABILITY_STEP = 2 };
/* docs/scalers.md says what each does. */
enum ampclient_scaler {
    AMPCLIENT_SCALER_DYNAMIC = 1,
    AMPCLIENT_SCALER_STATIC = 2,
    AMPCLIENT_SCALER_NONE = 3,
    AMPCLIENT_SCALER_MEGATRON = 4,
    AMPCLIENT_SCALER_DEEPSPEED = 5,
    AMPCLIENT_SCALER_DEEPSPEED_CONSECUTIVE = 6,
    AMPCLIENT_SCALER_APEX_HYSTERESIS = 7,
    AMPCLIENT_SCALER_PADDLE = 8,
};
enum ampclient_clip_scope { AMPCLIENT_CLIP_GLOBAL = 1, AMPCLIENT_CLIP_GROUP = 2 };
enum ampclient_weighting { AMPCLIENT_EQUAL = 1, AMPCLIENT_PUSHED = 2 };
enum ampclient_cast_overflow { AMPCLIENT_CAST_REPORT = 1, AMPCLIENT_CAST_SATURATE = 2 };
enum ampclient_floor_policy { AMPCLIENT_FLOOR_CLAMP = 1, AMPCLIENT_FLOOR_FREEZE = 2, AMPCLIENT_FLOOR_FAIL = 3 };
enum ampclient_verdict {
    AMPCLIENT_APPLIED = 1,
    AMPCLIENT_SKIPPED_OVERFLOW = 2,
    AMPCLIENT_SKIPPED_EMPTY = 3,
    AMPCLIENT_LATE = 4,
    AMPCLIENT_ROLLED_BACK = 5,
};

enum ampclient_log_level {
    AMPCLIENT_LOG_DEBUG = 1,
    AMPCLIENT_LOG_INFO = 2,
    AMPCLIENT_LOG_WARN = 3,
    AMPCLIENT_LOG_ERROR = 4,
    AMPCLIENT_LOG_NONE = 5,
};

struct ampclient_options {
    size_t size;
    uint64_t connect_timeout_ms;   /* first connection; default 10000 */
    uint64_t reconnect_timeout_ms; /* how long a lost server, or a shard that is not up yet, is waited for; 600000 */
    uint64_t call_timeout_ms;      /* create, load and other calls that do not wait for workers; default 60000 */
    uint64_t step_timeout_ms;      /* step_begin and step_end, which wait for other workers, and pull; default 900000 */

    /*
     * TLS and who this client is; files are PEM, and are read again when they change. NULL: what the environment
     * variable says; "": none. With cacert, cert or server_name, or "tls://" before the address, the connection is TLS;
     * a unix socket has none, but shards on other machines that are told of there have it then.
     */
    const char *cacert;      /* AMPD_CACERT: authorities of the server; none: those of the system */
    const char *cert;        /* AMPD_CERT: the client's own certificate, and */
    const char *key;         /* AMPD_KEY: its private key, for a server that asks for them */
    const char *server_name; /* AMPD_SERVER_NAME: whom the server's certificate must be for; none: the address's host */
    const char *token_file;  /* AMPD_TOKEN_FILE: a file with one token */
    bool token_over_plaintext; /* send the token to other machines without TLS too: who listens there can use it */

    /*
     * What the library does while a call waits: that it reconnects, has joined again, was rolled back, or which ranks
     * the model waits for. Lines of log_level (default WARN) and above go to log_cb, or to stderr if that is NULL, at
     * most one of each kind in 5 s. log_cb is called on the client's loop thread, one call at a time; `text` is a line
     * without newline, valid until it returns. It must not call the client, and all I/O of the client waits for it.
     */
    void (*log_cb)(void *arg, enum ampclient_log_level level, const char *text);
    void *log_arg;
    enum ampclient_log_level log_level;

    /*
     * Optional: while a call of this client waits, it is asked every 50 ms, on the thread of that call. Once it says
     * true, the call ends with AMP_ECANCELLED, and everything is as if its time limit had passed: a step that step_end
     * waited for goes on, and step_end may be called again. It must not call the client. ampclient_close waits at most
     * 10 s and does not ask.
     */
    bool (*interrupt_cb)(void *arg);
    void *interrupt_arg;

    bool no_shared_memory; /* with a server on this host, too, bytes of parameters and gradients go by its socket */
};
#define AMPCLIENT_OPTIONS_INIT                                                                                         \
    {                                                                                                                  \
        .size = sizeof(struct ampclient_options)                                                                       \
    }

/* One parameter of a model to be created. Borrowed during the call. */
struct ampclient_parameter_spec {
    const char *name;
    uint32_t dimensions; /* at most 8; 0: a scalar */
    uint64_t shape[8];
    uint32_t group; /* index into the specification's groups; 0 where it has none */
};

/* A group of parameters with values of its own. Borrowed during the call. */
struct ampclient_group_spec {
    const char *name;      /* shown in status; NULL: none */
    bool lr_factor_set;    /* without it: 1 */
    double lr_factor;      /* times the scheduled learning rate; 0: the group is frozen */
    bool weight_decay_set; /* without it: the optimizer's */
    double weight_decay;
    float clip_max_norm; /* with AMPCLIENT_CLIP_GROUP; 0: the model's */
};

/* checkpoint_every of a model whose checkpoints are made when asked for, before a drain and at its end alone. */
#define AMPCLIENT_CHECKPOINT_ON_DEMAND UINT64_MAX

/* A model to be created. Zero means the default given. */
struct ampclient_spec {
    size_t size;
    const char *name; /* letters, digits, '.', '_', '-'; at most 127 bytes */
    const struct ampclient_parameter_spec *parameters;
    uint32_t parameters_count; /* 1 to 8192 */
    uint32_t world_size;       /* 1 to 256 */

    enum ampclient_optimizer optimizer; /* ADAMW */
    double lr;                          /* 1e-3 for ADAMW and ADAM, 1e-4 for LION, 1e-2 for the others */
    double beta1, beta2, eps;           /* 0.9, 0.999 (LION 0.99), 1e-8 (ADAGRAD 1e-10) */
    bool weight_decay_set;              /* without it: 0.01 for ADAMW, 0 for the others */
    double weight_decay;
    double momentum, dampening; /* SGD: 0, 0; RMSPROP: momentum 0 */
    bool nesterov;              /* SGD */

    enum ampclient_schedule schedule; /* CONSTANT; counts applied steps */
    uint64_t warmup_steps, total_steps, step_every;
    double step_factor, lr_min;

    float clip_value;    /* 0: off */
    float clip_max_norm; /* 0: off; of the global 2-norm */

    enum amp_dtype cast;          /* dtype of the pulled parameters: AMP_F16 */
    enum ampclient_scaler scaler; /* DYNAMIC */
    float init_scale;             /* 65536 */
    float growth_factor;          /* 2 */
    float backoff_factor;         /* 0.5 */
    uint32_t growth_interval;     /* 2000 */
    float min_scale, max_scale;   /* 1, 2^24 */

    uint64_t max_steps;        /* attempted steps, then the model is done; 0: endless */
    uint64_t checkpoint_every; /* attempted steps: 100; or AMPCLIENT_CHECKPOINT_ON_DEMAND */
    uint32_t keep_last;        /* checkpoints kept: 3 */
    uint64_t loss_timeout_ms;  /* how long a step waits for a missing worker: 600000 */

    enum ampclient_sync sync;       /* SYNC: a step needs all workers; QUORUM: the first `quorum` ones */
    uint32_t quorum;                /* QUORUM: 1 to world_size; who comes later gets the verdict LATE */
    enum ampclient_on_loss on_loss; /* WAIT for a missing worker; SHRINK: go on with the others, */
    uint32_t min_workers;           /* as long as there are so many: 1 */
    uint64_t keep_every;            /* checkpoints whose step is a multiple of it are kept for good; 0: none */
    /*
     * CHECKPOINT: after a crash of the server training goes on from the last checkpoint; STEP: from the last verdict.
     */
    enum ampclient_durability durability;

    double alpha;                              /* RMSPROP: 0.99 */
    bool centered;                             /* RMSPROP, with momentum 0 */
    double lr_decay;                           /* ADAGRAD: 0 */
    const struct ampclient_group_spec *groups; /* NULL: all parameters are of one */
    uint32_t groups_count;                     /* at most 16 */
    enum ampclient_clip_scope clip_scope; /* of clip_max_norm: GLOBAL, over all parameters; GROUP, over each group */
    enum ampclient_weighting weighting;   /* EQUAL; PUSHED: each worker's gradients count by ampclient_set_weight */
    enum ampclient_cast_overflow
        cast_overflow;                        /* REPORT: a master beyond the cast's range is pulled as Inf and reported;
                                                   SATURATE: as the largest finite value, and reported */
    uint32_t hysteresis;                      /* overflows, for scalers that have one: 2 */
    enum ampclient_floor_policy floor_policy; /* CLAMP; what happens after so many overflows in a row: */
    uint32_t max_consecutive_overflows;       /* 50 */
};
#define AMPCLIENT_SPEC_INIT                                                                                            \
    {                                                                                                                  \
        .size = sizeof(struct ampclient_spec)                                                                          \
    }

/* A mapping of memory that a handle shares with the servers on its host: a copy of the parameters, or the slot. */
struct ampclient_shared_memory {
    void *data;
    size_t size_bytes; /* whole pages */
    /* Of a copy: the cast's. Of the slot: ampclient_gradient gives places in it for elements of this size alone. */
    enum amp_dtype dtype;
    bool writable; /* it is the slot, for gradients; copies are mapped for reading */
};

struct ampclient_join_options {
    size_t size;
    const char *worker_name; /* NULL: "rank-<rank>", for which rank or RANK must be given */
    int32_t rank;        /* -1: RANK of the environment if set, else given by the server (then worker_name is needed) */
    int32_t world_size;  /* -1: WORLD_SIZE of the environment if set, else not checked */
    bool replace;        /* take the rank of a worker whose lease has ended */
    uint32_t accumulate; /* pushes of each parameter per step; their sum goes out, as fp32 if > 1; 0 means 1 */
    /*
     * Optional: step_begin calls it, on its thread, before it returns a step that begins where a checkpoint ended:
     * after a rollback, or in a job that goes on. `data` is what this rank gave to ampclient_set_user_state for the
     * step before (size 0: nothing), valid until it returns; it must not call the client.
     */
    void *restore_arg;
    void (*restore_cb)(void *arg, uint64_t step, const void *data, size_t size);
    /*
     * If another process joins under this rank, it has the rank from then on, and this process stops: step_begin, push
     * and step_end return AMP_EABORTED, and the text names the other process. With take_back this process joins again
     * instead, and the other one stops, unless it has set take_back as well.
     */
    bool take_back;
    /*
     * Parameters and gradients come and go by units (ampclient_unit_add), for a model that is larger than this
     * process's memory: ampclient_step_begin and ampclient_pull bring no parameters, ampclient_gather does;
     * ampclient_scatter takes the place of ampclient_push. Only with accumulate 1: add up micro-batches first.
     */
    bool units;
    /*
     * Optional: called once a mapping of memory shared with the servers is made (mapped), and right before it is
     * unmapped, so that a device can pin it (cudaHostRegister; of copies with cudaHostRegisterReadOnly). There are
     * three: two copies of the parameters, and the slot. The memory is the library's; `shared` is valid during the call
     * alone. When it is told that one goes, no device may use it any more. On the thread of the step_begin, leave or
     * close that maps or unmaps; it must not call the client. Never with units; where leave or close returns
     * AMP_EINTERNAL the memory stays mapped, and nothing is told. Where the model waits for all its workers, the
     * parameters of a step stay in the copy, also after ampclient_use_memory.
     */
    void *shared_arg;
    void (*shared_cb)(void *arg, const struct ampclient_shared_memory *shared, bool mapped);
};
#define AMPCLIENT_JOIN_OPTIONS_INIT                                                                                    \
    {                                                                                                                  \
        .size = sizeof(struct ampclient_join_options), .rank = -1, .world_size = -1                                    \
    }

/*
 * A parameter as pulled. `data` is a view: valid until the next step_begin, pull or leave of that model, and with units
 * until ampclient_release. Where memory is shared with the server and a step is decided without this worker (quorum, a
 * loss, a rollback), it lies in memory that the others' training writes over from then on; step_end tells that.
 */
struct ampclient_tensor {
    const char *name;
    uint32_t dimensions;
    const uint64_t *shape;
    uint64_t elements;
    enum amp_dtype dtype;
    const void *data;
};

struct ampclient_step {
    size_t size;
    uint64_t epoch;
    uint64_t step;    /* from 1; the data of a step should be a function of this number alone */
    uint64_t version; /* of the parameters */
    float scale;      /* multiply the loss by it, and by no scale of your own (amp_fsdp_set_server_scale) */
    uint64_t scale_id;
    bool rolled_back; /* this step was begun before, in an older epoch */
};
#define AMPCLIENT_STEP_INIT                                                                                            \
    {                                                                                                                  \
        .size = sizeof(struct ampclient_step)                                                                          \
    }

/* An Inf, a NaN or a value out of range in a step: in which parameter, and whose. It stays as it is. */
struct ampclient_overflow {
    const char *parameter; /* its name */
    uint32_t parameter_index;
    int32_t rank;       /* of the worker whose gradient had it; -1: each was finite, their sum is not */
    const char *worker; /* its name; "" with rank -1, with several shards, and where it is not known */
    uint64_t inf_count, nan_count;
    uint64_t first_index; /* of such an element, within the parameter */
    float largest_finite; /* magnitude in the parameter, as pushed */
};

struct ampclient_result {
    size_t size;
    uint64_t epoch, step;
    enum ampclient_verdict verdict;
    uint64_t applied; /* steps applied so far */
    uint64_t version; /* after this step */
    double norm;      /* global 2-norm of the unscaled gradient, before clipping; 0 if skipped */
    float clip;       /* clip coefficient */
    float scale, new_scale;
    uint64_t scale_id, new_scale_id;
    uint64_t overflow_parameters; /* (parameter, worker) pairs with an overflow */
    uint64_t range_warnings;      /* values whose low-precision copy overflowed in the apply before */
    uint64_t durable_step;        /* last step that survives a crash */
    /*
     * The first 64 of overflow_parameters, by parameter and rank: a view, valid until the next step_end or leave of
     * that model.
     */
    const struct ampclient_overflow *overflows;
    uint32_t overflows_count;
};
#define AMPCLIENT_RESULT_INIT                                                                                          \
    {                                                                                                                  \
        .size = sizeof(struct ampclient_result)                                                                        \
    }

/* How a model stands, as the server tells it. */
struct ampclient_status {
    size_t size;
    uint64_t epoch;
    uint64_t step; /* the open step, or the last one when the model is done */
    uint64_t version;
    uint64_t attempted; /* decided steps: applied + skipped */
    uint64_t applied;
    uint64_t skipped;
    float scale;
    bool done;
};
#define AMPCLIENT_STATUS_INIT                                                                                          \
    {                                                                                                                  \
        .size = sizeof(struct ampclient_status)                                                                        \
    }

/*
 * All that a model was after one of its steps: what ampclient_load_full goes on from. Arrays of arrays have one for
 * each parameter, in the model's order, with its elements in fp32. The record is that of docs/scalers.md; its numbers,
 * step and version are those in the metadata of a file of `ampctl checkpoint export`.
 */
struct ampclient_full {
    size_t size;
    uint64_t step;              /* the last decided one: training goes on with the next */
    uint64_t version;           /* of the parameters: how many of the steps were applied */
    const float *const *values; /* the fp32 masters */
    const float *const *m;      /* the optimizer's first moment, and */
    const float *const *v;      /* its second one; each NULL where the optimizer keeps none (docs/numerics.md) */
    uint32_t parameters_count;  /* of each of the three */
    float scale;                /* of the loss */
    uint64_t scale_id;
    uint32_t growth_tracker;
    uint32_t hysteresis_left;
    uint32_t consecutive_overflows;
    uint64_t total_overflows;
    uint64_t steps_since_overflow;
    uint64_t attempted;                /* step */
    uint64_t applied;                  /* version */
    uint64_t skipped;                  /* the rest of attempted */
    const uint8_t *const *user_states; /* what each rank had pushed last (ampclient_set_user_state), or NULL: none */
    const uint32_t *user_states_sizes; /* up to 65536 bytes each; 0: none of that rank */
    uint32_t user_states_count;        /* ranks; those that the model does not have are left out */
    double learning_rate;              /* the base rate that an operator had set; 0: none was */
};
#define AMPCLIENT_FULL_INIT                                                                                            \
    {                                                                                                                  \
        .size = sizeof(struct ampclient_full)                                                                          \
    }

/* ---- life ---- */

/*
 * Connects to "host:port", "tls://host:port" or "unix:/path" (several separated by commas are tried in turn).
 * options may be NULL, and are copied. On success *client is owned by the caller (ampclient_close); on failure it is
 * NULL, and `error` (may be NULL) has the text. AMP_EINVAL, AMP_ENOMEM, AMP_EUNAVAILABLE; AMP_ENOTFOUND, AMP_EDENIED
 * and AMP_EIO (a file of the options).
 */
AMPCLIENT_API int ampclient_connect(const char *endpoints, const struct ampclient_options *options,
                                    struct ampclient **client, struct amp_error *error);

/* Ends the loop thread and frees the client and its models; NULL is allowed. Leases are left to run out. */
AMPCLIENT_API void ampclient_close(struct ampclient *client);

/* The text of the last error of this client: a sentence; "" if there was none. Valid until the next call. */
AMPCLIENT_API const char *ampclient_error_text(const struct ampclient *client);

/* Its reason: one word as in docs/protocol.md, "" if there is none. Valid until the next call. */
AMPCLIENT_API const char *ampclient_error_reason(const struct ampclient *client);

/* The version of the library, as "1.2.3"; it is there for as long as the library. */
AMPCLIENT_API const char *ampclient_version(void);

/* ---- models ---- */

/*
 * Creates the model, or finds it if one of the same name and an equal specification exists (*existed, may be NULL).
 * AMP_EEXIST if its specification differs; AMP_EINVAL names the field; AMP_EUNAVAILABLE, with the reason SHARD_AWAY
 * where a shard of the cluster has not come up (as load and join, too).
 */
AMPCLIENT_API int ampclient_create(struct ampclient *client, const struct ampclient_spec *spec, bool *existed);

/*
 * Gives the model its first values: values[i] has the elements of parameter i in fp32, borrowed during the
 * call. The first complete load wins; if there was one already, *already (may be NULL) is true and nothing
 * changes.
 */
AMPCLIENT_API int ampclient_load(struct ampclient *client, const char *model_name, const float *const *values,
                                 uint32_t values_count, bool *already);

/*
 * Gives a model that was created and has no values yet all that another one was, so that training goes on after
 * full->step as if it had never moved, bit by bit where the specification is the same; the number of shards and of
 * ranks may be another one. Everything that `full` points to is borrowed during the call. If the model had values
 * already, or another load was first, *already (may be NULL) is true and nothing changes. After a failure the model has
 * no values, and may be loaded again. AMP_ENOTFOUND; AMP_EINVAL: the wrong number of parameters, moments that the
 * optimizer does not keep or that are missing, numbers that are no record of this model's; AMP_EUNAVAILABLE,
 * AMP_ENOMEM. Thread rule: as all calls of a client.
 */
AMPCLIENT_API int ampclient_load_full(struct ampclient *client, const char *model_name,
                                      const struct ampclient_full *full, bool *already);

/* How a model stands. AMP_ENOTFOUND. */
AMPCLIENT_API int ampclient_status(struct ampclient *client, const char *model_name, struct ampclient_status *status);

/*
 * Joins a model as a worker; waits until the lease is given. options may be NULL. On success *model is owned
 * by the client and freed by ampclient_leave or ampclient_close. AMP_ENOTFOUND, AMP_EINVAL (WORLD_SIZE
 * differs), AMP_ESTATE (no free rank).
 */
AMPCLIENT_API int ampclient_join(struct ampclient *client, const char *model_name,
                                 const struct ampclient_join_options *options, struct ampclient_model **model);

/* Gives the rank back and frees the model, also after a failure. */
AMPCLIENT_API int ampclient_leave(struct ampclient_model *model);

AMPCLIENT_API uint32_t ampclient_rank(const struct ampclient_model *model);
AMPCLIENT_API uint32_t ampclient_world_size(const struct ampclient_model *model);
AMPCLIENT_API uint32_t ampclient_parameters_count(const struct ampclient_model *model);

/* The index of a parameter, or -1. */
AMPCLIENT_API int64_t ampclient_parameter_index(const struct ampclient_model *model, const char *name);

/*
 * A view of parameter `index` as last pulled. AMP_ERANGE; AMP_ESTATE (nothing pulled yet; a pull has broken off and
 * left some of it; its unit is not gathered).
 */
AMPCLIENT_API int ampclient_parameter(const struct ampclient_model *model, uint32_t index,
                                      struct ampclient_tensor *tensor);

/*
 * Memory of the caller for the parameters: a view of one may then be used for as long as the caller keeps the memory.
 * With shared_cb that is so of what came as bytes alone; else a view is valid as ampclient_tensor says. Between the
 * join and the first step_begin or pull. `size` is at least ampclient_memory_size bytes, and `memory` is aligned to 64.
 * The library writes there during step_begin and pull alone. Borrowed until ampclient_leave or ampclient_close returns;
 * where that or another call says AMP_EINTERNAL, the client's thread may still write, and the memory must stay.
 * AMP_EINVAL; AMP_ESTATE: too late, or the handle has units. Nothing is borrowed then.
 */
AMPCLIENT_API int ampclient_use_memory(struct ampclient_model *model, void *memory, size_t size);

/* Bytes of all parameters in their dtype, with what lies between them; 0 for NULL and with units. */
AMPCLIENT_API size_t ampclient_memory_size(const struct ampclient_model *model);

/*
 * Pulls the version of the last decided step, for evaluation; not between step_begin and step_end (AMP_ESTATE). Works
 * when the model is done. *version may be NULL. With units it only says which version ampclient_gather brings from
 * then on.
 */
AMPCLIENT_API int ampclient_pull(struct ampclient_model *model, uint64_t *version);

/* ---- steps ---- */

/*
 * Waits for the next step, pulls its parameters. 0, 1 when the model is done, or an error: AMP_EUNSTABLE when the loss
 * scale is at its floor and the model is to fail there (the text names the parameters), AMP_ESTATE when it is to wait
 * for an operator, or this worker is in quarantine (the text says for how long), AMP_EABORTED when another process has
 * taken the rank (take_back of the join options; so do push and step_end). A step that was begun and not ended, or
 * whose step_end has failed, is begun again, without what was pushed.
 */
AMPCLIENT_API int ampclient_step_begin(struct ampclient_model *model, struct ampclient_step *step);

/*
 * Hands in the scaled gradient of one parameter: all its elements, of any of AMP_F16, AMP_BF16, AMP_F32 (the
 * same for all parameters of a step). The gradient is borrowed until step_end returns. Where that returns AMP_EDEADLINE
 * or AMP_ECANCELLED sending goes on, and the gradient stays borrowed until a later step_end returns with another code,
 * or step_begin or leave returns. Sending begins at once, in the background. After a rollback it does nothing and
 * returns 0. AMP_EINVAL, AMP_ERANGE, AMP_ESTATE (no step begun, pushed before, or step_end was called).
 */
AMPCLIENT_API int ampclient_push(struct ampclient_model *model, uint32_t parameter, const void *gradient,
                                 enum amp_dtype dtype);

/*
 * The place to write the gradient of a parameter into: all its elements, of AMP_F16, AMP_BF16 or AMP_F32, to be handed
 * in by ampclient_push with the same dtype then. Where memory is shared with the servers, and the slot is of that
 * width, it lies there, and the gradient is written once; else it is memory of the handle. Between step_begin and
 * step_end; valid until step_end, and the same in each step as long as the memory is. What lies there before is
 * undefined. AMP_EINVAL, AMP_ERANGE, AMP_ESTATE (no step, or the handle has units), AMP_ENOMEM. Thread rule: as
 * ampclient_push.
 */
AMPCLIENT_API int ampclient_gradient(struct ampclient_model *model, uint32_t parameter, enum amp_dtype dtype,
                                     void **place);

/* Whether parameters and gradients of this handle are in memory shared with the servers now. */
AMPCLIENT_API bool ampclient_shares_memory(const struct ampclient_model *model);

/*
 * What this worker's gradients count for beside the others', from the step on whose first push has not been made: 0, or
 * 2^-60 to 2^24, for example its number of samples. 1 until this is called; stays until it is called again. Any other
 * than 1 only where the model's weighting is AMPCLIENT_PUSHED, else step_end fails. AMP_EINVAL: out of that range;
 * AMP_ESTATE: the step in hand has been pushed to. Thread rule: as ampclient_push.
 */
AMPCLIENT_API int ampclient_set_weight(struct ampclient_model *model, float weight);

/*
 * The learning rate of the steps from that on whose first push has not been made, where the model's schedule is
 * AMPCLIENT_WORKER: 0 or more, and finite as a float, too. Such a model needs it before its first push; it stays until
 * this is called again. The factors of groups multiply it. All workers give the same for a step, bit for bit: step_end
 * fails with AMP_EINVAL where another's push was whole before with another rate, where none was given, or where one was
 * given and the model has a schedule of its own. AMP_EINVAL: out of that range; AMP_ESTATE: the step in hand has been
 * pushed to. Thread rule: as ampclient_push.
 */
AMPCLIENT_API int ampclient_set_learning_rate(struct ampclient_model *model, double lr);

/*
 * Tells the loss of this worker's samples in the step in hand: the mean over them, not scaled, any number, also Inf and
 * NaN. It is for people alone, and no verdict depends on it: the row of the step in the history (`ampctl history`,
 * `ampctl watch`) has the mean over the workers that have told theirs, weighted as their gradients are, whether the
 * step is applied or skipped. Between step_begin and step_end, before or after the pushes; the last one told counts,
 * and step_end forgets it. After a rollback it does nothing and returns 0. AMP_ESTATE: no step begun, or its step_end
 * has been called. Thread rule: as ampclient_push.
 */
AMPCLIENT_API int ampclient_loss(struct ampclient_model *model, float loss);

/*
 * The same of another number of the step, such as an accuracy, by its name: 1 to 32 bytes of UTF-8 without control
 * characters, "=" and ";", copied. Up to 8 names a step; a name that comes again has the newer value. Of the names that
 * different workers tell, the row has the first 8. AMP_EINVAL: no such name, or one too many; AMP_ESTATE, rollbacks and
 * the thread rule as for ampclient_loss.
 */
AMPCLIENT_API int ampclient_metric(struct ampclient_model *model, const char *name, float value);

/*
 * Ends the step: parameters not pushed are absent. Waits for the verdict. After a rollback: 0 with verdict
 * ROLLED_BACK, and the next step_begin gives the earlier step. AMP_EINVAL (result is NULL, or its size is wrong: the
 * step is as before), AMP_ESTATE (no step begun); AMP_EDEADLINE after step_timeout_ms and AMP_ECANCELLED by
 * interrupt_cb: gradients stay borrowed, and it may be called again; AMP_EABORTED as from step_begin.
 */
AMPCLIENT_API int ampclient_step_end(struct ampclient_model *model, struct ampclient_result *result);

/* ---- all other methods of the server ---- */

/*
 * Calls a method that has no function here: history, checkpoints, the scale (proto/ampd/v1). `method` is its path,
 * "/ampd.v1.ScaleService/GetScale"; `request` a message in protobuf's encoding, borrowed during the call. It is tried
 * again while the server cannot be reached, as all calls are: give what has a request_id one (SetScale, Rollback and
 * others), so that it is done once. On success *response is a view of the answer's bytes, valid until the next
 * ampclient_call or ampclient_close, and not NULL unless *response_size is 0. AMP_EINVAL (a method without "/", NULL,
 * more than 1 MiB), AMP_EUNIMPLEMENTED (no such method), and what the method answers. Thread rule: that of all calls.
 */
AMPCLIENT_API int ampclient_call(struct ampclient *client, const char *method, const void *request, size_t size,
                                 const void **response, size_t *response_size);

/*
 * The same of a method that answers with a stream, such as WatchSteps: returns when the stream has ended, without a
 * time limit of its own. message_cb is called on the client's loop thread with each message, valid until it returns; it
 * must not call the client; if it returns another value than 0 the stream ends, with AMP_ECANCELLED. Tried once.
 */
AMPCLIENT_API int ampclient_call_stream(struct ampclient *client, const char *method, const void *request, size_t size,
                                        int (*message_cb)(void *arg, const uint8_t *data, size_t size), void *arg);

/* ---- units: a model that is larger than the worker's memory ---- */

/*
 * A unit is a set of parameters that is gathered from the servers when a layer needs it and released afterwards, and
 * whose gradients are scattered as soon as backward has them. The model is sharded over the servers; the worker holds
 * the units in use, and of each block with several parameters a copy (at most 256 KiB) from the first scatter into it
 * until it has been sent. On any number of shards:
 *
 *     ampclient_step_begin(model, &step);              // brings step.scale, and no parameters
 *     for each unit, forward:
 *         ampclient_gather(model, unit);               // then ampclient_parameter of its parameters
 *         ampclient_prefetch(model, unit + 1);         // arrives while this one computes
 *         ... forward ...
 *         ampclient_release(model, unit);
 *     for each unit, backward:
 *         ampclient_gather, ampclient_prefetch, ... backward ..., ampclient_release
 *         ampclient_scatter(model, unit, gradients, AMP_F16);
 *     ampclient_step_end(model, &result);
 *
 * **A step can become void.** What was scattered is not kept: where a server lost it (it was restarted, or the
 * connection broke with bytes on their way), and where the model was rolled back or the step was decided without this
 * worker, gather, prefetch, scatter and drain return 1 and do nothing. Then call ampclient_step_end, which gives the
 * verdict ROLLED_BACK or LATE, and begin again: ampclient_step_begin gives the step that the model is at, the same
 * one if it is still open, and the worker computes it anew. ROLLED_BACK may also come for a step that was decided
 * before this worker heard of it: ampclient_step_begin then gives the step after it. No gradient counts twice. A push
 * may have blocks of both computations, so compute a step's gradients from its number and its parameters alone.
 *
 * Thread rule: that of all calls. Codes beside those named: AMP_EINVAL for a NULL model, AMP_ESTATE for a handle that
 * was joined without `units`, and AMP_EABORTED as from ampclient_step_begin.
 */

/*
 * A new unit of these parameters (indices, copied), at any time after the join; *unit gets its number, from 0. A
 * parameter is in at most one unit, so layers that share one belong to the same unit. A parameter that is in none
 * cannot be gathered, and is absent from every step. AMP_EINVAL (no parameter, one twice or of another unit, `unit`
 * NULL), AMP_ERANGE, AMP_ENOMEM: nothing is changed.
 */
AMPCLIENT_API int ampclient_unit_add(struct ampclient_model *model, const uint32_t *parameters,
                                     uint32_t parameters_count, uint32_t *unit);

/*
 * Waits until the unit's parameters are here, in the version of the step in hand, or outside of a step in that of the
 * last ampclient_pull. Does nothing if they are here already. 0; 1 if the step is void, or if the servers no longer
 * have the version pulled (call ampclient_pull again); AMP_ERANGE, AMP_ESTATE (no step, and nothing pulled),
 * AMP_ENOMEM, AMP_EDEADLINE (after step_timeout_ms; it may be called again), AMP_EUNAVAILABLE.
 */
AMPCLIENT_API int ampclient_gather(struct ampclient_model *model, uint32_t unit);

/*
 * Begins what ampclient_gather waits for, and returns at once, with a code as from there. Units come one at a time, in
 * the order asked for.
 */
AMPCLIENT_API int ampclient_prefetch(struct ampclient_model *model, uint32_t unit);

/*
 * Frees the unit's parameters; if they are still on their way, the rest does not come. The unit may be gathered again.
 * step_begin, pull and leave release all units. AMP_ERANGE; AMP_ESTATE: it was not gathered, or has been released.
 */
AMPCLIENT_API int ampclient_release(struct ampclient_model *model, uint32_t unit);

/*
 * Hands in the scaled gradients of a unit, in the order of its parameters; NULL for a parameter that has none: it is
 * absent, as in ampclient_push, whose dtypes and rules hold. Once a step for each unit, whether or not it is gathered
 * then. First waits until what was scattered before has left (ampclient_drain); then sends in the background, so
 * that the gradients of one unit at a time are borrowed: until the next scatter, drain or step_end returns with another
 * code than AMP_EDEADLINE or AMP_ECANCELLED. 0; 1 if the step is void; AMP_EINVAL, AMP_ERANGE, AMP_ESTATE (no
 * step, or scattered before), AMP_ENOMEM, AMP_EDEADLINE (as ampclient_drain). Unless 0, nothing of `gradients` is sent
 * or borrowed.
 */
AMPCLIENT_API int ampclient_scatter(struct ampclient_model *model, uint32_t unit, const void *const *gradients,
                                    enum amp_dtype dtype);

/*
 * Waits until no gradient is borrowed any more: all have left for the servers. 0; 1 if the step is void; AMP_ESTATE: no
 * step is begun; AMP_EDEADLINE after step_timeout_ms, AMP_ECANCELLED by interrupt_cb: they are still borrowed, and it
 * may be called again.
 */
AMPCLIENT_API int ampclient_drain(struct ampclient_model *model);

/* Bytes that the handle has allocated for units: parameters, and copies of blocks. 0 for NULL. */
AMPCLIENT_API uint64_t ampclient_units_bytes(const struct ampclient_model *model);

/* ---- user state ---- */

/*
 * Bytes (at most 65536, copied) stored with the verdict of the next step_end, and so inside checkpoints. AMP_EINVAL;
 * with units AMP_ESTATE after the first scatter of a step.
 */
AMPCLIENT_API int ampclient_set_user_state(struct ampclient_model *model, const void *data, size_t size);

/*
 * The user state of this rank in the step that the epoch began from; *size 0 if there is none. A view, valid until the
 * next call. It is that of the step in hand only if a checkpoint ended right before it: see restore_cb of the join
 * options.
 */
AMPCLIENT_API int ampclient_user_state(const struct ampclient_model *model, const void **data, size_t *size);

#ifdef __cplusplus
}
#endif

#endif
