/* The answers of gRPC's health service. On the loop. */
#ifndef AMPD_IO_SERVER_HEALTH_H
#define AMPD_IO_SERVER_HEALTH_H

#include <stdbool.h>

struct ampd_server;

/* Sets the health of the whole server and of each service of ours: SERVING, or NOT_SERVING. */
void io_server_health_set(struct ampd_server *server, bool serving);

/*
 * Called after each event of the core. Sets SERVING once all stored models are ready, those left out that cannot be
 * brought back at present: the others are served without them.
 */
void io_server_health_update(struct ampd_server *server);

#endif
