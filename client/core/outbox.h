/* The outputs of the worker's machine, and the calls that they begin. Private to client/core. */
#ifndef AMPCLIENT_CORE_OUTBOX_H
#define AMPCLIENT_CORE_OUTBOX_H

#include "base/list.h"
#include "client/core/client_outputs.h"

struct ampclient_core;

struct ampclient_out_node {
    struct amp_list node;
    struct ampclient_output output;
};

/* A new output. It is the machine's. */
struct ampclient_output *ampclient_core_push_output(struct ampclient_core *core, enum ampclient_output_type type);
/* The same of one that begins an RPC to a shard; *call gets its number. `call` may be NULL. */
struct ampclient_output *ampclient_core_out(struct ampclient_core *core, enum ampclient_output_type type,
                                            uint32_t shard, uint64_t deadline_ms, uint64_t *call);
/* Cancels the call, if *call is not 0; of a `stream` the memory is free once it has ended. */
void ampclient_core_cancel(struct ampclient_core *core, uint64_t *call, bool stream);

#endif
