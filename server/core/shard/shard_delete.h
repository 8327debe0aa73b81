/*
 * How a shard deletes a model (shard_delete.c). The start of it, ampd_local_delete, is in base/local.h. Both functions
 * run on the thread that steps the core. Private to server/core.
 */
#ifndef AMPD_CORE_SHARD_DELETE_H
#define AMPD_CORE_SHARD_DELETE_H

struct ampd_core;
struct ampd_message;
struct ampd_model;

/* Handles DELETE: begins the deletion, or answers DELETED at once if there is no model of that name. */
void ampd_delete_asked(struct ampd_core *core, const struct ampd_message *message);

/* The store has deleted the model: answers the calls that asked for it, frees its memory, and sends DELETED. */
void ampd_delete_stored(struct ampd_model *model);

#endif
