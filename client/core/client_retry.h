/* Which failed calls are made again, and when. Private to client/core. */
#ifndef AMPCLIENT_CORE_RETRY_H
#define AMPCLIENT_CORE_RETRY_H

#include "client/core/client_events.h"

struct ampclient_core;

/*
 * Judges a call that has failed (code not 0), and notes it as core->last_error. True: the caller gives up with
 * core->last_error. False: the call is to be made again, after core->retry_ms or, after ABORTED, once the handle has
 * joined again.
 */
bool ampclient_core_failed(struct ampclient_core *core, const struct ampclient_ended *ended);
/* A call has succeeded: ends the row of failures and its pauses' growth. */
void ampclient_core_succeeded(struct ampclient_core *core);
/* Sets core->last_error from the end of a call, without judging it. */
void ampclient_core_note(struct ampclient_core *core, const struct ampclient_ended *ended);

/* True unless it is NULL or "". */
bool ampclient_core_is_text(const char *text);

#endif
