/* What comes from the shards (receive.c). Private to server/core. */
#ifndef AMPD_CORE_RECEIVE_H
#define AMPD_CORE_RECEIVE_H

struct ampd_core;
struct ampd_message;

void ampd_receive(struct ampd_core *core, const struct ampd_message *message);
void ampd_receive_own(struct ampd_core *core); /* all that this process has sent itself */

#endif
