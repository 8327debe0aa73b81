/* Inside of the worker's machine: what its files share. Private to client/core. */
#ifndef AMPCLIENT_CORE_MACHINE_H
#define AMPCLIENT_CORE_MACHINE_H

#include "base/list.h"
#include "client/core/client_core.h"
#include "client/core/client_log.h"
#include "client/core/client_pull.h"
#include "client/core/client_push.h"
#include "client/core/flat_layout.h"

/* Bytes of what the model waits for, as the answer of KeepAlive has it (parameter_service.options). */
#define AMPCLIENT_WAITING_MAX 256

/* Cancelled streams that have not ended: at most a pull, a push and a piece of a unit of each shard, and some again. */
#define AMPCLIENT_DYING_MAX (4 * AMPCLIENT_SHARDS_MAX)

struct ampclient_core {
    struct ampclient_core_config config;
    char model[AMPCLIENT_NAME_MAX], worker[AMPCLIENT_NAME_MAX];
    enum ampclient_state state;
    uint64_t now_ms;
    uint64_t last_call;
    struct amp_list outputs;
    struct ampclient_out_node *handed;
    /* membership */
    bool has_model, need_join;
    bool fenced;            /* with need_join: shard 0 says first whether the rank is another process's now */
    struct amp_error taken; /* code not 0: it is, and the handle has stopped */
    uint64_t join_call, keep_alive_call, leave_call;
    uint32_t rank, world_size;
    struct ampclient_incarnation incarnation;
    uint64_t epoch, step; /* the step to begin next, or the one in hand */
    uint64_t lease_ms, keep_alive_ms;
    struct ampclient_core_layout flat;
    enum amp_dtype cast;
    uint8_t *base_state;
    size_t base_state_size;
    /* parameters */
    uint8_t *parameters;   /* flat, in the cast's dtype; NULL before the first pull, and with units */
    bool parameters_given; /* it is the user's memory */
    const uint8_t *values; /* of the version that is held: parameters, or where an in_memory pull has them */
    bool in_memory;        /* the host has the server's copies mapped */
    bool may_pull_ahead;   /* (in_memory) the model does not go on without this worker */
    bool has_values;
    uint64_t held_epoch, held_version; /* 0, 0: what is in memory is no version */
    struct ampclient_pull pull;
    struct ampclient_units units;
    uint64_t begun_epoch, begun_step; /* last begun */
    uint64_t restored_step;           /* of the last Join */
    /* the step in hand */
    uint64_t step_epoch, scale_id;
    float weight;
    bool has_lr; /* the user has given a learning rate */
    double lr;
    struct ampclient_push push;
    uint8_t *user_state;
    uint32_t user_state_size;
    uint64_t user_state_serial;
    /* waiting */
    enum ampclient_event_type request; /* 0: none */
    uint64_t request_begun_ms, request_deadline_ms;
    bool done_ready; /* the answer to the request, held until no stream touches memory */
    struct ampclient_user_done done;
    uint32_t streams_dying; /* cancelled, not ended: nothing is begun before they have */
    uint64_t dying[AMPCLIENT_DYING_MAX];
    enum ampclient_state fetch_from; /* FETCHING: where it goes back to */
    uint32_t failures;
    uint64_t first_failure_ms, last_failure_ms;
    uint64_t retry_ms; /* 0: nothing to wait for */
    struct amp_error last_error;
    uint64_t timer_ms;
    /* the log */
    uint64_t said_ms[LINES_COUNT];           /* the last line of a kind; 0: none */
    bool said_trouble;                       /* that calls fail; that they do not any more is to be said, too */
    char waiting_for[AMPCLIENT_WAITING_MAX]; /* as the last KEEP_ALIVE had it; "": nothing */
};

/* Whether RPCs of a member may begin: it is one, there is nothing to wait for, and no stream is still being cut. */
bool ampclient_core_may_call(const struct ampclient_core *core);
/* Asserts that the state may follow. */
void ampclient_core_set_state(struct ampclient_core *core, enum ampclient_state state);

#endif
