/*
 * How a shard answers SYNC and CREATE (sync_answer.c). All functions run on the thread that steps the core. Private to
 * server/core.
 */
#ifndef AMPD_CORE_SYNC_ANSWER_H
#define AMPD_CORE_SYNC_ANSWER_H

#include <stdbool.h>

struct ampd_core;
struct ampd_message;

/*
 * Handles SYNC: true if it is to be answered, by ampd_sync_try_answer; false if it is of an older round. Memories that
 * a RESTORE has taken without an epoch to follow begin to be brought back.
 */
bool ampd_sync_asked(struct ampd_core *core, const struct ampd_message *message);

/*
 * Sends SYNCED for each model, and SYNC_DONE, if an answer is due and nothing that it names is being stored or
 * replayed; also the SYNCED of single models that was owed since they could not be read. Called whenever that may have
 * changed.
 */
void ampd_sync_try_answer(struct ampd_core *core);

/* Handles CREATE: makes the model if there is none of that name, or answers NOT_CREATED with the reason. */
void ampd_sync_create(struct ampd_core *core, const struct ampd_message *message);

#endif
