/* An orderly end (leave.c). Private to server/core. */
#ifndef AMPD_CORE_LEAVE_H
#define AMPD_CORE_LEAVE_H

#include <stdbool.h>
#include <stdint.h>

struct ampd_core;
struct ampd_message;

void ampd_leave_drain(struct ampd_core *core);                                     /* this process is to end */
void ampd_leave_asked(struct ampd_core *core, const struct ampd_message *message); /* LEAVE */
void ampd_leave_told(struct ampd_core *core, const struct ampd_message *message);  /* MAY_LEAVE */
void ampd_leave_ask(struct ampd_core *core);                                       /* a session begins: LEAVE again */
void ampd_leave_down(struct ampd_core *core, uint32_t shard);                      /* a session is over */
void ampd_leave_tick(struct ampd_core *core);
void ampd_leave_try(struct ampd_core *core); /* after each event: DRAINED, if nothing stands against it */

#endif
