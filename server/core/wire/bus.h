/*
 * Messages between the coordinator and the shards, also within one process (bus.c). All functions run on the thread
 * that steps the core. Private to server/core.
 */
#ifndef AMPD_CORE_BUS_H
#define AMPD_CORE_BUS_H

#include "server/core/wire/messages.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_core;
struct ampd_model;

/* A new message of this shard about a model, with both fences and the sender's epoch filled in. The caller owns it. */
struct ampd_message *ampd_bus_message(struct ampd_model *model, enum ampd_message_type type, uint32_t to);

/* A new message of this shard about the process and no model, with both fences filled in. The caller owns it. */
struct ampd_message *ampd_bus_plain(struct ampd_core *core, enum ampd_message_type type, uint32_t to);

/* Sends a message and takes it: by AMPD_OUT_SEND, or to this shard through the inbox. A fenced process sends none. */
void ampd_bus_send_take(struct ampd_core *core, struct ampd_message *message);

/* Sends a message to each shard and takes it. */
void ampd_bus_send_all_take(struct ampd_core *core, struct ampd_message *message);

/* The next message of this shard to itself, which the caller then owns; NULL: none. */
struct ampd_message *ampd_bus_next(struct ampd_core *core);

/* The core is being freed: asserts that the inbox is empty, as it is after each event. */
void ampd_bus_close(struct ampd_core *core);
/* Whether the log may name a message that is refused now: at most one in a second, since its sender may send many. */
bool ampd_bus_may_log_refused(struct ampd_core *core);

/*
 * Logs that a message does not fit the model and was refused, with the reason ("": none), at most once a second: its
 * sender is no shard of this cluster, runs another program, or has another model under that name.
 */
void ampd_bus_misfit(struct ampd_model *model, const struct ampd_message *message, const char *why);

#endif
