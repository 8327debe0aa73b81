/*
 * Inside the core: what shards do with one another, apart from steps: SYNC, broken sessions, orderly ends, fences. Part of model.h, which
 * includes it; private to server/core.
 */
#ifndef AMPD_SHARDS_H
#define AMPD_SHARDS_H

#include "server/core/model.h"

/* ---- sync.c ---- */
void ampd_sync_start(struct ampd_core *core);
void ampd_sync_hello(struct ampd_core *core, const struct ampd_message *message);
void ampd_sync_asked(struct ampd_core *core, const struct ampd_message *message);
void ampd_sync_try_answer(
    struct ampd_core *core); /* if one is due, and nothing that it tells is being stored or read */
bool ampd_sync_troubled(const struct ampd_model *model); /* shard 0: it cannot be brought back now */
void ampd_sync_answer(struct ampd_core *core, const struct ampd_message *message);
/* Whether shard k has told that it holds the checkpoint. */
bool ampd_sync_holds(const struct ampd_coord *coord, uint32_t k, uint64_t epoch, uint64_t step);
/* As it has told of it, or NULL. */
const struct ampd_checkpoint_record *ampd_sync_told(const struct ampd_coord *coord, uint32_t k, uint64_t epoch,
                                                    uint64_t step);
void ampd_sync_done(struct ampd_core *core, const struct ampd_message *message);
void ampd_sync_create(struct ampd_core *core, const struct ampd_message *message);
void ampd_sync_not_created(struct ampd_model *model, const struct ampd_message *message);
void ampd_sync_first_epoch(struct ampd_model *model); /* of a model that is created */
void ampd_sync_begin_anew(struct ampd_model *model,
                          const char *reason); /* CREATED: a new epoch without values, and another loader may */
void ampd_sync_raised(struct ampd_core *core, const struct ampd_event_raised *raised); /* the number of a new epoch */
void ampd_sync_resend(struct ampd_model *model, uint32_t shard); /* RESTORE or EPOCH, if it was not answered */
void ampd_sync_roll_back(struct ampd_model *model); /* RESTORE of coord.rollback's checkpoint on all shards */
void ampd_sync_restored(struct ampd_model *model, const struct ampd_message *message);
void ampd_sync_epoch_stored(struct ampd_model *model, const struct ampd_message *message);

/* ---- resend.c ---- */
void ampd_resend_to_shard(struct ampd_core *core, uint32_t shard);
void ampd_resend_to_coordinator(struct ampd_core *core);
void ampd_resend_heard(struct ampd_core *core); /* shard 0 speaks */
void ampd_resend_arm(struct ampd_core *core);   /* sets hello_ms, or takes it back */
void ampd_resend_tick(struct ampd_core *core);

/* ---- leave.c ---- */
bool ampd_leave_leaves(const struct ampd_core *core, uint32_t shard); /* it is about to end, or has ended in order */
bool ampd_leave_pauses(const struct ampd_core *core); /* no step is opened or decided: a shard is about to end */
void ampd_leave_drain(struct ampd_core *core);        /* this process is to end */
void ampd_leave_asked(struct ampd_core *core, const struct ampd_message *message); /* LEAVE */
void ampd_leave_told(struct ampd_core *core, const struct ampd_message *message);  /* MAY_LEAVE */
void ampd_leave_ask(struct ampd_core *core);                                       /* a session begins: LEAVE again */
void ampd_leave_down(struct ampd_core *core, uint32_t shard);                      /* a session is over */
void ampd_leave_tick(struct ampd_core *core);
void ampd_leave_try(struct ampd_core *core); /* after each event: DRAINED, if nothing stands against it */

/* ---- fits.c ---- */
/* Whether the parameters, ranks and blocks of a message are the model's. */
bool ampd_message_fits(const struct ampd_model *model, const struct ampd_message *message);

/* ---- fences.c ---- */
void ampd_fences_found(struct ampd_core *core, const struct ampd_event_fence *found);
/* Whether a message of another shard counts. False: it was refused, or held, or is of no use. */
bool ampd_fences_admit(struct ampd_core *core, const struct ampd_message *message);
void ampd_fences_stored(struct ampd_core *core, const struct ampd_pending *pending);
void ampd_fences_too_low(struct ampd_core *core, const struct ampd_message *message);
void ampd_fences_close(struct ampd_core *core);
/* The fence that a message to this shard is addressed to. */
struct ampd_fence ampd_fences_of(const struct ampd_core *core, uint32_t shard);

#endif
