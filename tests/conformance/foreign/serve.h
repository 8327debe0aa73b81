/* What the servers for foreign test programs share: one loop, one server, drained by SIGTERM. Test only. */
#ifndef TESTS_CONFORMANCE_FOREIGN_SERVE_H
#define TESTS_CONFORMANCE_FOREIGN_SERVE_H

#include "rpc/arpc_server.h"

#include <uv.h>

/*
 * A server on the default loop, listening on 127.0.0.1:*port (0: one that is free; *port gets it), with TLS if `files`
 * is not NULL. NULL: it was told on stderr.
 */
struct arpc_server *serve_begin(const struct arpc_server_options *options, const struct arpc_method *methods,
                                size_t count, const struct arpc_tls_server_options *files, int *port);

/* Runs until SIGTERM has drained the server. The exit code: 0, or 1 if a handle was left. */
int serve_run(struct arpc_server *server);

#endif
