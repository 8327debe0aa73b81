/*
 * Calls that have not been answered: the table of them, and their answers (calls.c). All functions run on the thread
 * that steps the core. Private to server/core.
 */
#ifndef AMPD_CORE_CALLS_H
#define AMPD_CORE_CALLS_H

#include "base/list.h"
#include "server/core/events.h"
#include "server/core/model/states.h"
#include "server/core/outputs.h"

#include <stdbool.h>
#include <stdint.h>

struct amp_error;
struct ampd_core;
struct ampd_model;
struct ampd_verdict_message;

/* UNARY: Join, Leave and operator actions. The other kinds have a list of their own in the model. */
enum ampd_call_kind {
    AMPD_CALL_UNARY,
    AMPD_CALL_PUSH,
    AMPD_CALL_PULL,
    AMPD_CALL_LOAD,
    AMPD_CALL_CHECKPOINT,
    AMPD_CALL_CREATE,
    AMPD_CALL_ROLLBACK,
    AMPD_CALL_DELETE
};

/* A call that has not been answered. Fields that name a kind are set for calls of that kind alone. */
struct ampd_call {
    struct amp_list link; /* in the core's table */
    struct amp_list node; /* in the model's list of its kind */
    uint64_t id;          /* the number that the I/O layer gave it */
    enum ampd_call_kind kind;
    enum ampd_call_state state;
    struct ampd_model *model;
    uint64_t begun_ms;                 /* since when it waits: for its grant, or (ENDED) for its answer */
    struct ampd_reply *later;          /* REVOKING: the answer that follows when the memory is let go of; owned */
    struct ampd_verdict_message *late; /* REVOKING, of a push that came late: the verdict of its step; owned */
    struct ampd_event_push push;       /* push: its header; user_state is NULL here */
    uint8_t *user_state;               /* push: that of its header; owned */
    struct ampd_event_pull pull;       /* pull: its request */
    unsigned copy;                     /* pull, STREAMING: index of the cast copy that it reads */
    uint64_t version;                  /* pull, STREAMING: the version that it reads */
    bool unchanged;                    /* pull, STREAMING: the client has that version, so no block is sent */
    bool already_loaded;               /* create: the model was there before the call */
    uint64_t loader;                   /* load: its number */
    bool is_full;                      /* load: it brings moments and user states, too */
    struct ampd_load_base base;        /* load: what its values go on from */
    uint64_t step;                     /* checkpoint: answered by a checkpoint of this step or a later one */
};

/* The call with this number, or NULL if it was answered or closed. */
struct ampd_call *ampd_call_find(struct ampd_core *core, uint64_t id);

/*
 * Enters a call, HELD, in the table and in the model's list of its kind; the model is held with it. NULL if
 * AMPD_CALLS_MAX are there or memory is out: the caller answers the call then.
 */
struct ampd_call *ampd_call_begin(struct ampd_core *core, uint64_t id, enum ampd_call_kind kind,
                                  struct ampd_model *model);

/* Takes a call out of the table and frees it, without an answer. */
void ampd_call_forget(struct ampd_core *core, struct ampd_call *call);

/*
 * Answers a call: forgets it, if it is in the table, and makes the output REPLY. Returns the reply, to be filled in
 * before another output is made; left as it is, it says OK.
 */
struct ampd_reply *ampd_call_reply(struct ampd_core *core, uint64_t id, enum ampd_reply_kind kind);

/*
 * Answers a call with an error, which may be in the table or not. With a model the reply says at which epoch and step
 * that is (NULL: none); AMP_EUNAVAILABLE asks the client to come again in AMPD_RETRY_MS.
 */
void ampd_call_fail(struct ampd_core *core, uint64_t id, const struct ampd_model *model, int code, const char *reason,
                    const char *format, ...) __attribute__((format(printf, 6, 7)));
void ampd_call_fail_with(struct ampd_core *core, uint64_t id, const struct ampd_model *model,
                         const struct amp_error *error);

/*
 * Answers a call of the table with an error: at once, or, while it is STREAMING, after the I/O layer has let go of the
 * memory that it was granted. One that is REVOKING keeps the answer that it has.
 */
void ampd_call_end(struct ampd_call *call, int code, const char *reason, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Changes the state of a call; asserts that the table allows it. */
void ampd_call_set(struct ampd_call *call, enum ampd_call_state state);

/* Ends the model's pushes, pulls, loads, creations and rollbacks with UNAVAILABLE and this sentence. */
void ampd_calls_refuse(struct ampd_model *model, const char *text);

/* Forgets all calls, without answers. */
void ampd_calls_close(struct ampd_core *core);

#endif
