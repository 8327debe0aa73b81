/*
 * Messages that come to this process, from other shards and from itself (receive.c). Both functions run on the thread
 * that steps the core. Private to server/core.
 */
#ifndef AMPD_CORE_RECEIVE_H
#define AMPD_CORE_RECEIVE_H

struct ampd_core;
struct ampd_message;

/* Gives a message to the machine that it is for, if its fences and contents let it count; it stays the caller's. */
void ampd_receive(struct ampd_core *core, const struct ampd_message *message);

/* Handles all messages that this process has sent to itself, and those that follow from them, until there is none. */
void ampd_receive_own(struct ampd_core *core);

#endif
