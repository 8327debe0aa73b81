/* What an operator does to the scale (actions.c). Private to server/core. */
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

/* Those of a model. */
struct ampd_coord_actions {
    uint32_t storing; /* not stored yet */
    uint32_t count;   /* since the last verdict: they travel with the next one */
    struct ampd_action waiting[AMPD_ACTIONS_WAIT_MAX];
    uint64_t calls[AMPD_ACTIONS_WAIT_MAX]; /* who asked */
    uint32_t placed;                       /* of them have their step; the others wait for a verdict to be stored */
    uint32_t known_count;
    struct ampd_act_record known[AMPD_ACTIONS_MAX]; /* the newest, stored, oldest first */
};

void ampd_actions_do(struct ampd_core *core, uint64_t call, const struct ampd_event_act *act, enum ampd_row_kind kind);
void ampd_actions_place(struct ampd_model *model); /* those that waited for a verdict, once it is stored */
void ampd_actions_stored(struct ampd_model *model, const struct ampd_pending *pending);
void ampd_actions_take(struct ampd_coord *coord,
                       struct ampd_verdict_message *verdict); /* those since the last verdict */
void ampd_actions_forget(struct ampd_coord *coord);
void ampd_actions_resend(struct ampd_model *model, uint32_t shard); /* those since the last verdict */
void ampd_actions_found(struct ampd_model *model,
                        const struct ampd_model_record *record); /* by a coordinator that starts */
void ampd_actions_remember(struct ampd_coord *coord, const struct ampd_act_record *act);
bool ampd_actions_known(struct ampd_model *model, uint64_t call, const struct ampd_event_act *act,
                        enum ampd_row_kind kind);

#endif
