/* Messages between the coordinator and the shards, also of one process (bus.c). Private to server/core. */
#ifndef AMPD_CORE_BUS_H
#define AMPD_CORE_BUS_H

#include "server/core/wire/messages.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_core;
struct ampd_model;

struct ampd_message *ampd_bus_message(struct ampd_model *model, enum ampd_message_type type, uint32_t to);
/* A message of the process, about no model. */
struct ampd_message *ampd_bus_plain(struct ampd_core *core, enum ampd_message_type type, uint32_t to);
void ampd_bus_send_take(struct ampd_core *core, struct ampd_message *message);
void ampd_bus_send_all_take(struct ampd_core *core, struct ampd_message *message); /* a copy to each shard */
struct ampd_message *ampd_bus_next(struct ampd_core *core); /* to this shard, from itself; the caller's. NULL: none */
void ampd_bus_close(struct ampd_core *core);
/* Whether the log is told of a message that is refused: now and then, for its sender may have many. */
bool ampd_bus_tells_refused(struct ampd_core *core);
/*
 * Its sender is no shard of this cluster that runs the same program, or that has the same model: the log says so, now
 * and then.
 */
void ampd_bus_misfit(struct ampd_model *model, const struct ampd_message *message, const char *why);

#endif
