/*
 * What a broken session may have lost is sent again (resend.c). All functions run on the thread that steps the core.
 * Private to server/core.
 */
#ifndef AMPD_CORE_RESEND_H
#define AMPD_CORE_RESEND_H

#include <stdint.h>

struct ampd_core;

/* Shard 0: sends a shard, of every model, all that it has asked of it and that is not answered. */
void ampd_resend_to_shard(struct ampd_core *core, uint32_t shard);

/* Another shard: sends HELLO, and then all that it has reported in its present state. */
void ampd_resend_to_coordinator(struct ampd_core *core);

/* A message of shard 0 came: the silence is over. */
void ampd_resend_heard(struct ampd_core *core);

/* Sets core->hello.again_ms if shard 0 owes this shard a message in a session that lives, else clears it. */
void ampd_resend_arm(struct ampd_core *core);

/* Sends HELLO and the rest again if hello.again_ms has come; the next time is twice as far, up to some minutes. */
void ampd_resend_tick(struct ampd_core *core);

#endif
