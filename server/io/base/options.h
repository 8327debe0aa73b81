/* The options of the server as server/config has read them, and the exit codes of the program. */
#ifndef AMPD_IO_OPTIONS_H
#define AMPD_IO_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct amp_kernels;
struct amp_log;
struct ampd_auth_options;
struct io_cluster_url;
struct io_etcd_access;

/*
 * Bits of arpc_method.roles: which roles may call an RPC (auth_rules.h). Without authentication a caller has all roles.
 */
#define AMPD_ROLE_WORKER   1u
#define AMPD_ROLE_OPERATOR 2u
#define AMPD_ROLE_READER   4u
#define AMPD_ROLE_PEER     8u

/* The sets of roles that proto/methods.def names. */
#define AMPD_ROLES_ANYONE   (AMPD_ROLE_WORKER | AMPD_ROLE_OPERATOR | AMPD_ROLE_READER)
#define AMPD_ROLES_WORKER   AMPD_ROLE_WORKER
#define AMPD_ROLES_OPERATOR AMPD_ROLE_OPERATOR
#define AMPD_ROLES_PEER     AMPD_ROLE_PEER
/* For RPCs that a shard also calls on shard 0, on behalf of its own client. */
#define AMPD_ROLES_ANYONE_OR_PEER (AMPD_ROLES_ANYONE | AMPD_ROLES_PEER)

/* Exit codes of the program. */
enum {
    AMPD_EXIT_OK = 0,
    AMPD_EXIT_FAILED = 1,
    AMPD_EXIT_USAGE = 2,
    AMPD_EXIT_DATA_DIR = 3,
    AMPD_EXIT_LOST = 4 /* the place in the cluster is lost: the process is to be started again */
};

/* Times of connections, under gRPC's names (gRFC A8, A9; rpc/arpc_server.h), of leases, and of the drain. */
enum ampd_time {
    AMPD_TIME_KEEPALIVE,
    AMPD_TIME_KEEPALIVE_TIMEOUT,
    AMPD_TIME_MIN_PING_INTERVAL,
    AMPD_TIME_CONNECTION_IDLE,
    AMPD_TIME_CONNECTION_AGE,
    AMPD_TIME_CONNECTION_AGE_GRACE,
    AMPD_TIME_WORKER_LEASE,  /* docs/step-protocol.md section 1 */
    AMPD_TIME_CLUSTER_LEASE, /* of a place in etcd (server/io/cluster/cluster.h) */
    AMPD_TIME_DRAIN,         /* server/io/process/drain.c; SIGHUP changes it for drains that begin later */
    AMPD_TIMES_COUNT
};

/* One option as it is in force, for clients that ask how the server is configured. */
struct ampd_option_value {
    const char *name;
    const char *value; /* "": none is given, and there is no default */
    const char *where; /* its source: "/etc/ampd/ampd.conf:12", "AMPD_LISTEN", "--listen" or "default" */
    bool reloads;      /* it is read again on SIGHUP */
};

/* Everything that members point to must outlive the server. */
struct ampd_server_options {
    const char *data_dir;
    const char *checkpoint_dir; /* NULL: the data directory */
    bool refills;         /* with `peers`: --epoch-above was given, so an empty store is filled from another shard */
    uint64_t epoch_above; /* with `refills`: new epochs of models are above this number. In etcd neither is needed */
    uint64_t fence_above; /* with `peers`: the fence of this start is above it; 0: one more than at the last start */
    const char *listen;   /* HOST:PORT or unix:/PATH of the gRPC port */
    const char *metrics_listen; /* the same of the HTTP port (server/io/http/http.h); NULL: its default */
    const struct ampd_auth_options *auth;
    int64_t times_ms[AMPD_TIMES_COUNT]; /* by enum ampd_time; 0: the default of what has it */
    uint32_t shards;                    /* of the cluster */
    uint32_t shard;    /* which this is; IO_CLUSTER_ANY (only with `cluster`): any free one, until it has a place */
    const char *peers; /* --peers: addresses of all shards by index, with commas; or NULL */
    const struct io_cluster_url *cluster; /* --cluster; or NULL. With neither peers nor cluster there is one shard */
    const struct io_etcd_access *etcd;    /* with `cluster`: how etcd is accessed */
    const char *advertise;                /* the address at which others reach this process; NULL: where it listens */
    unsigned compute_threads;
    uint64_t memory_max;            /* bound in bytes of the tensors of all models; 0: none */
    uint32_t checkpoint_memory;     /* percent of masters and moments, see core.h; 0: the default of the core */
    uint32_t checkpoint_disk_share; /* percent of the checkpoints' file system (disk_share.h); SIGHUP changes it */
    uint64_t history_rows;          /* most rows of a model's history; 0: no bound. SIGHUP changes it */
    int64_t history_age_ms;         /* oldest row of a history; 0: no bound. SIGHUP changes it */
    bool no_shared_memory;          /* workers on this machine send and get bytes like all others */
    const struct amp_kernels *kernels;
    const char *isa;                        /* name of the instruction set of `kernels` */
    struct amp_log *log;                    /* its write_cb must be safe on any thread; SetLogLevel changes its level */
    const struct ampd_option_value *values; /* [values_count]; only the loop's thread reads and changes them */
    size_t values_count;
    /*
     * Called on the loop at SIGHUP, before files are read again: reads the configuration file again, and puts what may
     * change into *running. NULL: there is no configuration file.
     */
    void (*reload_cb)(void *arg, struct ampd_server_options *running);
    void *reload_arg;
};

#endif
