/* Which process counts as a shard (fences.c). Private to server/core. */
#ifndef AMPD_CORE_FENCES_H
#define AMPD_CORE_FENCES_H

#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_core;
struct ampd_event_fence;
struct ampd_message;
struct ampd_pending;

void ampd_fences_found(struct ampd_core *core, const struct ampd_event_fence *found);
/* Whether a message of another shard counts. False: it was refused, or held, or is of no use. */
bool ampd_fences_admit(struct ampd_core *core, const struct ampd_message *message);
/* What the process has said first, while its fence was being stored; the caller's. NULL: nothing. */
struct ampd_message *ampd_fences_stored(struct ampd_core *core, const struct ampd_pending *pending);
void ampd_fences_too_low(struct ampd_core *core, const struct ampd_message *message);
void ampd_fences_close(struct ampd_core *core);
/* The fence that a message to this shard is addressed to. */
struct ampd_fence ampd_fences_of(const struct ampd_core *core, uint32_t shard);

#endif
