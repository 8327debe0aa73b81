/* What the user asks of the worker's machine, and when it is answered. Private to client/core. */
#ifndef AMPCLIENT_CORE_REQUESTS_H
#define AMPCLIENT_CORE_REQUESTS_H

#include "client/core/client_core.h"

/* Begins one of the user's requests (AMPCLIENT_EVENT_JOIN to _USER_STATE). */
void ampclient_core_request(struct ampclient_core *core, const struct ampclient_event *event);
/* The request is answered as soon as no stream touches memory. */
void ampclient_core_finish(struct ampclient_core *core, int code, const struct amp_error *error,
                           enum ampclient_state state);
/* The step in hand is void: so say step_end, now or later, and whatever waits for something of the step. */
void ampclient_core_void_step(struct ampclient_core *core);
/* The request ends without an answer: its deadline has come (AMP_EDEADLINE), or the user is gone (AMP_ECANCELLED). */
void ampclient_core_request_stop(struct ampclient_core *core, int code);
/* Answers the request, if nothing is to be waited for any more. */
void ampclient_core_drive_request(struct ampclient_core *core);

#endif
