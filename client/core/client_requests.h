/* The user's requests to the worker's state machine, and when each is answered. Private to client/core. */
#ifndef AMPCLIENT_CORE_REQUESTS_H
#define AMPCLIENT_CORE_REQUESTS_H

#include "client/core/client_core.h"

/*
 * Begins one of the user's requests (AMPCLIENT_EVENT_JOIN to _DRAIN). A request that is not possible in this state is
 * refused by its answer (AMP_ESTATE).
 */
void ampclient_core_request(struct ampclient_core *core, const struct ampclient_event *event);
/*
 * Changes to `state`, and decides the answer to the request under way, if there is one: `code`, and a copy of `error`
 * (NULL: none). The user gets the answer as soon as no cancelled stream uses memory.
 */
void ampclient_core_finish(struct ampclient_core *core, int code, const struct amp_error *error,
                           enum ampclient_state state);
/*
 * COMPUTING or WAITING: the step in hand is void. Cancels its streams; a step_end that waits is answered ROLLED_BACK,
 * else the state becomes ROLLED_BACK.
 */
void ampclient_core_void_step(struct ampclient_core *core);
/*
 * Ends the request under way without its result: its deadline has come (AMP_EDEADLINE), or the user has interrupted it
 * (AMP_ECANCELLED).
 */
void ampclient_core_request_stop(struct ampclient_core *core, int code);
/* The Leave call has ended: it is sent again where the server recovers, else the request has its answer. */
void ampclient_core_leave_ended(struct ampclient_core *core, const struct ampclient_ended *ended);
/* After each event: emits USER_DONE if the answer is decided, and no cancelled stream uses memory any more. */
void ampclient_core_drive_request(struct ampclient_core *core);

#endif
