/* The last decided step on a shard (decided.c). Private to server/core. */
#ifndef AMPD_CORE_DECIDED_H
#define AMPD_CORE_DECIDED_H

#include "server/core/base/local.h"
#include "server/core/model/states.h"

#include <stdint.h>

struct ampd_message;
struct ampd_model;
struct ampd_shard;
struct ampd_verdict_message;

/* The last step of which the verdict came. */
struct ampd_decided {
    enum ampd_decided_state state;
    uint64_t step;
    struct ampd_verdict_message *verdict; /* of `step`, if that was decided in this epoch and process; owned */
    struct ampd_verdict_message *next;    /* the one after it, being stored; owned */
    struct ampd_bytes *user_states;       /* [world_size] of `step` */
    struct ampd_bytes *base_user_states;  /* [world_size] of the step the epoch began from */
};

void ampd_decided_set(struct ampd_shard *shard, enum ampd_decided_state to);             /* as the table allows */
void ampd_decided_verdict(struct ampd_model *model, const struct ampd_message *message); /* VERDICT */
void ampd_decided_stored(struct ampd_model *model); /* not on shard 0: the coordinator stores it there */
void ampd_decided_consume(struct ampd_model *model, uint64_t local); /* a block is read, or its step skipped */
void ampd_decided_applied(struct ampd_model *model);                 /* -> APPLIED */
void ampd_decided_tell(struct ampd_model *model);                    /* APPLIED to the coordinator */

#endif
