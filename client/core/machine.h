/* The whole state of the worker's state machine (client_core.h), which its files share. Private to client/core. */
#ifndef AMPCLIENT_CORE_MACHINE_H
#define AMPCLIENT_CORE_MACHINE_H

#include "base/list.h"
#include "client/core/client_core.h"
#include "client/core/client_log.h"
#include "client/core/client_pull.h"
#include "client/core/client_push.h"
#include "client/core/flat_layout.h"

/* Bytes of the sentence on what the model waits for, as in the answer of KeepAlive (parameter_service.options). */
#define AMPCLIENT_WAITING_MAX 256

/*
 * Bound of cancelled streams that have not ended: of each shard a pull, a push and a piece of a unit, and some again.
 */
#define AMPCLIENT_DYING_MAX (4 * AMPCLIENT_SHARDS_MAX)

struct ampclient_core {
    struct ampclient_core_config config;
    char model[AMPCLIENT_NAME_MAX], worker[AMPCLIENT_NAME_MAX]; /* copies of the configuration's names */
    enum ampclient_state state;
    uint64_t now_ms;                   /* time of the last event; all times below are on this clock */
    uint64_t last_call;                /* number of the newest RPC */
    struct amp_list outputs;           /* of struct ampclient_out_node, oldest first; not taken yet */
    struct amp_list spare;             /* of the same: memory for outputs where there is no other */
    uint32_t spare_count;              /* length of `spare` */
    struct ampclient_out_node *handed; /* the output that was taken last; its views are valid until the next one */
    /* membership */
    /* has_model: a Join has succeeded, so that flat, cast, pull and push are set; need_join: a Join is due. */
    bool has_model, need_join;
    bool fenced;            /* with need_join: ask shard 0 first whether another process has the rank now */
    struct amp_error taken; /* code not 0: another process has the rank, and the handle has stopped */
    uint64_t join_call, keep_alive_call, leave_call; /* numbers of the RPCs under way; 0: none */
    uint32_t rank, world_size;
    struct ampclient_incarnation incarnation;
    uint64_t epoch, step;             /* epoch of the model; the step in hand, or the one to begin next */
    uint64_t lease_ms, keep_alive_ms; /* length of the lease; when the next KeepAlive is due */
    struct ampclient_core_layout flat;
    enum amp_dtype cast;    /* dtype of pulled parameters */
    uint8_t *base_state;    /* user state of this rank in the restored step; owned */
    size_t base_state_size; /* 0: none */
    /* parameters */
    uint8_t *parameters;   /* the flat space in the cast's dtype; NULL before the first pull of bytes, and with units */
    bool parameters_given; /* `parameters` is the user's memory, which is not freed here */
    const uint8_t *values; /* the version that is held: `parameters`, or the mapped copy of an in_memory pull */
    bool in_memory;        /* the I/O layer has the server's copies mapped */
    bool may_pull_ahead;   /* (in_memory) no step is decided without this worker */
    bool has_values;       /* a pull has succeeded */
    uint64_t held_epoch, held_version; /* the version that is held; 0, 0: memory has no whole version */
    struct ampclient_pull pull;
    struct ampclient_units units;
    uint64_t begun_epoch, begun_step; /* epoch of the last step that was begun, and the highest step begun in it */
    uint64_t restored_step;           /* last step of the checkpoint that the epoch began from, as the last Join said */
    /* the step in hand */
    uint64_t step_epoch, scale_id;
    float weight; /* of this worker's gradients */
    bool has_lr;  /* the user has given a learning rate */
    double lr;
    struct ampclient_push push;
    uint8_t *user_state; /* what the user set last; NULL: nothing; owned */
    uint32_t user_state_size;
    /* waiting */
    enum ampclient_event_type request; /* the user's request that is not answered yet; 0: none */
    uint64_t request_begun_ms, request_deadline_ms;
    bool done_ready; /* `done` is the answer to the request, held back until no cancelled stream uses memory */
    struct ampclient_user_done done;
    uint32_t streams_dying;              /* streams that are cancelled and have not ended; until then nothing begins */
    uint64_t dying[AMPCLIENT_DYING_MAX]; /* their call numbers */
    enum ampclient_state fetch_from;     /* FETCHING: the state that it returns to */
    uint32_t failures;                   /* failed calls in a row; begin_request says when it begins anew */
    uint64_t first_failure_ms, last_failure_ms; /* times of the first and of the last of them */
    uint64_t retry_ms;                          /* no call begins before this time; 0: there is no pause */
    struct amp_error last_error;                /* of the call that failed last */
    uint64_t timer_ms;                          /* time of the last TIMER output; 0: none is armed */
    /* the log */
    uint64_t said_ms[LINES_COUNT];           /* when the last line of each kind came; 0: never */
    bool said_trouble;                       /* a line said that calls fail, so their recovery gets a line, too */
    char waiting_for[AMPCLIENT_WAITING_MAX]; /* what the model waits for, as the last KEEP_ALIVE said; "": nothing */
};

/*
 * Whether calls of a member may begin now: the handle has joined, no Join is due or under way, no pause (retry_ms)
 * lasts, and no cancelled stream is still ending.
 */
bool ampclient_core_may_call(const struct ampclient_core *core);
bool ampclient_core_has_step(const struct ampclient_core *core); /* COMPUTING or WAITING: a step is in hand */
/* The shard whose call, of calls[shards], has this number; -1: none has. */
int ampclient_core_shard_of(const struct ampclient_core *core, const uint64_t *calls, uint64_t call);
/*
 * The deadline of a call that waits for other workers: the user's request ends before it, and says what was waited for.
 * A Push goes on after that, and when its deadline has passed it is made again.
 */
uint64_t ampclient_core_wait_ms(const struct ampclient_core *core);
/* Changes the state; asserts that the table of client_core.c allows it. */
void ampclient_core_set_state(struct ampclient_core *core, enum ampclient_state state);

#endif
