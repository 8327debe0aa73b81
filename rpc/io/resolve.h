/*
 * Name lookup that can be abandoned. Internal to rpc/io.
 *
 * The system's resolver may take half a minute and cannot be interrupted. uv_getaddrinfo would keep the loop alive, and
 * one of libuv's few threads busy, for as long. Here each lookup has a thread of its own, which frees itself when
 * nobody waits for it any more.
 */
#ifndef ARPC_IO_RESOLVE_H
#define ARPC_IO_RESOLVE_H

#include <uv.h>

struct addrinfo;
struct arpc_resolve;

/* Lookups under way in a process, abandoned ones among them: each is a thread that waits for the resolver. */
#define ARPC_RESOLVES_MAX 64

struct arpc_resolve_calls {
    /*
     * From the loop, at most once, and not after arpc_resolve_leave. status: 0 or EAI_*; the list is the callee's to
     * free (freeaddrinfo). arpc_resolve_leave is still to be called.
     */
    void (*done_cb)(void *arg, int status, struct addrinfo *addresses);
    void (*gone_cb)(void *arg); /* from the loop, after arpc_resolve_leave: its handles on the loop are closed */
    void *arg;
};

/* Begins a lookup of TCP addresses. 0 and *out; AMP_EEXHAUSTED, AMP_ENOMEM: no callback comes. */
int arpc_resolve_start(uv_loop_t *loop, const char *host, const char *port, const struct arpc_resolve_calls *calls,
                       struct arpc_resolve **out);

/*
 * Gives a lookup up: its result is dropped. The loop must run until gone_cb, but not until the resolver has answered.
 */
void arpc_resolve_leave(struct arpc_resolve *resolve);

/* The list of a numeric address, which needs no resolver; the caller frees it (freeaddrinfo). NULL: it is a name. */
struct addrinfo *arpc_resolve_numeric(const char *host, const char *port);

#endif
