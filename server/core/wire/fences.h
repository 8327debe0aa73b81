/*
 * Fences: which process counts as a shard (fences.c; docs/step-protocol.md section 1). All functions run on the thread
 * that steps the core. Private to server/core.
 */
#ifndef AMPD_CORE_FENCES_H
#define AMPD_CORE_FENCES_H

#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_core;
struct ampd_event_fence;
struct ampd_message;
struct ampd_pending;

/*
 * AMPD_EVENT_FENCE_FOUND: takes the highest stored fence of another shard; one beyond all bounds is ignored and logged.
 */
void ampd_fences_found(struct ampd_core *core, const struct ampd_event_fence *found);

/*
 * Whether a message counts. False: its fence is too low (the sender is sent TOO_LOW) or leaps too far
 * (AMPD_FENCE_LEAP); or it is addressed to another process; or its fence is new and is being stored, when a HELLO or
 * SYNC is kept for ampd_fences_stored and all else is dropped.
 */
bool ampd_fences_admit(struct ampd_core *core, const struct ampd_message *message);

/*
 * A fence is stored: its process is the shard from now on. Returns the HELLO or SYNC that was kept meanwhile, which the
 * caller owns and handles; NULL: none.
 */
struct ampd_message *ampd_fences_stored(struct ampd_core *core, const struct ampd_pending *pending);

/* Handles TOO_LOW: if it names a fence above this process's, this process is fenced and asks to be ended. */
void ampd_fences_too_low(struct ampd_core *core, const struct ampd_message *message);

/* Frees the messages that are kept. */
void ampd_fences_close(struct ampd_core *core);

/* The fence of a shard as this process knows it, to which its messages are addressed; counter 0: none is known. */
struct ampd_fence ampd_fences_of(const struct ampd_core *core, uint32_t shard);

#endif
