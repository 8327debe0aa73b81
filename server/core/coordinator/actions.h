/*
 * What operators do to the scale, the learning rate and to workers, and the request ids by which it is done once
 * (actions.c). All functions run on the thread that steps the core; `coord` is that of shard 0. Private to server/core.
 */
#ifndef AMPD_CORE_ACTIONS_H
#define AMPD_CORE_ACTIONS_H

#include "server/core/wire/messages.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_coord;
struct ampd_core;
struct ampd_event_act;
struct ampd_message;
struct ampd_model;
struct ampd_pending;
struct ampd_verdict_message;

/* The operator actions of a model. */
struct ampd_coord_actions {
    uint32_t storing; /* actions that were accepted and whose row is not stored yet */
    uint32_t count;   /* actions since the last verdict: they travel with the next one */
    struct ampd_action waiting[AMPD_ACTIONS_WAIT_MAX]; /* [count], in the order in which they came */
    uint64_t calls[AMPD_ACTIONS_WAIT_MAX];             /* [count] the call that asked for each */
    uint32_t placed; /* the first of `waiting` that have their step in the history; the others wait for a verdict */
    uint32_t known_count;
    struct ampd_act_record known[AMPD_ACTIONS_MAX]; /* [known_count] the newest that are stored, oldest first */
};

/*
 * SetScale, ResetScale, SetLearningRate or EvictWorker, by kind (SET, RESET, LR, EVICT). Answered when the row is
 * stored, or at once with an error: of ampd_core_coordinated, a value that cannot be (AMP_EINVAL), a model that is done
 * (AMP_ESTATE), or too many actions since the last verdict (AMP_EEXHAUSTED). A request id that was seen gets the first
 * answer again.
 */
void ampd_actions_do(struct ampd_core *core, uint64_t call, const struct ampd_event_act *act, enum ampd_row_kind kind);

/*
 * Gives each action that has none its place behind the last decided step, and stores its row. While a verdict is being
 * stored (VOTED) nothing is placed.
 */
void ampd_actions_place(struct ampd_model *model);

/* A row is stored: answers the call, sends ACTS to the other shards, and lets steps go on. On other shards: nothing. */
void ampd_actions_stored(struct ampd_model *model, const struct ampd_pending *pending);

/* Moves the actions since the last verdict into this one. All of them must be placed. */
void ampd_actions_take(struct ampd_coord *coord, struct ampd_verdict_message *verdict);

/* Drops the actions since the last verdict, for an epoch or verdict that has taken their place. */
void ampd_actions_forget(struct ampd_coord *coord);

/* Sends the actions since the last verdict that are stored to a shard whose session may have lost them. */
void ampd_actions_resend(struct ampd_model *model, uint32_t shard);

/*
 * A model was found at a start: shard 0 puts back the actions behind its last step, and those of that step's verdict.
 */
void ampd_actions_found(struct ampd_model *model, const struct ampd_model_record *record);

/* Adds a stored action to `known`; the oldest gives way where there are AMPD_ACTIONS_MAX. */
void ampd_actions_remember(struct ampd_coord *coord, const struct ampd_act_record *act);

/*
 * Whether an action with this request id is stored; then the call has its answer: the same result, or an error if the
 * id was that of another request or the action was rolled back since. Kind EPOCH stands for a rollback.
 */
bool ampd_actions_known(struct ampd_model *model, uint64_t call, const struct ampd_event_act *act,
                        enum ampd_row_kind kind);

#endif
