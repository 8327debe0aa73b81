/* What a broken session may have lost is said again (resend.c). Private to server/core. */
#ifndef AMPD_CORE_RESEND_H
#define AMPD_CORE_RESEND_H

#include <stdint.h>

struct ampd_core;

void ampd_resend_to_shard(struct ampd_core *core, uint32_t shard);
void ampd_resend_to_coordinator(struct ampd_core *core);
void ampd_resend_heard(struct ampd_core *core); /* shard 0 speaks */
void ampd_resend_arm(struct ampd_core *core);   /* sets hello_ms, or takes it back */
void ampd_resend_tick(struct ampd_core *core);

#endif
