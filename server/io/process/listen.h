/* The server of rpc: where it listens, who is let in, and what is logged of connections. */
#ifndef AMPD_IO_LISTEN_H
#define AMPD_IO_LISTEN_H

#include "base/err.h"

struct ampd_server;

/*
 * Makes server->rpc with all methods, and listens as the options say and on the unix socket in the data directory,
 * after which server->endpoint is known. Health is not SERVING. An exit code; *error says why it is not 0.
 */
int io_listen(struct ampd_server *server, struct amp_error *error);

#endif
