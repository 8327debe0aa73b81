/*
 * Gives memory back to the system after many connections were closed. The allocator by itself keeps free pages that lie
 * between memory in use: 40 MB after a flood of connections with as many streams as each may have.
 */
#include "server/io/process/trim.h"

#include "base/assert.h"
#include "rpc/arpc_server.h"
#include "server/io/base/server.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

/*
 * The timer only compares a number. Trimming the heap takes some milliseconds of the loop, so it is done only after so
 * many new connections.
 */
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
    if (stats.connections_total - server->trim->connections < TRIM_CONNECTIONS)
        return;
    server->trim->connections = stats.connections_total;
    trim();
}

void io_trim_open(struct ampd_server *server)
{
    uv_timer_t *timer = &server->trim->timer;
    AMP_ASSERT(uv_timer_init(&server->loop, timer) == 0);
    timer->data = server;
    (void)uv_timer_start(timer, on_look, TRIM_LOOK_MS, TRIM_LOOK_MS); /* cannot fail on an open handle */
}

void io_trim_close(struct ampd_server *server)
{
    uv_close((uv_handle_t *)&server->trim->timer, NULL);
}
