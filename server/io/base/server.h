/*
 * The server process: one loop thread that runs the core and all connections, and threads for compute, the store and
 * files (pools.h). Nothing here decides anything about training: events go into server/core (core_event.h), and what it
 * asks for is done.
 *
 * struct ampd_server is what all of it hangs on. Each part belongs to one file, which alone writes it; the parts of the
 * folders above are known here by their names alone, and lie in memory of process/start.c. On the loop's thread, but
 * for what the header of a part says.
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
struct io_history_limit;
struct io_drain;
struct io_http;
struct io_jobs;
struct io_membership;
struct io_peers;
struct io_refill;
struct io_server_calls;
struct io_shared_copies;
struct io_storage_alert;
struct io_trim;
struct io_watchers;
struct io_write_journal;

/* From STARTING to DRAINING to CLOSING, never back. */
enum server_state { SERVER_STARTING, SERVER_RUNNING, SERVER_DRAINING, SERVER_CLOSING };

/* How far the process is. Written by start.c, server_health.c, drain.c, and told_ready by membership.c, too. */
struct io_life {
    enum server_state state;
    uint64_t started_ms; /* of the loop's clock */
    bool found;          /* the core has heard of all that was stored */
    bool serving;        /* as health says */
    bool told_ready;     /* the service manager has heard it */
    bool signalled;      /* SIGTERM or SIGINT has come */
    bool core_drained;
};

struct ampd_server {
    uv_loop_t loop;
    const struct ampd_server_options *options; /* own_options */
    struct ampd_server_options own_options;
    const struct amp_log *log;
    struct io_life life;
    char endpoint[256];      /* where it listens, as told to clients (listen.c) */
    struct ampd_fence fence; /* of this shard's processes, this one's (membership.c) */

    /* base */
    struct ampd_core *core;
    struct io_core_event core_event;
    struct io_pools pools;
    struct io_data data;
    struct io_counts counts;
    struct io_storage_alert *storage_alert;
    struct io_open_files open_files; /* as GetStatus tells it (handle_status.c) */

    /* auth */
    struct ampd_auth *auth;
    struct io_admit *admit;

    /* cluster. The first three are NULL in one shard alone */
    struct io_membership *membership;
    struct io_cluster *cluster; /* membership.c; also NULL before the place is asked for, and after it was given back */
    struct io_peers *peers;
    struct io_refill *refill; /* NULL: the store is not being filled */

    /* host */
    struct io_jobs *jobs;
    struct io_checkpoint_files *checkpoint_files;
    struct io_write_journal *write_journal;
    struct io_disk_share *disk_share;
    struct io_history_limit *history_limit;
    struct io_watchers *watchers;
    struct io_shared_copies *shared_copies; /* NULL: there are none */

    /* calls, http, process */
    struct io_server_calls *calls;
    struct io_alive_calls *alive;
    struct io_attachments *attachments;
    struct io_http *http;    /* NULL: it listens nowhere */
    struct arpc_server *rpc; /* NULL: not yet, or no more (listen.c, drain.c) */
    struct io_drain *drain;
    struct io_trim *trim;
};

#endif
