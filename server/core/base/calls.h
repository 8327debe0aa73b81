/* Calls that have not been answered (calls.c). Private to server/core. */
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

/* A call that has not been answered. */
struct ampd_call {
    struct amp_list link; /* in the table */
    struct amp_list node; /* in the model's list of its kind */
    uint64_t id;
    enum ampd_call_kind kind;
    enum ampd_call_state state;
    struct ampd_model *model;
    uint64_t begun_ms;
    struct ampd_reply *later;          /* REVOKING: the answer; owned */
    struct ampd_verdict_message *late; /* likewise, of a push that came late: of its step; owned */
    struct ampd_event_push push;
    uint8_t *user_state; /* of push; owned */
    struct ampd_event_pull pull;
    unsigned copy;              /* pull, STREAMING: which cast copy it reads, */
    uint64_t version;           /* and which version */
    bool unchanged;             /* pull: no blocks are sent */
    bool already_loaded;        /* create: the model was there before */
    uint64_t loader;            /* load: its number, */
    bool is_full;               /* whether it has moments and user states, */
    struct ampd_load_base base; /* and after which step its values are */
    uint64_t step;              /* checkpoint: answered by one of this step or a later one */
};

struct ampd_call *ampd_call_find(struct ampd_core *core, uint64_t id);
struct ampd_call *ampd_call_begin(struct ampd_core *core, uint64_t id, enum ampd_call_kind kind,
                                  struct ampd_model *model);
void ampd_call_forget(struct ampd_core *core, struct ampd_call *call);
struct ampd_reply *ampd_call_reply(struct ampd_core *core, uint64_t id, enum ampd_reply_kind kind);
void ampd_call_fail(struct ampd_core *core, uint64_t id, const struct ampd_model *model, int code, const char *reason,
                    const char *format, ...) __attribute__((format(printf, 6, 7)));
void ampd_call_fail_with(struct ampd_core *core, uint64_t id, const struct ampd_model *model,
                         const struct amp_error *error);
/* Fails a call that may hold a grant: at once if it holds none, else after the host has let go. */
void ampd_call_end(struct ampd_call *call, int code, const char *reason, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void ampd_call_set(struct ampd_call *call, enum ampd_call_state state);
void ampd_calls_refuse(struct ampd_model *model, const char *text); /* all that wait for it end with this sentence */
void ampd_calls_close(struct ampd_core *core);

#endif
