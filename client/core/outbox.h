/*
 * The outputs of the worker's state machine, and the calls that they begin. Private to client/core. Memory for an
 * output is needed: without it the process ends (AMP_NEED).
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

/* Appends an output of this type, zeroed otherwise. The caller fills it; it belongs to the core. Never NULL. */
struct ampclient_output *ampclient_core_push_output(struct ampclient_core *core, enum ampclient_output_type type);
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
