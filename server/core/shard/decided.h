/*
 * The last decided step on a shard, from its VERDICT until it is applied (decided.c). All functions run on the thread
 * that steps the core. Private to server/core.
 */
#ifndef AMPD_CORE_DECIDED_H
#define AMPD_CORE_DECIDED_H

#include "server/core/base/local.h"
#include "server/core/model/states.h"

#include <stdint.h>

struct ampd_message;
struct ampd_model;
struct ampd_shard;
struct ampd_verdict_message;

/* The last step whose verdict has come. */
struct ampd_decided {
    enum ampd_decided_state state;
    uint64_t step;                        /* the base step of the epoch until one is decided in it */
    struct ampd_verdict_message *verdict; /* of `step`, if it was decided in this epoch and process; owned, or NULL */
    struct ampd_verdict_message *next;    /* shard other than 0: of the step after it, while being stored; owned */
    struct ampd_bytes *user_states;       /* [world_size] the newest of each rank, as of `step` */
    struct ampd_bytes *base_user_states;  /* [world_size] of the step that the epoch, or a replay, went on from */
};

/* Changes the state; asserts that the table allows it. */
void ampd_decided_set(struct ampd_shard *shard, enum ampd_decided_state to);

/*
 * Handles VERDICT. Ignored unless it is of the present epoch, the memory is READY and it is of the step after the last
 * decided one. Shards other than 0 store it first; shard 0 acts on it at once, since its coordinator has stored it. A
 * repeated one is answered with what was sent for it before. One for a list of contributors that this shard has not
 * voted on is refused with a line of the log.
 */
void ampd_decided_verdict(struct ampd_model *model, const struct ampd_message *message);

/* Shard other than 0: the verdict is stored. Acts on it, unless a restore has dropped it meanwhile. */
void ampd_decided_stored(struct ampd_model *model);

/* Empties a block of every slot: apply has read it, or the step was skipped. */
void ampd_decided_consume(struct ampd_model *model, uint64_t local);

/* APPLYING -> APPLIED, and sends APPLIED to the coordinator. */
void ampd_decided_applied(struct ampd_model *model);

/* Sends APPLIED to the coordinator, with step and range warnings. */
void ampd_decided_send_applied(struct ampd_model *model);

#endif
