/* Inside the worker's machine. Private to client/core. */
#ifndef AMPCLIENT_CORE_INTERNAL_H
#define AMPCLIENT_CORE_INTERNAL_H

#include "base/list.h"
#include "client/core/core.h"

/* The flat space, as the server lays it out: parameters one behind the other, each at a multiple of 64. */
struct ampclient_core_layout {
    uint32_t parameters;
    uint64_t *starts, *sizes; /* [parameters] */
    uint64_t elements, blocks, block_elements;
    uint32_t *block_parameter; /* [blocks] the first parameter with an element in the block */
};

int ampclient_core_layout_init(struct ampclient_core_layout *flat, const struct ampclient_join_answer *answer);
void ampclient_core_layout_close(struct ampclient_core_layout *flat);
bool ampclient_core_layout_same(const struct ampclient_core_layout *flat, const struct ampclient_join_answer *answer);
/* Blocks of shard k of K. */
void ampclient_core_layout_shard(const struct ampclient_core_layout *flat, uint32_t shard, uint32_t shards,
                                 uint64_t *first, uint64_t *end);
uint32_t ampclient_core_layout_block_elements(const struct ampclient_core_layout *flat, uint64_t block);
/* Whether a part of the parameter lies in the block; parameters are visited from block_parameter[block] on. */
bool ampclient_core_layout_in_block(const struct ampclient_core_layout *flat, uint32_t parameter, uint64_t block);

enum ampclient_call_kind { CALL_NONE, CALL_JOIN, CALL_KEEP_ALIVE, CALL_LEAVE, CALL_PULL, CALL_PUSH, CALL_STATE };

/* A pull under way: the same version from every shard. */
struct ampclient_pull {
    enum ampclient_pull_by by;
    uint64_t calls[AMPCLIENT_SHARDS_MAX]; /* 0: not out */
    bool done[AMPCLIENT_SHARDS_MAX];
    bool has_header;
    struct ampclient_pull_header header; /* of the first shard that answered */
    bool unchanged;                      /* the version is the one that is held */
    uint64_t blocks_here;
    uint32_t resends; /* for blocks that came damaged */
    uint8_t *have;    /* [blocks] */
};

/* A push under way. */
struct ampclient_push {
    uint64_t calls[AMPCLIENT_SHARDS_MAX];  /* Push streams */
    uint64_t states[AMPCLIENT_SHARDS_MAX]; /* GetPushState calls */
    bool asked[AMPCLIENT_SHARDS_MAX];      /* what the shard has is known, or nothing was sent yet */
    bool ended[AMPCLIENT_SHARDS_MAX];      /* trailer sent on the present stream */
    bool answered[AMPCLIENT_SHARDS_MAX];
    uint32_t resends;
    enum amp_dtype dtype;   /* of the first gradient */
    const void **gradients; /* [parameters] */
    uint32_t *given;        /* [parameters] pushes so far */
    uint32_t *missing;      /* [blocks] parameters that are not complete */
    uint8_t *sent;          /* [blocks] on the present stream, or there already */
    float *sums;            /* accumulate > 1: flat */
    uint32_t *absent;       /* [parameters] the trailer */
    uint32_t absent_count;
    bool closed;                /* step_end has come */
    uint64_t user_state_serial; /* of the header that was sent */
    struct ampclient_core_result result;
    struct amp_error error; /* a failure to be told at step_end */
};

/* Kinds of lines in the log: each has a rate of its own. */
enum ampclient_core_line { LINE_TROUBLE, LINE_LOST, LINE_GOES_ON, LINE_WAITING, LINE_JOINED, LINES_COUNT };

/* Bytes of what the model waits for, as the answer of KeepAlive has it (parameter_service.options). */
#define AMPCLIENT_WAITING_MAX 256

/* Cancelled streams that have not ended: at most a pull and a push of each shard, twice. */
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
    uint8_t *parameters; /* flat, in the cast's dtype */
    bool has_values;
    uint64_t held_epoch, held_version; /* 0, 0: what is in memory is no version */
    struct ampclient_pull pull;
    uint64_t begun_epoch, begun_step; /* last begun */
    uint64_t restored_step;           /* of the last Join */
    /* the step in hand */
    uint64_t step_epoch, scale_id;
    float weight;
    struct ampclient_push push;
    uint8_t *user_state;
    uint32_t user_state_size;
    uint64_t user_state_serial;
    /* waiting */
    enum ampclient_event_type wish; /* 0: none */
    uint64_t wish_begun_ms, wish_deadline_ms;
    bool done_ready; /* the answer to the wish, held until no stream touches memory */
    struct ampclient_user_done done;
    uint32_t streams_dying; /* cancelled, not ended: nothing is begun before they have */
    uint64_t dying[AMPCLIENT_DYING_MAX];
    enum ampclient_state fetch_from; /* FETCHING: where it goes back to */
    uint32_t failures;
    uint64_t first_failure_ms, retry_ms; /* retry_ms 0: nothing to wait for */
    struct amp_error last_error;
    uint64_t timer_ms;
    /* the log */
    uint64_t said_ms[LINES_COUNT];           /* the last line of a kind; 0: none */
    bool said_trouble;                       /* that calls fail; that they do not any more is to be said, too */
    char waiting_for[AMPCLIENT_WAITING_MAX]; /* as the last KEEP_ALIVE had it; "": nothing */
};

/* core.c */
void ampclient_core_set_state(struct ampclient_core *core, enum ampclient_state state);
struct ampclient_output *ampclient_core_out(struct ampclient_core *core, enum ampclient_output_type type,
                                            uint32_t shard, uint64_t deadline_ms, uint64_t *call);
void ampclient_core_cancel(struct ampclient_core *core, uint64_t *call, bool stream);
/* The wish is answered as soon as no stream touches memory. */
void ampclient_core_finish(struct ampclient_core *core, int code, const struct amp_error *error,
                           enum ampclient_state state);
/* Judges a failed call: true if the caller should give up with *core's last_error. */
bool ampclient_core_failed(struct ampclient_core *core, const struct ampclient_ended *ended);
void ampclient_core_succeeded(struct ampclient_core *core);
void ampclient_core_note(struct ampclient_core *core, const struct ampclient_ended *ended);

/* say.c: after the fact that the line is about; `why` is a clause */
void ampclient_core_say_failed(struct ampclient_core *core);  /* a call failed, and is tried again */
void ampclient_core_say_goes_on(struct ampclient_core *core); /* one ended well */
void ampclient_core_say_lost(struct ampclient_core *core, const char *why);
void ampclient_core_say_joined(struct ampclient_core *core, bool again);
void ampclient_core_say_waits(struct ampclient_core *core); /* time has passed */

/* True unless it is NULL or "". */
bool ampclient_core_is_text(const char *text);
/* A Join ended in an error that is not tried again: so does what the user waits for. */
void ampclient_core_join_failed(struct ampclient_core *core);

/* member.c */
/* Joins again; `why` is a clause for the log. With `fenced` shard 0 is asked first, and nothing joins if another process has the rank. */
void ampclient_core_lose(struct ampclient_core *core, bool fenced, const char *why);
void ampclient_core_keep_alive_ended(struct ampclient_core *core, const struct ampclient_ended *ended);

/* pull.c */
void ampclient_core_pull_start(struct ampclient_core *core);
void ampclient_core_pull_header(struct ampclient_core *core, uint64_t call, const struct ampclient_pull_header *header);
void ampclient_core_pull_block(struct ampclient_core *core, uint64_t call, uint64_t block);
bool ampclient_core_pull_ended(struct ampclient_core *core, uint64_t call, const struct ampclient_ended *ended);
void ampclient_core_pull_cancel(struct ampclient_core *core);

/* push.c */
int ampclient_core_push_init(struct ampclient_core *core);
void ampclient_core_push_close(struct ampclient_core *core);
void ampclient_core_push_reset(struct ampclient_core *core);      /* a new step is in hand */
void ampclient_core_push_restart(struct ampclient_core *core);    /* all streams of it begin anew */
void ampclient_core_push_close_step(struct ampclient_core *core); /* step_end: what was not pushed is absent */
void ampclient_core_push_drive(struct ampclient_core *core);
void ampclient_core_push_state(struct ampclient_core *core, uint64_t call, const struct ampclient_event *event);
bool ampclient_core_push_ended(struct ampclient_core *core, uint64_t call, const struct ampclient_ended *ended);
void ampclient_core_push_cancel(struct ampclient_core *core);
bool ampclient_core_push_answered(const struct ampclient_core *core);

#endif
