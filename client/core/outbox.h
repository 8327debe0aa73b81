/*
 * The outputs of the worker's state machine, and the calls that they begin. Private to client/core. There is spare
 * memory for all outputs that must not be lost, so that a request is answered also where this process has no memory.
 */
#ifndef AMPCLIENT_CORE_OUTBOX_H
#define AMPCLIENT_CORE_OUTBOX_H

#include "base/list.h"
#include "client/core/client_outputs.h"

struct ampclient_core;

struct ampclient_out_node {
    struct amp_list node; /* in core->outputs, until ampclient_core_next takes it */
    struct ampclient_output output;
};

/* With core->config: the spare memory. 0; AMP_ENOMEM (call _close then). */
int ampclient_core_outbox_init(struct ampclient_core *core);
void ampclient_core_outbox_close(struct ampclient_core *core); /* frees all outputs and the spare memory */

/* Appends an output of this type, zeroed otherwise. The caller fills it; it belongs to the core. Never NULL. */
struct ampclient_output *ampclient_core_push_output(struct ampclient_core *core, enum ampclient_output_type type);
/* The same for PUSH_BLOCKS and LOG, of which there may be any number. NULL: there is no memory. */
struct ampclient_output *ampclient_core_try_output(struct ampclient_core *core, enum ampclient_output_type type);
/*
 * Appends an output that goes to a shard, with deadline (ms from now), names, rank and incarnation filled in. If `call`
 * is not NULL, the output begins an RPC, and *call gets its new number. Never NULL.
 */
struct ampclient_output *ampclient_core_out(struct ampclient_core *core, enum ampclient_output_type type,
                                            uint32_t shard, uint64_t deadline_ms, uint64_t *call);
/*
 * Cancels the call *call and sets it to 0; does nothing if it is 0. A `stream` may still use gradients or parameters
 * until its ENDED comes: until then it counts in core->streams_dying.
 */
void ampclient_core_cancel(struct ampclient_core *core, uint64_t *call, bool stream);

#endif
