/*
 * What many connections took of the allocator goes back to the system when they are gone. By itself it keeps the pages between
 * what is still in use: forty megabytes after a flood of connections with as many streams as each may have.
 */
#include "rpc/arpc_server.h"
#include "server/io/server.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

/* A look reads one number. To go over the heap takes some milliseconds of the loop, so it is done after many connections alone. */
#define TRIM_LOOK_MS     5000
#define TRIM_CONNECTIONS 1000

static void trim(void)
{
#ifdef __GLIBC__
    (void)malloc_trim(0); /* nothing to give back is no error */
#endif
}

static void on_look(uv_timer_t *timer)
{
    struct ampd_server *server = timer->data;
    struct arpc_server_stats stats;
    if (server->rpc == NULL)
        return;
    arpc_server_stats(server->rpc, &stats);
    if (stats.connections_total - server->connections_trimmed < TRIM_CONNECTIONS)
        return;
    server->connections_trimmed = stats.connections_total;
    trim();
}

void ampd_server_watch_memory(struct ampd_server *server)
{
    (void)uv_timer_start(&server->trim_timer, on_look, TRIM_LOOK_MS, TRIM_LOOK_MS); /* cannot fail on an open handle */
}
