/*
 * libampclient: train with an ampd server from C.
 *
 * A worker connects, creates the model (or finds it), loads its first values, joins, and then repeats:
 *
 *     while ((rc = ampclient_step_begin(model, &step)) == 0) {
 *         ... forward and backward of loss * step.scale, on ampclient_parameter(model, i) ...
 *         rc = ampclient_push(model, i, gradient, AMP_F16);   // per parameter, as soon as it is ready
 *         rc = ampclient_step_end(model, &result);            // the verdict, the same on every worker
 *     }
 *
 * Calls block; a loop thread of the client does the I/O. Lost connections, restarts of the server and rollbacks are
 * handled inside: the next ampclient_step_begin gives the step that the server is at.
 *
 * Errors. A function returns 0 or a negative AMP_E code (base/err.h), and ampclient_error_text gives the sentence.
 * ampclient_step_begin also returns 1 when the model is done, and functions on units return 1 when the step is void.
 * Bad arguments are answered with AMP_EINVAL, never with an abort. A NULL client or model gives AMP_EINVAL without a
 * text. Unless a comment says otherwise, output arguments are written only on success, and what other arguments point
 * to is borrowed during the call.
 *
 * Common codes, which every call that talks to a server may also return:
 *   AMP_EUNAVAILABLE      no server could be reached in reconnect_timeout_ms, or it answered UNAVAILABLE all the time;
 *                         with the reason SHARD_AWAY: a shard of the cluster has not come up in that time
 *   AMP_EDEADLINE         the time limit of the call or of its last try has passed
 *   AMP_ECANCELLED        interrupt_cb of the options has ended the wait
 *   AMP_ENOMEM            this process has no memory for the call
 *   AMP_EUNAUTHENTICATED, AMP_EDENIED  the server does not know the token, or its role does not allow the call
 *   AMP_EDATALOSS         bytes came damaged several times in a row
 *   AMP_EINTERNAL         the server sent what cannot be, or the loop thread does not answer any more; then every later
 *                         call that waits or hands something in fails so, too: close the client and make another one
 * A call that does not wait for workers is tried again for reconnect_timeout_ms while no server can be reached; each
 * try takes at most call_timeout_ms. What the server refuses otherwise arrives as the code of its gRPC status, with the
 * reason of docs/protocol.md.
 *
 * Threads. A client and its models may be used by any thread, but by one thread at a time; different clients are
 * independent. "Thread: the client's" below means this: any thread, while no other call of the client or of its models
 * is running. The loop thread blocks all signals (SIGPIPE among them). After fork() the child may only exec.
 *
 * Structs given by the caller begin with `size`, set to sizeof by the _INIT macros, so that later versions of the
 * library can add fields. A struct with another beginning is refused with AMP_EINVAL.
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

/* docs/numerics.md has the formula of each optimizer. */
enum ampclient_optimizer {
    AMPCLIENT_SGD = 1,
    AMPCLIENT_ADAMW = 2,
    AMPCLIENT_ADAM = 3,
    AMPCLIENT_ADAGRAD = 4,
    AMPCLIENT_RMSPROP = 5,
    AMPCLIENT_LION = 6,
};
/* The learning rate as a function of the number of applied steps. */
enum ampclient_schedule {
    AMPCLIENT_CONSTANT = 1,
    AMPCLIENT_LINEAR_WARMUP = 2,
    AMPCLIENT_STEP = 3,
    AMPCLIENT_COSINE = 4,
    AMPCLIENT_WORKER = 5, /* no schedule: the workers give the rate of each step by ampclient_set_learning_rate */
};
enum ampclient_sync { AMPCLIENT_SYNC = 1, AMPCLIENT_QUORUM = 2 };
enum ampclient_on_loss { AMPCLIENT_WAIT = 1, AMPCLIENT_SHRINK = 2 };
enum ampclient_durability { AMPCLIENT_DURABILITY_CHECKPOINT = 1, AMPCLIENT_DURABILITY_STEP = 2 };
/* docs/scalers.md says what each policy of the loss scale does. */
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
/* How a step ended. APPLIED and the two SKIPPED are the server's verdict, the same on every worker that counted. */
enum ampclient_verdict {
    AMPCLIENT_APPLIED = 1,          /* the parameters were updated */
    AMPCLIENT_SKIPPED_OVERFLOW = 2, /* a gradient had an Inf or a NaN, or became one when it was summed or unscaled */
    AMPCLIENT_SKIPPED_EMPTY = 3,    /* all workers that counted have weight 0 (AMPCLIENT_PUSHED) */
    AMPCLIENT_LATE = 4,             /* the step was decided without this worker, whose gradients were dropped */
    AMPCLIENT_ROLLED_BACK = 5,      /* the step is void on this worker; step_begin gives the step to compute next */
};

enum ampclient_log_level {
    AMPCLIENT_LOG_DEBUG = 1,
    AMPCLIENT_LOG_INFO = 2,
    AMPCLIENT_LOG_WARN = 3,
    AMPCLIENT_LOG_ERROR = 4,
    AMPCLIENT_LOG_NONE = 5,
};

/* What the _INIT macros are made of. C++ compilers warn of each field that an initializer in braces leaves out. */
#ifdef __cplusplus
#define AMPCLIENT_SIZED_AND(type, fields)                                                                              \
    [] {                                                                                                               \
        struct type ampclient_made = {};                                                                               \
        ampclient_made.size = sizeof ampclient_made;                                                                   \
        fields;                                                                                                        \
        return ampclient_made;                                                                                         \
    }()
#define AMPCLIENT_SIZED(type)          AMPCLIENT_SIZED_AND(type, (void)0)
#define AMPCLIENT_SIZED_RANKLESS(type) AMPCLIENT_SIZED_AND(type, ampclient_made.rank = ampclient_made.world_size = -1)
#else
#define AMPCLIENT_SIZED(type)                                                                                          \
    {                                                                                                                  \
        .size = sizeof(struct type)                                                                                    \
    }
#define AMPCLIENT_SIZED_RANKLESS(type)                                                                                 \
    {                                                                                                                  \
        .size = sizeof(struct type), .rank = -1, .world_size = -1                                                      \
    }
#endif

/* Options of a client. In times 0 means the default; a time above 2^40 ms counts as 2^40 ms. Strings are copied. */
struct ampclient_options {
    size_t size;
    uint64_t connect_timeout_ms;   /* first connection; default 10000 */
    uint64_t reconnect_timeout_ms; /* wait for a lost server, or for a shard that is not up yet; default 600000 */
    uint64_t call_timeout_ms;      /* calls that do not wait for workers; default 60000. A load: 1 s more per 8 MiB */
    uint64_t step_timeout_ms;      /* step_begin and step_end, which wait for other workers, and pull; default 900000 */

    /*
     * TLS, and who this client is. Files are PEM, and are read again when they change. In each string NULL means the
     * value of the environment variable, and "" means none. The connection is TLS if cacert, cert or server_name is
     * given, or the address begins with "tls://". A unix socket has none, but connections to shards on other machines
     * that a server names there have it then.
     */
    const char *cacert;        /* AMPD_CACERT: authorities of the server's certificate; none: those of the system */
    const char *cert;          /* AMPD_CERT: the client's own certificate, for a server that asks for one */
    const char *key;           /* AMPD_KEY: the private key of `cert`; both are given, or neither */
    const char *server_name;   /* AMPD_SERVER_NAME: name in the server's certificate; none: the host of the address */
    const char *token_file;    /* AMPD_TOKEN_FILE: a file with one token */
    bool token_over_plaintext; /* send the token without TLS to other machines, where any listener can read it */

    /*
     * Lines on what the library does while a call waits: that it reconnects, has joined again, was rolled back, or
     * which ranks the model waits for. Lines of log_level (default WARN) and above go to log_cb, or to stderr if that
     * is NULL; each kind of line comes at most once in 5 s. log_cb runs on the client's loop thread, whose I/O waits
     * for it; it must not call the client. `text` is one line without newline, valid until log_cb returns.
     */
    void (*log_cb)(void *arg, enum ampclient_log_level level, const char *text);
    void *log_arg;
    enum ampclient_log_level log_level;

    /*
     * Optional. While a call of this client waits, interrupt_cb is called every 50 ms, on the thread of that call; it
     * must not call the client. Once it returns true, the call ends with AMP_ECANCELLED, otherwise as if its time limit
     * had passed: a step that step_end waited for goes on, and step_end may be called again. ampclient_close does not
     * call it.
     */
    bool (*interrupt_cb)(void *arg);
    void *interrupt_arg;

    bool no_shared_memory; /* send parameters and gradients over the socket even if the server is on this host */
};
#define AMPCLIENT_OPTIONS_INIT AMPCLIENT_SIZED(ampclient_options)

/* One parameter of a model to be created. Borrowed during the call. */
struct ampclient_parameter_spec {
    const char *name;    /* unique in the model; 1 to 127 bytes of UTF-8 without '#' and '@' */
    uint32_t dimensions; /* length of `shape`, at most 8; 0: a scalar */
    uint64_t shape[8];   /* extents, each at least 1; the elements are in row-major order */
    uint32_t group;      /* index into the specification's groups; 0 if the specification has none */
};

/* A group of parameters with optimizer values of its own. Borrowed during the call. */
struct ampclient_group_spec {
    const char *name;      /* shown in status; NULL: none */
    bool lr_factor_set;    /* false: lr_factor is 1 */
    double lr_factor;      /* multiplies the scheduled learning rate; 0: its parameters stay as they are */
    bool weight_decay_set; /* false: the group has the optimizer's weight_decay */
    double weight_decay;
    float clip_max_norm; /* largest 2-norm of the group, with AMPCLIENT_CLIP_GROUP; 0: the model's clip_max_norm */
};

/* A value of checkpoint_every: checkpoints are made on request, before a drain, and when the model is done alone. */
#define AMPCLIENT_CHECKPOINT_ON_DEMAND UINT64_MAX
#define AMPCLIENT_BETA_ZERO            (-1e-300) /* of beta1 and beta2: 0, which would mean their default */

/* A model to be created. Zero means the default. docs/specification.md: bounds, and names in errors. */
struct ampclient_spec {
    size_t size;
    const char *name; /* letters, digits, '.', '_', '-'; does not begin with '.'; at most 127 bytes */
    const struct ampclient_parameter_spec *parameters;
    uint32_t parameters_count; /* 1 to 8192 */
    uint32_t world_size;       /* number of ranks, 1 to 256 */

    enum ampclient_optimizer optimizer; /* default ADAMW */
    double lr;                          /* default 1e-3 for ADAMW and ADAM, 1e-4 for LION, 1e-2 for the others */
    double beta1, beta2, eps;           /* defaults 0.9, 0.999 (LION 0.99), 1e-8 (ADAGRAD 1e-10) */
    bool weight_decay_set;              /* false: weight_decay is 0.01 for ADAMW, 0 for the others */
    double weight_decay;
    double momentum, dampening; /* SGD: both, default 0; RMSPROP: momentum, default 0 */
    bool nesterov;              /* SGD: needs momentum above 0 and dampening 0 */

    enum ampclient_schedule schedule;               /* default CONSTANT; counts applied steps */
    uint64_t warmup_steps, total_steps, step_every; /* applied steps: of the warm-up; COSINE: in all; STEP: per decay */
    double step_factor, lr_min; /* STEP: factor of each decay, default 0.1; COSINE: the lowest rate, default 0 */

    float clip_value;    /* each element of the unscaled gradient is clipped to [-clip_value, clip_value]; 0: off */
    float clip_max_norm; /* largest 2-norm of the unscaled gradient; 0: off; clip_scope says over what */

    enum amp_dtype cast;          /* dtype of the pulled parameters; default AMP_F16 */
    enum ampclient_scaler scaler; /* default DYNAMIC */
    float init_scale;             /* default 65536 (NONE: 1) */
    float growth_factor;          /* default 2 */
    float backoff_factor;         /* default 0.5 */
    uint32_t growth_interval;     /* clean steps before the scale grows; default 2000 */
    float min_scale, max_scale;   /* defaults 1 and 2^24 */

    uint64_t max_steps;        /* attempted steps after which the model is done; 0: it has no end */
    uint64_t checkpoint_every; /* attempted steps; default 100; or AMPCLIENT_CHECKPOINT_ON_DEMAND */
    uint32_t keep_last;        /* number of newest checkpoints that are kept; default 3 */
    uint64_t loss_timeout_ms;  /* how long a step waits for a missing worker; default 600000 */

    enum ampclient_sync sync;       /* default SYNC: a step needs all workers; QUORUM: the first `quorum` workers */
    uint32_t quorum;                /* QUORUM: 1 to world_size; a worker that comes later gets the verdict LATE */
    enum ampclient_on_loss on_loss; /* default WAIT: wait for a missing worker; SHRINK: go on without it */
    uint32_t min_workers;           /* SHRINK: fewest workers that a step may have; default 1 */
    uint64_t keep_every;            /* checkpoints whose step is a multiple of this are kept for good; 0: none */
    /* After a crash training goes on from the last checkpoint (CHECKPOINT, the default) or the last verdict (STEP). */
    enum ampclient_durability durability;

    double alpha;                              /* RMSPROP: default 0.99 */
    bool centered;                             /* RMSPROP: needs momentum 0 */
    double lr_decay;                           /* ADAGRAD: default 0 */
    const struct ampclient_group_spec *groups; /* NULL: one group without values of its own */
    uint32_t groups_count;                     /* at most 16 */
    enum ampclient_clip_scope clip_scope; /* default GLOBAL: clip_max_norm is of all parameters; GROUP: of each group */
    enum ampclient_weighting weighting;   /* default EQUAL; PUSHED: gradients are weighted by ampclient_set_weight */
    /* Default REPORT: a master out of range of `cast` is an Inf; SATURATE: the largest finite. Both are reported. */
    enum ampclient_cast_overflow cast_overflow;
    uint32_t hysteresis;                      /* overflows, for scalers that have a hysteresis; default 2 */
    enum ampclient_floor_policy floor_policy; /* default CLAMP; what follows max_consecutive_overflows at min_scale */
    uint32_t max_consecutive_overflows;       /* overflows in a row that make the model unstable; default 50 */
};
#define AMPCLIENT_SPEC_INIT AMPCLIENT_SIZED(ampclient_spec)

/* Memory that a model handle shares with the servers on its host: a copy of the parameters, or the gradients' slot. */
struct ampclient_shared_memory {
    void *data;
    size_t size_bytes; /* whole pages */
    /* Of a copy: the cast. Of the slot: the widest that fits; ampclient_gradient gives places for this size alone. */
    enum amp_dtype dtype;
    bool writable; /* true: the slot, for this worker's gradients; false: a copy of the parameters, mapped read-only */
};

struct ampclient_join_options {
    size_t size;
    /* A known name gets its rank back, whatever `rank`. NULL: "rank-<rank>", or "rank-0" where the world_size is 1. */
    const char *worker_name;
    int32_t rank; /* -1: RANK of the environment if it is set, else the server gives one (worker_name is needed then) */
    int32_t world_size;  /* -1: WORLD_SIZE of the environment if it is set, else it is not checked */
    bool replace;        /* take the rank of a worker whose lease has ended */
    uint32_t accumulate; /* pushes of each parameter in a step, of which the sum is sent (as fp32 above 1); 0 means 1 */
    /*
     * Optional. ampclient_step_begin calls it, on its thread, before it returns a step that begins where a checkpoint
     * ended (after a rollback, in a job that is resumed), and step 1. `data` is what this rank gave to set_user_state
     * for the step before (`size` 0: nothing), valid until restore_cb returns, which must not call the client.
     */
    void *restore_arg;
    void (*restore_cb)(void *arg, uint64_t step, const void *data, size_t size);
    /*
     * If another process, or another handle of this process, joins under this rank, it has the rank from then on, and
     * this handle stops: step_begin, push, step_end and pull return AMP_EABORTED, and the text names the other process.
     * With take_back this handle joins again instead, and the other one stops, unless it has set take_back as well.
     */
    bool take_back;
    /*
     * Parameters and gradients are moved unit by unit (ampclient_unit_add), for a model that is larger than this
     * process's memory: ampclient_step_begin and ampclient_pull bring no parameters, ampclient_gather does;
     * ampclient_scatter takes the place of ampclient_push. Only with accumulate 1: add up micro-batches first.
     */
    bool units;
    /*
     * Optional. Lets a device pin the memory that is shared with the servers (cudaHostRegister; the copies with
     * cudaHostRegisterReadOnly). The library calls shared_cb right after each mapping is made (`mapped` true), and
     * right before it is unmapped (`mapped` false), after which no device may use it. There are three mappings: two
     * copies of the parameters, and the slot for gradients. They belong to the library; `shared` is valid only during
     * the call. shared_cb runs on the thread of the step_begin, leave or close that maps or unmaps, and must not call
     * the client. It is not called with `units`, nor where leave returns AMP_EINTERNAL or close gives up, which leave
     * the memory mapped. If shared_cb is given and the model waits for all of its workers, ampclient_parameter gives
     * views of these copies after a step_begin, also if the caller has given memory with ampclient_use_memory.
     */
    void *shared_arg;
    void (*shared_cb)(void *arg, const struct ampclient_shared_memory *shared, bool mapped);
};
#define AMPCLIENT_JOIN_OPTIONS_INIT AMPCLIENT_SIZED_RANKLESS(ampclient_join_options)

/*
 * A parameter as pulled. All pointers are views: name and shape are valid as long as the model handle, and `data` until
 * the next ampclient_step_begin, ampclient_pull or ampclient_leave of that handle, and with units until
 * ampclient_release. If memory is shared with the server and a step is decided without this worker (by a quorum, after
 * a loss, or by a rollback), the server may overwrite `data` from then on. ampclient_step_end reports such a step if
 * this worker has begun it. Between two steps nothing reports it: to evaluate then, use ampclient_pull, which copies.
 */
struct ampclient_tensor {
    const char *name;
    uint32_t dimensions; /* length of `shape`; 0: a scalar */
    const uint64_t *shape;
    uint64_t elements; /* product of the shape */
    enum amp_dtype dtype;
    const void *data; /* `elements` values in row-major order */
};

struct ampclient_step {
    size_t size;
    uint64_t epoch;    /* from 1; rises with each restore and rollback of the model */
    uint64_t step;     /* from 1; the data of a step should be a function of this number alone */
    uint64_t version;  /* version of the parameters: how many steps were applied to them */
    float scale;       /* multiply the loss by it, and by no scale of your own (amp_fsdp_set_server_scale) */
    uint64_t scale_id; /* names this value of the scale */
    bool rolled_back;  /* this handle's first step in an epoch, if it has begun it or a later one before */
};
#define AMPCLIENT_STEP_INIT AMPCLIENT_SIZED(ampclient_step)

/* One parameter of one worker that had an Inf, a NaN or a value out of range in a step. */
struct ampclient_overflow {
    const char *parameter; /* its name */
    uint32_t parameter_index;
    int32_t rank;       /* of the worker whose gradient had it; -1: each gradient was finite, their sum was not */
    const char *worker; /* name of that worker; "" with rank -1, or if shard 0 does not know it (any more) */
    uint64_t inf_count, nan_count;
    uint64_t first_index; /* index, within the parameter, of the first element that is not finite */
    float largest_finite; /* largest finite magnitude in the parameter, as pushed */
};

struct ampclient_result {
    size_t size;
    uint64_t epoch, step;           /* with ROLLED_BACK: where the model is, as far as this worker has heard */
    enum ampclient_verdict verdict; /* with LATE and ROLLED_BACK the server may not tell the fields below: they are 0 */
    uint64_t applied;               /* steps applied so far */
    uint64_t version;               /* of the parameters after this step */
    double norm;            /* global 2-norm of the unscaled gradient, before clipping; 0 if the step was skipped */
    float clip;             /* factor by which clipping multiplied the gradient */
    float scale, new_scale; /* loss scale of this step, and of the next one */
    uint64_t scale_id, new_scale_id; /* the ids that name these two scales */
    uint64_t overflow_parameters;    /* number of (parameter, worker) pairs with an overflow */
    uint64_t range_warnings;         /* values whose low-precision copy overflowed in the update before this step */
    uint64_t durable_step;           /* last step that survives a crash of the server */
    /* Their first 64, by parameter and rank: a view, valid until the next step_end or leave of the model handle. */
    const struct ampclient_overflow *overflows;
    uint32_t overflows_count;
};
#define AMPCLIENT_RESULT_INIT AMPCLIENT_SIZED(ampclient_result)

/* The state of a model, as the server reports it. */
struct ampclient_status {
    size_t size;
    uint64_t epoch;
    uint64_t step;      /* the open step, or the next one; when the model is done, the last one */
    uint64_t version;   /* of the parameters */
    uint64_t attempted; /* decided steps: applied + skipped */
    uint64_t applied;
    uint64_t skipped;
    float scale; /* the present loss scale */
    bool done;   /* max_steps are decided */
};
#define AMPCLIENT_STATUS_INIT AMPCLIENT_SIZED(ampclient_status)

/*
 * The whole state of a model after one of its steps: what ampclient_load_full goes on from. `values`, `m` and `v` are
 * arrays of pointers, one for each parameter in the model's order, each to the elements of that parameter in fp32. The
 * fields from `scale` to `skipped` are the record of docs/scalers.md; they, `step` and `version` have the values of the
 * metadata in a file of `ampctl checkpoint export`.
 */
struct ampclient_full {
    size_t size;
    uint64_t step;              /* the last decided step: training goes on with the next one */
    uint64_t version;           /* of the parameters: how many of the steps were applied */
    const float *const *values; /* the fp32 master parameters */
    const float *const *m;      /* the optimizer's first moment; NULL if it keeps none (docs/numerics.md) */
    const float *const *v;      /* the optimizer's second moment; NULL if it keeps none (docs/numerics.md) */
    uint32_t parameters_count;  /* length of values, m and v */
    float scale;                /* the loss scale */
    uint64_t scale_id;
    uint32_t growth_tracker;
    uint32_t hysteresis_left;
    uint32_t consecutive_overflows;
    uint64_t total_overflows;
    uint64_t steps_since_overflow;
    uint64_t attempted;                /* equal to `step` */
    uint64_t applied;                  /* equal to `version` */
    uint64_t skipped;                  /* attempted - applied */
    const uint8_t *const *user_states; /* by rank: its last ampclient_set_user_state; NULL: no rank has one */
    const uint32_t *user_states_sizes; /* by rank: bytes, at most 65536; 0: that rank has none */
    uint32_t user_states_count;        /* ranks in these two arrays; ranks that the model does not have are left out */
    double learning_rate;              /* the base rate that an operator had set; 0: none was set */
};
#define AMPCLIENT_FULL_INIT AMPCLIENT_SIZED(ampclient_full)

/* ---- life ---- */

/*
 * Connects to a server and waits for its answer. endpoints: "host:port", "tls://host:port" or "unix:/path"; several
 * with commas are tried in turn; all are TLS or none. options: NULL means the defaults; copied. error: may be NULL.
 * Ownership: on success *client is the caller's (ampclient_close). On failure it is NULL, and *error has the text.
 * Returns: 0; AMP_EINVAL (an argument is NULL, an address or option is wrong, or the token would cross a network
 * unencrypted), AMP_ENOTFOUND or AMP_EDENIED (a file of the options), AMP_EIO (such a file cannot be read, or no thread
 * or event loop can be made), AMP_EUNAVAILABLE (no answer in connect_timeout_ms; at once if the only address speaks
 * HTTP/1, or agrees on no TLS), AMP_ECANCELLED (interrupt_cb), AMP_ENOMEM. Thread: any.
 */
AMPCLIENT_API int ampclient_connect(const char *endpoints, const struct ampclient_options *options,
                                    struct ampclient **client, struct amp_error *error);

/*
 * Ends the loop thread, and frees the client and its models. NULL is allowed. The leases of its models are left to run
 * out (ampclient_leave gives a rank back at once).
 * Ownership: all that was borrowed is the caller's again, unless the loop thread does not end within 10 s: then nothing
 * is freed, and it may still use gradients and the memory of ampclient_use_memory. Thread: the client's.
 */
AMPCLIENT_API void ampclient_close(struct ampclient *client);

/*
 * The error of the last call of this client or of its models, as a sentence; "" if it succeeded, and for NULL. A view,
 * valid until the next call of them. Thread: the client's.
 */
AMPCLIENT_API const char *ampclient_error_text(const struct ampclient *client);

/*
 * The reason of the error of the last call: a word of docs/protocol.md, such as "NO_FREE_RANK", or SHARD_AWAY; "" if
 * there is none, and for NULL. A view, valid until the next call of this client or of its models. Thread: the client's.
 */
AMPCLIENT_API const char *ampclient_error_reason(const struct ampclient *client);

/* The version of the library, such as "1.2.3": a constant, never NULL. Thread: any. */
AMPCLIENT_API const char *ampclient_version(void);

/* ---- models ---- */

/*
 * Creates a model, or finds the one that has the same name and an equal specification. spec: from AMPCLIENT_SPEC_INIT;
 * fields that are 0 mean their defaults. existed: set to whether the model was there already; may be NULL.
 * Returns: 0; AMP_EINVAL (spec is NULL, or a field is wrong: the text names it), AMP_EEXIST (a model of this name has
 * another specification), AMP_ESTATE (the server has files of a model of this name that it does not know: reason
 * CHECKPOINTS_EXIST, or JOURNAL_EXISTS for those of a journal), AMP_EEXHAUSTED (a shard has no memory for the model:
 * reason NO_MEMORY), or a common code. Thread: the client's.
 */
AMPCLIENT_API int ampclient_create(struct ampclient *client, const struct ampclient_spec *spec, bool *existed);

/*
 * Gives a model its first values. The first complete load wins; if there was one already, *already (may be NULL) is
 * true and nothing changes. Each try begins again with the first element. values: one array for each of the
 * values_count parameters, in the model's order, with all its elements in fp32.
 * Ownership: the arrays are borrowed during the call; after AMP_EINTERNAL they may still be read.
 * Returns: 0, also if *already is true; AMP_EINVAL (the name or an array is NULL, or values_count is not the model's),
 * AMP_ENOTFOUND (no such model), or a common code. Thread: the client's.
 */
AMPCLIENT_API int ampclient_load(struct ampclient *client, const char *model_name, const float *const *values,
                                 uint32_t values_count, bool *already);

/*
 * Gives a model that has no values yet the whole state of another one, so that training goes on after full->step as if
 * the model had never moved, bit by bit if the specification is the same; the number of shards and of ranks may differ.
 * If the model has values already, or another load is complete first, *already (may be NULL) is true and nothing
 * changes.
 * Ownership: the arrays are borrowed during the call; after AMP_EINTERNAL they may still be read. After a failure the
 * model has no values, and may be loaded again.
 * Returns: 0, also if *already is true; AMP_EINVAL (the name, full or an array is NULL, the number of parameters is
 * wrong, moments are missing or not kept by the optimizer, a user state is too long, or the numbers are no record of
 * this model), AMP_ENOTFOUND (no such model), or a common code. Thread: the client's.
 */
AMPCLIENT_API int ampclient_load_full(struct ampclient *client, const char *model_name,
                                      const struct ampclient_full *full, bool *already);

/*
 * Asks the server for the state of a model. status: from AMPCLIENT_STATUS_INIT; filled on success.
 * Returns: 0; AMP_EINVAL (the name or status is NULL, or status->size is wrong), AMP_ENOTFOUND (no such model), or a
 * common code. Thread: the client's.
 */
AMPCLIENT_API int ampclient_status(struct ampclient *client, const char *model_name, struct ampclient_status *status);

/*
 * Joins a model as a worker: waits for the rank and its lease, for reconnect_timeout_ms at most. From then on the
 * library renews the lease, and joins again if it is lost. options: NULL means AMPCLIENT_JOIN_OPTIONS_INIT; copied.
 * Ownership: on success *model is the client's, freed by ampclient_leave or ampclient_close. On failure it is NULL.
 * Returns: 0; AMP_EINVAL (an argument is NULL; an option, RANK or WORLD_SIZE is missing, wrong or not the model's),
 * AMP_ENOTFOUND (no such model), AMP_ESTATE (no free rank, or quarantine), or a common code. Thread: the client's.
 */
AMPCLIENT_API int ampclient_join(struct ampclient *client, const char *model_name,
                                 const struct ampclient_join_options *options, struct ampclient_model **model);

/*
 * Gives the rank back and frees the model handle, also after a failure. Waits for call_timeout_ms at most; if the
 * server does not answer, the lease runs out by itself.
 * Ownership: all views of the handle end, and gradients and the memory of ampclient_use_memory are the caller's again,
 * except after AMP_EINTERNAL: then the loop thread may still use them.
 * Returns: 0, also where an earlier call has said that another process has the rank; AMP_EABORTED (the server has given
 * the rank away, and no call has said so yet), or a common code. Thread: the client's.
 */
AMPCLIENT_API int ampclient_leave(struct ampclient_model *model);

/* The rank of this worker, from 0; it never changes. 0 for a NULL model. Thread: the client's. */
AMPCLIENT_API uint32_t ampclient_rank(const struct ampclient_model *model);

/* The number of ranks of the model: 1 to 256. 0 for a NULL model. Thread: the client's. */
AMPCLIENT_API uint32_t ampclient_world_size(const struct ampclient_model *model);

/* The number of parameters of the model: 1 to 8192. 0 for a NULL model. Thread: the client's. */
AMPCLIENT_API uint32_t ampclient_parameters_count(const struct ampclient_model *model);

/* The index of the parameter of this name, or -1 (also for a NULL model or name). Thread: the client's. */
AMPCLIENT_API int64_t ampclient_parameter_index(const struct ampclient_model *model, const char *name);

/*
 * Gives a view of parameter `index` (from 0) as it was last pulled. Ownership: the pointers in *tensor are views, valid
 * as struct ampclient_tensor says, and only for reading.
 * Returns: 0; AMP_EINVAL (tensor is NULL), AMP_ERANGE (no such index), AMP_ESTATE (nothing has been pulled yet, a pull
 * has broken off and left parts of two versions, or the parameter's unit is not gathered). Thread: the client's.
 */
AMPCLIENT_API int ampclient_parameter(const struct ampclient_model *model, uint32_t index,
                                      struct ampclient_tensor *tensor);

/*
 * Gives the library memory for the parameters, so that a view of one may be used for as long as the caller keeps the
 * memory (with shared_cb, only of parameters that came over the socket). Once, between the join and the first
 * step_begin or pull. memory: aligned to 64 bytes. size: at least ampclient_memory_size.
 * Ownership: borrowed until leave or close returns, and written only during step_begin and pull. If any call returns
 * AMP_EINTERNAL, the loop thread may still write, and the memory must stay. On failure nothing is borrowed.
 * Returns: 0; AMP_EINVAL (memory is NULL, not aligned or too small), AMP_ESTATE (too late, given before, or the handle
 * has units). Thread: the client's.
 */
AMPCLIENT_API int ampclient_use_memory(struct ampclient_model *model, void *memory, size_t size);

/* Bytes of all parameters with the pads between them; 0 for NULL and with units. Thread: the client's. */
AMPCLIENT_API size_t ampclient_memory_size(const struct ampclient_model *model);

/*
 * Pulls the parameters after the last decided step, for evaluation; also when the model is done. Waits for
 * step_timeout_ms at most. With units it only fixes which version ampclient_gather brings from then on. version: may be
 * NULL.
 * Ownership: views of parameters that were given before end.
 * Returns: 0; AMP_ESTATE (a step is begun, or there are no values yet), AMP_EABORTED (another process has the rank),
 * AMP_ENOTFOUND (the model is deleted), or a common code. After a failure it may be called again. Thread: the client's.
 */
AMPCLIENT_API int ampclient_pull(struct ampclient_model *model, uint64_t *version);

/* ---- steps ---- */

/*
 * Waits for the next step and pulls its parameters, for step_timeout_ms at most; of that, attaching memory of servers
 * on this host takes half at most. A step that was begun and not ended, or whose step_end has failed, is begun again,
 * without what was pushed. step: filled if 0 is returned.
 * Ownership: views of parameters and places of gradients end, and borrowed gradients are the caller's again, except
 * after AMP_EINVAL and AMP_EINTERNAL.
 * Returns: 0; 1 (the model is done; another call asks again, as after a rollback); AMP_EINVAL (step is NULL, or
 * step->size is wrong), AMP_EUNSTABLE (the loss scale is at its floor and the floor policy is FAIL: the text names the
 * parameters), AMP_ESTATE (the floor policy is FREEZE and an operator is needed, or this worker is in quarantine: the
 * text says for how long), AMP_EABORTED (another process has taken the rank: take_back of the join options),
 * AMP_ENOTFOUND (the model was deleted), or a common code. It may be called again after each. Thread: the client's.
 */
AMPCLIENT_API int ampclient_step_begin(struct ampclient_model *model, struct ampclient_step *step);

/*
 * Hands in the scaled gradient of one parameter for the step in hand; sending begins at once, in the background. Once a
 * step for each parameter, or `accumulate` times (join options). After a rollback it does nothing and returns 0.
 * gradient: all elements, row-major. dtype: AMP_F16, AMP_BF16 or AMP_F32; with accumulate 1 the same in the whole step.
 * Ownership: borrowed until ampclient_step_end returns. If that returns AMP_EDEADLINE or AMP_ECANCELLED, until a later
 * step_end returns another code, or step_begin or leave returns. With accumulate above 1 it is borrowed during this
 * call alone. On failure nothing is borrowed.
 * Returns: 0; AMP_EINVAL (gradient is NULL, or dtype is wrong or another than before), AMP_ERANGE (no such parameter),
 * AMP_ESTATE (no step is begun, the parameter was pushed before, step_end was called, or the handle has units),
 * AMP_EABORTED (another process has taken the rank). Thread: the client's.
 */
AMPCLIENT_API int ampclient_push(struct ampclient_model *model, uint32_t parameter, const void *gradient,
                                 enum amp_dtype dtype);

/*
 * Gives a place to write the gradient of a parameter into, to be handed in by ampclient_push with the same dtype. If
 * memory is shared with the servers and the slot has elements of this size, the place lies in the slot, and the
 * gradient is written once. Between step_begin and step_end. dtype: AMP_F16, AMP_BF16 or AMP_F32.
 * Ownership: *place has room for all elements, with undefined contents. It belongs to the library and is valid until
 * step_end; it is the same in each step as long as step_begin maps no other shared memory.
 * Returns: 0; AMP_EINVAL (place is NULL, or dtype is wrong), AMP_ERANGE (no such parameter), AMP_ESTATE (no step is
 * begun, or the handle has units), AMP_ENOMEM. Thread: the client's.
 */
AMPCLIENT_API int ampclient_gradient(struct ampclient_model *model, uint32_t parameter, enum amp_dtype dtype,
                                     void **place);

/*
 * Whether parameters and gradients of this handle are in memory shared with the servers now; false for NULL. step_begin
 * shares memory if the servers are on this host and allow it; it may end at any time. Thread: the client's.
 */
AMPCLIENT_API bool ampclient_shares_memory(const struct ampclient_model *model);

/*
 * Sets the weight of this worker's gradients, for example its number of samples, from the next step to which nothing
 * was pushed yet (maybe the step in hand) until it is set again; 1 before. weight: 0, or 2^-60 to 2^24. Another value
 * than 1 needs a model with AMPCLIENT_PUSHED, else ampclient_step_end fails.
 * Returns: 0; AMP_EINVAL (out of range), AMP_ESTATE (the step in hand has been pushed to). Thread: the client's.
 */
AMPCLIENT_API int ampclient_set_weight(struct ampclient_model *model, float weight);

/*
 * Sets the learning rate for a model with the schedule AMPCLIENT_WORKER, which needs it before its first push, from the
 * next step to which nothing was pushed yet (maybe the step in hand) until it is set again. Groups multiply it by their
 * factors. All workers must give the same rate for a step, bit for bit: step_end fails with AMP_EINVAL if another
 * worker's complete push has another one, or if none was given. lr: 0 or more, finite as a float, too.
 * Returns: 0; AMP_EINVAL (lr is out of range, or the model has another schedule, and all is as before), AMP_ESTATE (the
 * step in hand has been pushed to). Thread: the client's.
 */
AMPCLIENT_API int ampclient_set_learning_rate(struct ampclient_model *model, double lr);

/*
 * Reports the loss of this worker's samples in the step in hand, for people; no verdict depends on it. The row of the
 * step in the history (`ampctl history`, `ampctl watch`), applied or skipped, has the mean over the workers that
 * reported a loss, weighted as their gradients are. The last call of a step counts. loss: the mean over the samples,
 * not scaled; any number, also Inf and NaN.
 * Returns: 0, also after a rollback, when it does nothing; AMP_ESTATE (no step is begun, or ampclient_step_end was
 * called). Thread: the client's.
 */
AMPCLIENT_API int ampclient_loss(struct ampclient_model *model, float loss);

/*
 * Reports another number of the step in hand, such as an accuracy, under a name, in the same way as ampclient_loss: the
 * row in the history has the mean over the workers that reported the name. Of the names that different workers report,
 * it has the first 8. If a name comes again in a step, the newer value counts. name: 1 to 32 bytes of UTF-8 without
 * control characters, "=" and ";", copied; at most 8 in a step. value: any number.
 * Returns: 0, also after a rollback, when it does nothing; AMP_EINVAL (the name is wrong, or it is the ninth),
 * AMP_ESTATE (no step is begun, or step_end was called). Thread: the client's.
 */
AMPCLIENT_API int ampclient_metric(struct ampclient_model *model, const char *name, float value);

/*
 * Ends the step in hand and waits for its verdict, for step_timeout_ms at most. Parameters that were not pushed are
 * absent. After a rollback it returns 0 with the verdict ROLLED_BACK, and the next step_begin gives the earlier step.
 * Ownership: the gradients of the step are the caller's again, except after AMP_EDEADLINE, AMP_ECANCELLED and
 * AMP_EINTERNAL. result->overflows is a view, valid until the next step_end or leave.
 * Returns: 0; AMP_EINVAL (result is NULL or result->size is wrong, and the step is as before; or the server refuses the
 * weight or the learning rate), AMP_ESTATE (no step is begun), AMP_EABORTED (another process has taken the rank),
 * AMP_EDEADLINE (step_timeout_ms) or AMP_ECANCELLED (interrupt_cb): the step goes on, and step_end may be called again;
 * or another common code, after which step_begin begins the step again. Thread: the client's.
 */
AMPCLIENT_API int ampclient_step_end(struct ampclient_model *model, struct ampclient_result *result);

/* ---- all other methods of the server ---- */

/*
 * Calls a unary method that has no function here (proto/ampd/v1: history, checkpoints, the scale) at shard 0, or at the
 * server connected to as long as this client has created, loaded and joined no model. It is tried again as all calls
 * are, but for Drain: give what has a request_id one (SetScale, Rollback and others), so that it is done once. method:
 * its path, such as "/ampd.v1.ScaleService/GetScale". request: `size` bytes of a message in protobuf's encoding.
 * Ownership: *response is a view of the answer's bytes, valid until the next ampclient_call or ampclient_close. On
 * failure it is NULL, and *response_size 0.
 * Returns: 0; AMP_EINVAL (an argument is NULL, a method without "/", or more than 1 MiB), AMP_EUNIMPLEMENTED (no such
 * method), what the method answers, or a common code. Thread: the client's.
 */
AMPCLIENT_API int ampclient_call(struct ampclient *client, const char *method, const void *request, size_t size,
                                 const void **response, size_t *response_size);

/*
 * Calls a method that answers with a stream, such as WatchSteps, where ampclient_call does, and returns when the stream
 * has ended. No time limit; tried once. method, request: as for ampclient_call. message_cb: called on the loop thread
 * with each message; it must not call the client; a result other than 0 ends the stream.
 * Ownership: `data` is valid until message_cb returns.
 * Returns: 0; AMP_EINVAL (an argument is NULL, a method without "/", or more than 1 MiB), AMP_ECANCELLED (message_cb or
 * interrupt_cb), AMP_EUNIMPLEMENTED (no such method), what the method answers, or a common code. Thread: the client's.
 */
AMPCLIENT_API int ampclient_call_stream(struct ampclient *client, const char *method, const void *request, size_t size,
                                        int (*message_cb)(void *arg, const uint8_t *data, size_t size), void *arg);

/* ---- units: a model that is larger than the worker's memory ---- */

/*
 * A unit is a set of parameters that is gathered from the servers when a layer needs it and released afterwards, and
 * whose gradients are scattered as soon as backward has computed them. The model is sharded over the servers. The
 * worker holds the units in use and, of each block that has elements of several parameters, a copy (at most 256 KiB)
 * from the first scatter into it until it has been sent. The number of shards may be any:
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
 * **A step can become void.** Scattered gradients are not kept. The step is void if a server has lost them (it was
 * restarted, or the connection broke while bytes were on their way), if the model was rolled back, or if the step was
 * decided without this worker. Then gather, prefetch, scatter and drain return 1 and do nothing. Call
 * ampclient_step_end, which gives the verdict ROLLED_BACK or LATE, and then ampclient_step_begin, which gives the step
 * that the model is at: the same one, to be computed again, if it is still open, or the one after it. No gradient
 * counts twice. A push may contain blocks of both computations, so a step's gradients must depend on its number and its
 * parameters alone.
 *
 * Unit codes, which the functions of this section may also return: AMP_ESTATE (the handle was joined without `units`),
 * AMP_EABORTED (another process has taken the rank) and AMP_EINTERNAL (the loop thread does not answer any more).
 */

/*
 * Makes a new unit of parameters, at any time after the join. A parameter is in at most one unit, so layers that share
 * a parameter belong to the same unit. A parameter that is in no unit cannot be gathered, and is absent from every
 * step. parameters: their indices, copied. parameters_count: at least 1. unit: set to the unit's number, from 0.
 * Ownership: the unit lives as long as the handle. On failure nothing changes.
 * Returns: 0; AMP_EINVAL (parameters or unit is NULL, there is no parameter, or one is given twice or is in another
 * unit), AMP_ERANGE (no such parameter), AMP_ENOMEM, or a unit code. Thread: the client's.
 */
AMPCLIENT_API int ampclient_unit_add(struct ampclient_model *model, const uint32_t *parameters,
                                     uint32_t parameters_count, uint32_t *unit);

/*
 * Waits until the parameters of a unit are in memory, for step_timeout_ms at most: in the version of the step in hand,
 * or, outside of a step, of the last ampclient_pull. Returns at once if they are there already.
 * Ownership: the memory belongs to the library, until ampclient_release of the unit, or a step_begin, pull or leave.
 * Returns: 0; 1 (the step is void; or, outside of a step, the servers no longer have the pulled version: call
 * ampclient_pull again); AMP_ERANGE (no such unit), AMP_ESTATE (no step is begun and nothing is pulled), AMP_EDEADLINE
 * (it may be called again), or a unit or common code. Thread: the client's.
 */
AMPCLIENT_API int ampclient_gather(struct ampclient_model *model, uint32_t unit);

/*
 * Begins what ampclient_gather waits for, and returns at once. Units come one at a time, in the order asked for. Does
 * nothing if the unit is there or on its way.
 * Ownership: the memory belongs to the library, until ampclient_release of the unit, or a step_begin, pull or leave.
 * Returns: 0; 1 (the step is void); AMP_ERANGE (no such unit), AMP_ESTATE (no step is begun and nothing is pulled),
 * AMP_ENOMEM, or a unit code. Thread: the client's.
 */
AMPCLIENT_API int ampclient_prefetch(struct ampclient_model *model, uint32_t unit);

/*
 * Frees the parameters of a unit; if they are still on their way, the rest does not come. The unit may be gathered
 * again. ampclient_step_begin, ampclient_pull and ampclient_leave release all units.
 * Ownership: views of the unit's parameters end.
 * Returns: 0; AMP_ERANGE (no such unit), AMP_ESTATE (the unit was not gathered, or has been released), or a unit code.
 * Thread: the client's.
 */
AMPCLIENT_API int ampclient_release(struct ampclient_model *model, uint32_t unit);

/*
 * Hands in the scaled gradients of a unit for the step in hand: first waits until what was scattered before has been
 * sent (ampclient_drain, step_timeout_ms), then sends in the background. Once a step for each unit, gathered or not.
 * gradients: one for each parameter, in the order of ampclient_unit_add; NULL for a parameter that has none, which is
 * absent then. dtype: AMP_F16, AMP_BF16 or AMP_F32, the same in the whole step.
 * Ownership: the gradients of one unit at a time are borrowed: until the next scatter, drain or step_end returns
 * another code than AMP_EDEADLINE, AMP_ECANCELLED or AMP_EINTERNAL. Unless 0 is returned, nothing is sent or borrowed.
 * Returns: 0; 1 (the step is void); AMP_EINVAL (gradients is NULL, or dtype is wrong or another than before),
 * AMP_ERANGE (no such unit), AMP_ESTATE (no step is begun, or the unit was scattered before), AMP_EDEADLINE (it may be
 * called again), or a unit or common code. Thread: the client's.
 */
AMPCLIENT_API int ampclient_scatter(struct ampclient_model *model, uint32_t unit, const void *const *gradients,
                                    enum amp_dtype dtype);

/*
 * Waits until no scattered gradient is borrowed any more, because all have been sent, for step_timeout_ms at most.
 * Ownership: all gradients are the caller's again, except after AMP_EDEADLINE, AMP_ECANCELLED and AMP_EINTERNAL.
 * Returns: 0; 1 (the step is void); AMP_ESTATE (no step is begun), AMP_EDEADLINE or AMP_ECANCELLED (it may be called
 * again), or a unit or common code. Thread: the client's.
 */
AMPCLIENT_API int ampclient_drain(struct ampclient_model *model);

/* Bytes that the handle has allocated for units and copies of blocks; 0 for NULL. Thread: the client's. */
AMPCLIENT_API uint64_t ampclient_units_bytes(const struct ampclient_model *model);

/* ---- user state ---- */

/*
 * Sets bytes (at most 65536) of this rank that are stored with the verdict of the next step_end, and so in checkpoints;
 * they stay until it is called again. With units, before the first scatter of a step.
 * Ownership: data is copied. On failure the earlier bytes stay.
 * Returns: 0; AMP_EINVAL (data is NULL with a size above 0, or size is too large), AMP_ESTATE (the step in hand has
 * been scattered to), AMP_ENOMEM. Thread: the client's.
 */
AMPCLIENT_API int ampclient_set_user_state(struct ampclient_model *model, const void *data, size_t size);

/*
 * Gives the bytes that this rank had set in the step that the epoch began from; *size is 0 if there are none. They
 * belong to the step in hand only if a checkpoint ended right before it: see restore_cb of the join options.
 * Ownership: a view, valid until the next call. Returns: 0; AMP_EINVAL (data or size is NULL). Thread: the client's.
 */
AMPCLIENT_API int ampclient_user_state(const struct ampclient_model *model, const void **data, size_t *size);

#ifdef __cplusplus
}
#endif

#endif
