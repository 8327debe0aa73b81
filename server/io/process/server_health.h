/* What health says, of the whole and of each service: whether calls are served. */
#ifndef AMPD_IO_SERVER_HEALTH_H
#define AMPD_IO_SERVER_HEALTH_H

#include <stdbool.h>

struct ampd_server;

/* Says whether calls are served. */
void io_server_health_set(struct ampd_server *server, bool serving);

/* After each event: SERVING once every model that was found is ready, except those that cannot be brought back now. */
void io_server_health_update(struct ampd_server *server);

#endif
