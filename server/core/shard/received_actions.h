/*
 * How shards other than 0 store the operator actions that shard 0 has stored (received_actions.c). Both functions run
 * on the thread that steps the core. Private to server/core.
 */
#ifndef AMPD_CORE_RECEIVED_ACTIONS_H
#define AMPD_CORE_RECEIVED_ACTIONS_H

struct ampd_message;
struct ampd_model;
struct ampd_verdict_message;

/* Stores the rows of the actions that came with a verdict, behind the step before it. The store keeps each row once. */
void ampd_received_actions_persist(struct ampd_model *model, const struct ampd_verdict_message *verdict);

/* Handles ACTS: stores the rows if they are behind the step that this shard decided last; else they come again. */
void ampd_received_actions(struct ampd_model *model, const struct ampd_message *message);

#endif
