/* Back to a checkpoint, as an operator asks (rollback.c). Private to server/core. */
#ifndef AMPD_CORE_ROLLBACK_H
#define AMPD_CORE_ROLLBACK_H

#include "server/core/base/limits.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_core;
struct ampd_event_act;
struct ampd_message;
struct ampd_model;

/* One that is under way. */
struct ampd_rollback {
    bool active;          /* asked for, and its epoch is not stored */
    bool begun;           /* RESTORE has been sent; else the shards are asked whether they hold the checkpoint */
    uint64_t epoch, step; /* of the checkpoint */
    uint64_t held;        /* bits of the shards that do, */
    uint8_t manifests[AMPD_SHARDS_MAX][16]; /* and what their parts are */
    struct ampd_note note;
};

void ampd_rollback_call(struct ampd_core *core, uint64_t call, const struct ampd_event_act *act);
void ampd_rollback_held(struct ampd_model *model, const struct ampd_message *message); /* HELD */
void ampd_rollback_try(struct ampd_model *model); /* once nothing is being stored */
void ampd_rollback_resend(struct ampd_model *model, uint32_t shard);
void ampd_rollback_fail(struct ampd_model *model, int code, const char *reason, const char *text);
void ampd_rollback_done(struct ampd_model *model);

#endif
