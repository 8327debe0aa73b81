/*
 * Rollback: an operator puts a model back to a checkpoint (rollback.c). All functions run on the thread that steps the
 * core, on shard 0. Private to server/core.
 */
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

/* ASKING: do the shards hold the checkpoint? BEGUN: RESTORE has been sent, and the epoch is not stored yet. */
enum ampd_rollback_state { AMPD_ROLLBACK_NONE, AMPD_ROLLBACK_ASKING, AMPD_ROLLBACK_BEGUN };

/* The rollback that is under way; a model has one at a time. */
struct ampd_rollback {
    enum ampd_rollback_state state;
    uint64_t epoch, step;                   /* of the checkpoint */
    uint64_t held;                          /* bit k: shard k holds its part */
    uint8_t manifests[AMPD_SHARDS_MAX][16]; /* [k], with bit k: the hash of that part's manifest */
    struct ampd_note note;                  /* who asked, why, and the request id */
};

/*
 * The RPC Rollback: asks all shards for the checkpoint (HOLDS), and is answered when the new epoch is stored. Fails as
 * ampd_core_coordinated does, with AMP_ENOTFOUND if a shard lacks the checkpoint, and with AMP_EUNAVAILABLE while
 * another rollback is under way. The same request, repeated, waits with the first.
 */
void ampd_rollback_call(struct ampd_core *core, uint64_t call, const struct ampd_event_act *act);

/* Handles HELD, a shard's answer to HOLDS. */
void ampd_rollback_held(struct ampd_model *model, const struct ampd_message *message);

/*
 * Sends PARTS and RESTORE to all shards, once all hold the checkpoint and nothing of the model is being stored. If all
 * callers have gone by then, the rollback is dropped.
 */
void ampd_rollback_try(struct ampd_model *model);

/* Sends HOLDS again to a shard whose session is new, or at a new epoch: what was said before no longer counts. */
void ampd_rollback_resend(struct ampd_model *model, uint32_t shard);

/* Ends the rollback and its calls with this error; the text is completed with the model's name. */
void ampd_rollback_fail(struct ampd_model *model, int code, const char *reason, const char *text);

/* An epoch is stored on all shards: if it is that of the rollback, remembers the request and answers the calls. */
void ampd_rollback_done(struct ampd_model *model);

#endif
