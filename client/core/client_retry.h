/* Which failures of calls are tried again, and when. Private to client/core. */
#ifndef AMPCLIENT_CORE_RETRY_H
#define AMPCLIENT_CORE_RETRY_H

#include "client/core/client_events.h"

struct ampclient_core;

/* Judges a failed call: true if the caller should give up with *core's last_error. */
bool ampclient_core_failed(struct ampclient_core *core, const struct ampclient_ended *ended);
void ampclient_core_succeeded(struct ampclient_core *core);
void ampclient_core_note(struct ampclient_core *core, const struct ampclient_ended *ended);

/* True unless it is NULL or "". */
bool ampclient_core_is_text(const char *text);

#endif
