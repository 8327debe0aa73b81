/* A TCP proxy on a test's loop, which can stop forwarding and cut: what a network does to a connection. */
#ifndef TESTS_CONFORMANCE_PROXY_H
#define TESTS_CONFORMANCE_PROXY_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

struct proxy {
    uv_tcp_t listener;
    uv_tcp_t near; /* the client's side */
    uv_tcp_t far;
    uv_connect_t connect;
    int target;
    int port;
    int open; /* handles */
    bool connected;
    bool closing;
    size_t forwarded; /* bytes towards the client */
};

/* Listens on a port of its own, for one connection, which it makes to 127.0.0.1:target. */
void proxy_start(struct proxy *proxy, uv_loop_t *loop, int target);
/* Reads no more from the server. */
void proxy_freeze(struct proxy *proxy);
/* Ends both connections, without a word of what runs on them, and runs the loop until that is done. */
void proxy_cut(struct proxy *proxy);

#endif
