/* The insides of a server, shared with the services that come with it. Internal to rpc/. */
#ifndef ARPC_IO_SERVER_STATE_H
#define ARPC_IO_SERVER_STATE_H

#include "rpc/arpc_server.h"
#include "rpc/h2/link.h"
#include "rpc/io/conn.h"
#include "rpc/io/admission.h"
#include "rpc/services/health.h"
#include "rpc/services/reflection.h"

struct arpc_listener {
    struct amp_list in_server;
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } socket;
    struct arpc_server *server;
    struct arpc_tls *tls; /* NULL: plaintext */
    bool is_unix;
    bool waiting;  /* a connection is there that was not accepted yet */
    uint64_t turn; /* in which connections were last accepted, and how many */
    unsigned accepted;
};

struct arpc_server {
    struct arpc_deferred deferred;
    struct arpc_deferred_item item; /* for drained_cb and closed_cb when they are due */
    struct arpc_link_config config;
    struct arpc_limits limits;
    struct arpc_admission admission;
    struct arpc_bucket refused; /* connections that were not let in */
    struct amp_list listeners;
    size_t listener_count; /* until their close callbacks */
    struct amp_list conns;
    size_t conn_count;
    uint64_t connections_total;
    uint64_t handshakes_failed;
    void (*handshake_failed_cb)(const char *peer, const struct amp_error *error, void *arg);
    uint64_t bytes_received;
    uint64_t bytes_sent;
    struct arpc_health *health;
    struct arpc_reflection *reflection; /* NULL: off */
    uv_timer_t grace;
    uv_timer_t again; /* to accept what there was no memory for */
    unsigned timers;  /* the two, while open */
    bool draining;
    bool closing;
    bool deferred_closing;
    void (*drained_cb)(void *arg);
    void *drained_arg;
    void (*closed_cb)(void *arg);
    void *closed_arg;
};

#endif
