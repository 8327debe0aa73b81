/*
 * The end of a process in order, after a last checkpoint (leave.c). All functions run on the thread that steps the
 * core. Private to server/core.
 */
#ifndef AMPD_CORE_LEAVE_H
#define AMPD_CORE_LEAVE_H

#include <stdbool.h>
#include <stdint.h>

struct ampd_core;
struct ampd_message;

/* AMPD_EVENT_DRAIN: this process is to end. Shard 0 asks for the last checkpoints, another shard sends LEAVE. */
void ampd_leave_drain(struct ampd_core *core);

/* Shard 0 handles LEAVE: steps pause, the last one is checkpointed, and MAY_LEAVE answers whether that is done. */
void ampd_leave_asked(struct ampd_core *core, const struct ampd_message *message);

/* A shard handles MAY_LEAVE: with round 1 it may end, as far as that process of shard 0 is concerned. */
void ampd_leave_answered(struct ampd_core *core, const struct ampd_message *message);

/* Sends LEAVE, if this process is another shard than 0 and is to end; also again, when a session begins. */
void ampd_leave_ask(struct ampd_core *core);

/* The session with a shard is over: the other side is waited for from now on (AMPD_LEAVE_ALONE_MS, leave.c). */
void ampd_leave_down(struct ampd_core *core, uint32_t shard);

/* Gives up what is waited for, if the time for that is over. */
void ampd_leave_tick(struct ampd_core *core);

/* After each event: sends MAY_LEAVE to shards that wait for it, and DRAINED if nothing stands against the end. */
void ampd_leave_try(struct ampd_core *core);

#endif
