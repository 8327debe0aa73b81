/* What the command line says, and how the program ends. */
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

/* Bits of arpc_method.roles (auth_rules.h names who has which). Where nobody is asked, everybody has all of them. */
#define AMPD_ROLE_WORKER   1u
#define AMPD_ROLE_OPERATOR 2u
#define AMPD_ROLE_READER   4u
#define AMPD_ROLE_PEER     8u

/* The words for them in proto/methods.def. */
#define AMPD_ROLES_ANYONE   (AMPD_ROLE_WORKER | AMPD_ROLE_OPERATOR | AMPD_ROLE_READER)
#define AMPD_ROLES_WORKER   AMPD_ROLE_WORKER
#define AMPD_ROLES_OPERATOR AMPD_ROLE_OPERATOR
#define AMPD_ROLES_PEER     AMPD_ROLE_PEER
/* A shard asks it of shard 0, for a client of its own. */
#define AMPD_ROLES_ANYONE_OR_PEER (AMPD_ROLES_ANYONE | AMPD_ROLES_PEER)

/* Exit codes of the program. */
enum {
    AMPD_EXIT_OK = 0,
    AMPD_EXIT_FAILED = 1,
    AMPD_EXIT_USAGE = 2,
    AMPD_EXIT_DATA_DIR = 3,
    AMPD_EXIT_LOST = 4 /* the place in the cluster: start it again */
};

/* Times of connections, by gRPC's names (gRFC A8, A9; rpc/arpc_server.h), and of workers. */
enum ampd_time {
    AMPD_TIME_KEEPALIVE,
    AMPD_TIME_KEEPALIVE_TIMEOUT,
    AMPD_TIME_MIN_PING_INTERVAL,
    AMPD_TIME_CONNECTION_IDLE,
    AMPD_TIME_CONNECTION_AGE,
    AMPD_TIME_CONNECTION_AGE_GRACE,
    AMPD_TIME_WORKER_LEASE,  /* docs/step-protocol.md section 1 */
    AMPD_TIME_CLUSTER_LEASE, /* of a place in etcd (cluster.h) */
    AMPD_TIMES_COUNT
};

/* One option, for who asks the server how it is configured. */
struct ampd_option_value {
    const char *name;
    const char *value; /* "": nobody gives one, and there is no default */
    const char *where; /* "/etc/ampd/ampd.conf:12", "AMPD_LISTEN", "--listen" or "default" */
    bool reloads;      /* with SIGHUP */
};

/* All that is pointed to outlives the server. */
struct ampd_server_options {
    const char *data_dir;
    const char *checkpoint_dir; /* NULL: the data directory */
    bool refills;               /* --epoch-above: an empty data directory is filled from another shard, and its */
    uint64_t epoch_above; /* new epochs are above this; with `cluster` it is filled anyhow, and etcd knows the epochs */
    uint64_t fence_above; /* with `peers`: the fence of this start is above it (membership.c); 0: one above the last */
    const char *listen;   /* host:port or unix:/path */
    const char *metrics_listen; /* server/io/http/http.h; NULL: its default */
    const struct ampd_auth_options *auth;
    int64_t times_ms[AMPD_TIMES_COUNT]; /* 0: the default of rpc, or of the core */
    uint32_t shards;                    /* how many there are */
    uint32_t shard;    /* which this is; with `cluster` IO_CLUSTER_ANY: any free one, until it has a place */
    const char *peers; /* addresses of all shards by index, with commas; or NULL */
    const struct io_cluster_url *cluster; /* where the shards find each other; or NULL. Neither: this is the only one */
    const struct io_etcd_access *etcd;    /* with `cluster` */
    const char *advertise;                /* where others find this process; NULL: where it listens */
    unsigned compute_threads;
    uint64_t memory_max;            /* bytes of the tensors of all models; 0: no bound */
    uint32_t checkpoint_memory;     /* percent of masters and moments; 0: the default of the core */
    uint32_t checkpoint_disk_share; /* percent of its file system; SIGHUP changes it */
    uint64_t history_rows;          /* of a model; 0: all. SIGHUP changes it, and the next */
    int64_t history_age_ms;         /* 0: no matter how old */
    bool no_shared_memory;          /* workers of this host send and get bytes as all others do */
    const struct amp_kernels *kernels;
    const char *isa;
    struct amp_log *log; /* its write_cb must be safe from any thread; SetLogLevel changes its level */
    const struct ampd_option_value *values; /* [values_count]; the loop's thread alone reads and changes them */
    size_t values_count;
    /* SIGHUP, before all that reads files anew; on the loop. What may change is put into *running. NULL: no file. */
    void (*reload_cb)(void *arg, struct ampd_server_options *running);
    void *reload_arg;
};

#endif
