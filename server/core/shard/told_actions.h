/* What operators do to the scale, on another shard than the coordinator's (told_actions.c). Private to server/core. */
#ifndef AMPD_CORE_TOLD_ACTIONS_H
#define AMPD_CORE_TOLD_ACTIONS_H

struct ampd_message;
struct ampd_model;
struct ampd_verdict_message;

/* The rows of the actions that came with a verdict, or before it. */
void ampd_told_actions_persist(struct ampd_model *model, const struct ampd_verdict_message *verdict);
void ampd_told_actions(struct ampd_model *model, const struct ampd_message *message); /* ACTS */

#endif
