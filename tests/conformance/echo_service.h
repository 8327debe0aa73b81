/* The rows of ampd.test.v1.Echo. Test only; options.arg of the server is a struct echo_state. */
#ifndef ECHO_SERVICE_H
#define ECHO_SERVICE_H

#include "rpc/arpc_server.h"

#include <uv.h>

struct echo_state {
    uv_loop_t *loop;
    uint64_t cancelled;
    uint64_t open;
};

extern const struct arpc_method echo_methods[];
extern const size_t echo_method_count;

/*
 * Names for arpc_server_options.keep_metadata; x-echo-initial comes back as metadata, x-echo-trailing-bin in the
 * trailers.
 */
extern const char *const echo_metadata[];

#endif
