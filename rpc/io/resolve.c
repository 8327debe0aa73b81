/*
 * Two sides share a lookup: the loop's, until gone_cb, and the thread's, until the resolver has answered. The mutex
 * guards `left` and `answered`; who is last frees.
 */
#include "rpc/io/resolve.h"

#include "base/err.h"
#include "base/thread.h"

#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

struct arpc_resolve {
    pthread_mutex_t mutex;
    unsigned sides;
    bool left; /* the loop's side waits no more; the handle may be closed */
    uv_async_t async;
    struct arpc_resolve_calls calls;
    int status;
    struct addrinfo *addresses;
    char host[256];
    char port[8];
};

static atomic_int running;

static void side_over(struct arpc_resolve *resolve)
{
    (void)pthread_mutex_lock(&resolve->mutex);
    bool last = --resolve->sides == 0;
    (void)pthread_mutex_unlock(&resolve->mutex);
    if (!last)
        return;
    if (resolve->addresses != NULL)
        freeaddrinfo(resolve->addresses);
    (void)pthread_mutex_destroy(&resolve->mutex);
    free(resolve);
}

static void *resolve_main(void *arg)
{
    struct arpc_resolve *resolve = arg;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *addresses = NULL;
    int status = getaddrinfo(resolve->host, resolve->port, &hints, &addresses);
    (void)pthread_mutex_lock(&resolve->mutex);
    resolve->status = status;
    resolve->addresses = status == 0 ? addresses : NULL;
    if (!resolve->left)
        (void)uv_async_send(&resolve->async); /* fails only on a handle that is closing */
    (void)pthread_mutex_unlock(&resolve->mutex);
    (void)atomic_fetch_sub(&running, 1);
    side_over(resolve);
    return NULL;
}

static void on_async(uv_async_t *async)
{
    struct arpc_resolve *resolve = async->data;
    (void)pthread_mutex_lock(&resolve->mutex);
    struct addrinfo *addresses = resolve->addresses;
    resolve->addresses = NULL;
    (void)pthread_mutex_unlock(&resolve->mutex);
    resolve->calls.done_cb(resolve->calls.arg, resolve->status, addresses);
}

static int start_thread(struct arpc_resolve *resolve)
{
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes) != 0)
        return AMP_ENOMEM;
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int rc = amp_thread_start(&thread, &attributes, resolve_main, resolve);
    (void)pthread_attr_destroy(&attributes);
    return rc == 0 ? 0 : AMP_EIO;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct arpc_resolve *resolve = handle->data;
    void (*gone_cb)(void *) = resolve->calls.gone_cb;
    void *arg = resolve->calls.arg;
    side_over(resolve);
    gone_cb(arg);
}

void arpc_resolve_leave(struct arpc_resolve *resolve)
{
    (void)pthread_mutex_lock(&resolve->mutex);
    resolve->left = true;
    (void)pthread_mutex_unlock(&resolve->mutex);
    uv_close((uv_handle_t *)&resolve->async, on_handle_closed);
}

int arpc_resolve_start(uv_loop_t *loop, const char *host, const char *port, const struct arpc_resolve_calls *calls,
                       struct arpc_resolve **out)
{
    struct arpc_resolve *resolve = calloc(1, sizeof *resolve);
    if (resolve == NULL)
        return AMP_ENOMEM;
    resolve->sides = 2;
    resolve->calls = *calls;
    (void)snprintf(resolve->host, sizeof resolve->host, "%s", host);
    (void)snprintf(resolve->port, sizeof resolve->port, "%s", port);
    int rc = AMP_EEXHAUSTED;
    if (atomic_fetch_add(&running, 1) >= ARPC_RESOLVES_MAX)
        goto count_down;
    rc = AMP_ENOMEM;
    if (pthread_mutex_init(&resolve->mutex, NULL) != 0)
        goto count_down;
    if (uv_async_init(loop, &resolve->async, on_async) != 0)
        goto destroy_mutex;
    resolve->async.data = resolve;
    *out = resolve;
    if (start_thread(resolve) == 0)
        return 0;
    /* Told as an answer, since the handle can only be closed by the loop. */
    (void)atomic_fetch_sub(&running, 1);
    resolve->sides = 1;
    resolve->status = EAI_MEMORY;
    (void)uv_async_send(&resolve->async);
    return 0;
destroy_mutex:
    (void)pthread_mutex_destroy(&resolve->mutex);
count_down:
    (void)atomic_fetch_sub(&running, 1);
    free(resolve);
    return rc;
}

struct addrinfo *arpc_resolve_numeric(const char *host, const char *port)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_NUMERICHOST};
    struct addrinfo *addresses = NULL;
    return getaddrinfo(host, port, &hints, &addresses) == 0 ? addresses : NULL;
}
