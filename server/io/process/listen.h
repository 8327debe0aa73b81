/* The gRPC server: where it listens, which calls it admits, and what it logs of connections. On the loop. */
#ifndef AMPD_IO_LISTEN_H
#define AMPD_IO_LISTEN_H

#include "base/err.h"

struct ampd_server;

/*
 * Makes server->rpc with all methods, listens at --listen and on the unix sockets in the data directory, and fills in
 * server->endpoint. Health is NOT_SERVING from the start. Returns an exit code (AMPD_EXIT_...); *error says why it is
 * not AMPD_EXIT_OK. That a socket in the data directory cannot be opened is only
 * logged.
 */
int io_listen(struct ampd_server *server, struct amp_error *error);

#endif
