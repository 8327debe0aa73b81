/*
 * The server process: one loop thread that runs the core and all connections, and threads for compute, the store and
 * files (pools.h). The I/O layer decides nothing about training: it gives events to server/core (core_event.h), and
 * does what the core asks for.
 *
 * struct ampd_server holds the state of the process. Each part belongs to one file, and only that file writes it. Parts
 * of folders that this one may not include are pointers to incomplete types; process/start.c has their memory. All of
 * it belongs to the loop's thread, except where the header of a part says otherwise.
 */
#ifndef AMPD_IO_SERVER_H
#define AMPD_IO_SERVER_H

#include "base/log.h"
#include "server/core/core.h"
#include "server/io/base/core_event.h"
#include "server/io/base/counts.h"
#include "server/io/base/data.h"
#include "server/io/base/open_files.h"
#include "server/io/base/options.h"
#include "server/io/base/pools.h"

#include <uv.h>

struct ampd_auth;
struct arpc_server;
struct io_admit;
struct io_alive_calls;
struct io_attachments;
struct io_checkpoint_files;
struct io_cluster;
struct io_disk_share;
struct io_disk_silence;
struct io_history_limit;
struct io_drain;
struct io_http;
struct io_membership;
struct io_peers;
struct io_refill;
struct io_server_calls;
struct io_shared_copies;
struct io_storage_alert;
struct io_trim;
struct io_watchers;
struct io_write_journal;

/* A process goes from STARTING over RUNNING and DRAINING to CLOSING; it may skip states, but never goes back. */
enum server_state { SERVER_STARTING, SERVER_RUNNING, SERVER_DRAINING, SERVER_CLOSING };

/*
 * The stage of life of the process. Written by start.c, server_health.c and drain.c in server/io/process;
 * notified_ready also by server/io/cluster/membership.c.
 */
struct io_life {
    enum server_state state;
    uint64_t started_ms; /* when it began to listen, by the loop's clock */
    uint64_t taken_ms;   /* when it became a shard, by the loop's clock */
    bool found;          /* the core was given all that is stored, and START */
    bool serving;        /* the health service says SERVING */
    bool notified_ready; /* the service manager was told that the start is over (notify.h) */
    bool signalled;      /* SIGTERM or SIGINT has come */
    bool core_drained;   /* the core has said DRAINED */
};

struct ampd_server {
    uv_loop_t loop;
    const struct ampd_server_options *options; /* &own_options, to be read */
    struct ampd_server_options own_options;    /* a copy, in which the shard's index and SIGHUP's changes are set */
    const struct amp_log *log;
    struct io_life life;
    char endpoint[256];      /* the address at which it listens, as clients get it (process/listen.c) */
    struct ampd_fence fence; /* the fence of this process as a shard (cluster/membership.c) */

    /* base */
    struct ampd_core *core;
    struct io_core_event core_event;
    struct io_pools pools;
    struct io_data data;
    struct io_counts counts;
    struct io_storage_alert *storage_alert;
    struct io_open_files open_files; /* for GetStatus (handle_status.c) */

    /* auth */
    struct ampd_auth *auth;
    struct io_admit *admit;

    /* cluster */
    struct io_membership *membership; /* NULL without etcd */
    /* Made by membership.c. NULL without etcd, before a place is asked for, and after it was given back. */
    struct io_cluster *cluster;
    struct io_peers *peers;   /* NULL without --peers and --cluster */
    struct io_refill *refill; /* NULL: the store is not being filled or compared */

    /* host */
    struct io_checkpoint_files *checkpoint_files;
    struct io_write_journal *write_journal;
    struct io_disk_share *disk_share;
    struct io_disk_silence *disk_silence;
    struct io_history_limit *history_limit;
    struct io_watchers *watchers;
    struct io_shared_copies *shared_copies; /* NULL: no shared memory */

    /* calls, http, process */
    struct io_server_calls *calls;
    struct io_alive_calls *alive;
    struct io_attachments *attachments;
    struct io_http *http;    /* NULL: there is no HTTP port */
    struct arpc_server *rpc; /* NULL: it does not listen yet, or no more (listen.c, drain.c) */
    struct io_drain *drain;
    struct io_trim *trim;
};

/* The core's clock, in which its times are: that of the loop, without the time in which the process stood still. */
static inline uint64_t io_core_now(const struct ampd_server *server)
{
    return uv_now(&server->loop) - server->core_event.behind_ms;
}

#endif
