/*
 * The server process: one loop thread that runs the core and all connections, and threads for compute, the store and
 * files. Nothing here decides anything about training: events go into server/core, and what it asks for is done.
 *
 *   loop thread     rpc, the core, this room
 *   compute         jobs of the core: blocks of the vote and apply passes
 *   writer          the store's writing handle, in the order that the core gave
 *   reader          the store's reading handle: pages of history
 *   files           checkpoint files: written in the background, read at start
 *   journal         votes of models with durability step, synced before they leave; read at start
 */
#ifndef AMPD_IO_SERVER_H
#define AMPD_IO_SERVER_H

#include "base/err.h"
#include "base/list.h"
#include "base/log.h"
#include "server/core/core.h"
#include "server/io/auth_gate.h"
#include "server/io/etcd_access.h"
#include "server/io/metrics.h"
#include "server/io/open_files.h"
#include "server/io/threads.h"
#include "storage/checkpoint.h"
#include "storage/datadir.h"
#include "storage/store.h"

#include <stdatomic.h>
#include <uv.h>

struct amp_kernels;
struct arpc_server;
struct ampd_journal;
struct io_cluster;
struct io_cluster_url;
struct io_http;
struct io_peers;
struct io_place;
struct io_trouble;

/* Bits of arpc_method.roles (auth_rules.h names who has which). Where nobody is asked, everybody has all of them. */
#define AMPD_ROLE_WORKER   1u
#define AMPD_ROLE_OPERATOR 2u
#define AMPD_ROLE_READER   4u
#define AMPD_ROLE_PEER     8u

/* Exit codes of the program. */
enum {
    AMPD_EXIT_OK = 0,
    AMPD_EXIT_FAILED = 1,
    AMPD_EXIT_USAGE = 2,
    AMPD_EXIT_DATA_DIR = 3,
    AMPD_EXIT_LOST = 4 /* the place in the cluster: start it again */
};

#define AMPD_VERSION "0.1.0"

/* Times of connections, by gRPC's names (gRFC A8, A9; rpc/arpc_server.h), and of workers. */
enum ampd_time {
    AMPD_TIME_KEEPALIVE,
    AMPD_TIME_KEEPALIVE_TIMEOUT,
    AMPD_TIME_MIN_PING_INTERVAL,
    AMPD_TIME_CONNECTION_IDLE,
    AMPD_TIME_CONNECTION_AGE,
    AMPD_TIME_CONNECTION_AGE_GRACE,
    AMPD_TIME_WORKER_LEASE,  /* STEP section 1 */
    AMPD_TIME_CLUSTER_LEASE, /* of a place in etcd (cluster.h) */
    AMPD_TIMES_COUNT
};

struct ampd_server_options {
    const char *data_dir;
    const char *checkpoint_dir; /* NULL: the data directory */
    bool joins;                 /* --epoch-above: an empty data directory is filled from another shard, and its */
    uint64_t epoch_above; /* new epochs are above this; with `cluster` it is filled anyhow, and etcd knows the epochs */
    const char *listen;   /* host:port or unix:/path */
    const char *metrics_listen; /* server/io/http.h; NULL: its default */
    struct ampd_auth_options auth;
    int64_t times_ms[AMPD_TIMES_COUNT]; /* 0: the default of rpc, or of the core */
    uint32_t shards;                    /* how many there are */
    uint32_t shard;    /* which this is; with `cluster` IO_CLUSTER_ANY: any free one, until it has a place */
    const char *peers; /* addresses of all shards by index, with commas; or NULL */
    const struct io_cluster_url *cluster; /* where the shards find each other; or NULL. Neither: this is the only one */
    struct io_etcd_access etcd;           /* with `cluster` */
    const char *advertise;                /* where others find this process; NULL: where it listens */
    unsigned compute_threads;
    uint64_t memory_max; /* bytes of the tensors of all models; 0: no bound */
    const struct amp_kernels *kernels;
    const char *isa;
    struct amp_log *log; /* its write_cb must be safe from any thread; SetLogLevel changes its level */
};

/* From STARTING to DRAINING to CLOSING, never back. */
enum server_state { SERVER_STARTING, SERVER_RUNNING, SERVER_DRAINING, SERVER_CLOSING };

#define SERVER_CALL_BUCKETS 1024 /* of the table of calls; chains are short up to tens of thousands */

struct ampd_server {
    uv_loop_t loop;
    const struct ampd_server_options *options; /* own_options */
    struct ampd_server_options own_options;
    const struct amp_log *log;
    enum server_state state;
    uint64_t started_ms;
    struct ampd_datadir dir;
    const char *checkpoint_dir; /* where checkpoint files lie; shards may share it */
    struct ampd_store *store, *reader;
    struct ampd_fence fence;
    struct ampd_core *core;
    bool stepping; /* outputs of the core are being drained */
    bool found;    /* the core has heard of all that was stored */
    bool serving;  /* as health says */
    struct io_threads *compute, *writer, *readers, *files, *journal;
    struct ampd_journal *journals[AMPD_MODELS_MAX]; /* of the journal's thread; NULL: not opened yet */
    struct arpc_server *rpc;
    struct ampd_auth auth;
    char endpoint[256]; /* where it listens, as told to clients */
    struct amp_list calls[SERVER_CALL_BUCKETS];
    uint64_t last_call;                /* id given last */
    int64_t *join_us[AMPD_MODELS_MAX]; /* [world_size] when each rank joined this process, UTC; NULL: none has */
    struct amp_list watchers;
    struct amp_list alive; /* io_alive */
    struct amp_list cuts; /* checkpoint files being written */
    unsigned readings;    /* ReadCheckpoint streams */
    struct amp_list idle_jobs;
    uv_timer_t core_timer, drain_timer, expiry_timer, trim_timer, alive_timer;
    size_t tokens_expired; /* of the token file, when that was last looked at */
    uint64_t connections_trimmed; /* how many there had been when memory was last given back */
    uv_signal_t on_term, on_int, on_hup;
    int64_t grace_ms; /* draining: for calls under way, once the core has nothing left to do */
    bool core_drained;
    bool signalled;             /* SIGTERM or SIGINT has come */
    struct io_place *place;     /* these three: NULL: one shard alone */
    struct io_cluster *cluster; /* also NULL before the place is asked for, and after it was given back */
    struct io_peers *peers;
    unsigned fetchings; /* FetchRows streams */
    bool doubt;   /* another process has been this shard since its data were: the other shards are asked (join.h) */
    bool joining; /* the store has no model, and the other shards are asked for theirs (join.h) */
    struct io_trouble *trouble;
    struct io_http *http; /* NULL: it listens nowhere */
    struct io_metrics metrics;
    struct io_open_files open_files; /* as GetStatus tells it */
    bool handles_open;               /* timers and signals */
    atomic_bool stop_waiting;        /* tasks that wait for space on the disk give up: the process ends */
};

/* Runs the program until it is drained. Returns its exit code; what went wrong has been told on stderr in one line. */
int ampd_server_run(const struct ampd_server_options *options);

/* UTC now, microseconds since 1970. Any thread. */
int64_t ampd_utc_us(void);

/* Ends the process at once: what the disk holds is not known, or a rule is broken. Any thread. */
_Noreturn void ampd_server_fatal(const struct ampd_server *server, const char *what, const struct amp_error *error);

/* Opens the store in this data directory, which is made if it is not there. */
int ampd_server_open_storage(struct ampd_server *server, const char *path, struct amp_error *error);

/* Says by health, of the whole and of each service, whether calls are served. */
void ampd_server_set_health(struct ampd_server *server, bool serving);

/* ---- core_host.c ---- */

/*
 * Hands the core one event and does what it asks for. When called from within an output, the outputs that follow are done
 * by the outer call: what the output at hand points to is then no longer valid.
 */
void ampd_server_event(struct ampd_server *server, struct ampd_event *event);

/* What the store has, for ampd_server_recover. */
struct ampd_found {
    struct ampd_server *server;
    struct ampd_model_record *records; /* owned */
    size_t count;
    struct ampd_fence fences[AMPD_PARTS_MAX]; /* by shard; counter 0: none was seen */
};

/*
 * Aside (aside.h), of a struct ampd_found in which the server is set: reads the store, takes up what another process has left
 * (take_up.c), and removes what a crash has. 0 or an error; the caller frees what is owned in both cases.
 */
int ampd_server_find(void *found, struct amp_error *error);

/* Begins: the models and fences that were found, then START. 0; AMP_EEXHAUSTED: a model does not fit into memory_max. */
int ampd_server_recover(struct ampd_server *server, const struct ampd_found *found, struct amp_error *error);

/* ---- server.c ---- */

/* Opens the store of the data directory, with its reader. An exit code, with a text. */
int ampd_server_open_store(struct ampd_server *server, struct amp_error *error);

/* ---- persist.c ---- */

/* Does what the core wants stored, on the writer; in order. */
void ampd_server_persist(struct ampd_server *server, const struct ampd_persist *persist);
void ampd_server_drop_checkpoint(struct ampd_server *server, const char *model,
                                 const struct ampd_checkpoint_record *checkpoint);

/* ---- purge.c ---- */

/* Takes the rows of deleted models out of the store, in portions between the writes of others. */
void ampd_server_purge(struct ampd_server *server);

/* A model is stored nowhere any more, and the core is about to forget it. */
void ampd_server_model_deleted(struct ampd_server *server, const char *model);

/*
 * Whether other processes may have been this shard, on other disks, and have left their checkpoint files where this one's are.
 * Then a start removes none: its catalogue may be of before them.
 */
bool ampd_server_shares_files(const struct ampd_server *server);

/*
 * All models are ready, so SYNC has let the catalogues pass: in such a directory, files that they do not name go, and what was
 * left of deletions. No effect elsewhere. What cannot be removed is left to the next process.
 */
void ampd_server_sweep(struct ampd_server *server);

/* At start, aside: the files that a crash has left of deletions. `records` are the models that there are. 0 or an error. */
int ampd_server_sweep_deleted(struct ampd_server *server, const struct ampd_model_record *records, size_t count,
                              struct amp_error *error);

/* ---- files.c ---- */

void ampd_server_cut(struct ampd_server *server, const struct ampd_cut_order *order);
void ampd_server_cut_blocks(struct ampd_server *server, const struct ampd_cut_blocks *blocks);
void ampd_server_cut_cancel(struct ampd_server *server, uint64_t token);
void ampd_server_drop_cuts(
    struct ampd_server *server); /* parts that a server which closes leaves; its threads are gone */
void ampd_server_restore(struct ampd_server *server, const struct ampd_restore_order *order);

/* All parameters of a model, with what of each a shard has. The caller frees the array. NULL: out of memory. */
struct ampd_checkpoint_target *ampd_server_targets(const struct ampd_restore_order *order);

/* ---- take_up.c ---- */

/* Where this shard's files of a model lie. */
struct ampd_checkpoint_place ampd_server_place(const struct ampd_server *server, const char *model);
/* Where the journal of a model is: on the disk of this process, whatever is shared. */
struct ampd_checkpoint_place ampd_server_journal_place(const struct ampd_server *server, const char *model);

/*
 * At start: checkpoints in the catalogue that are another shard's part, or were cut for another number of shards, become this
 * shard's: record->checkpoints are then its own. AMP_ESTATE, AMP_EDATALOSS: that cannot be, and the text says what is missing;
 * nothing has changed that a start as before would miss. AMP_EIO, AMP_ENOMEM, AMP_EEXHAUSTED.
 */
int ampd_server_take_up(struct ampd_server *server, struct ampd_model_record *record, struct amp_error *error);

/* ---- journal.c ---- */

void ampd_server_journal(struct ampd_server *server, const struct ampd_journal_order *order);
void ampd_server_replay(struct ampd_server *server, const struct ampd_replay_order *order);
void ampd_server_journal_prune(struct ampd_server *server, const char *model, uint64_t epoch, uint64_t step);

/* The model is deleted: its index and its name may be another one's soon. */
void ampd_server_journal_close(struct ampd_server *server, const char *model);

/* Once the journal's thread has ended. */
void ampd_server_journals_close(struct ampd_server *server);

/* ---- watch.c ---- */

/* A row of a model was stored: its watchers read on. */
void ampd_server_notify(struct ampd_server *server, uint32_t model);

/* Ends all watches: the server drains. */
void ampd_server_end_watches(struct ampd_server *server);

/* Ends those of one model: it is deleted. */
void ampd_server_end_watches_of(struct ampd_server *server, uint32_t model);

/* ---- admit.c ---- */

/* Who may call was read, or read anew: ends the calls that would not be let in now, and those of tokens as their time comes. */
void ampd_server_watch_tokens(struct ampd_server *server);

/* ---- trim.c ---- */

/* From now on what many connections took goes back to the system once they are gone. */
void ampd_server_watch_memory(struct ampd_server *server);

/* ---- drain.c ---- */

/* SIGTERM, SIGINT: the first drains, the second ends the process at once. SIGHUP: certificates and tokens are read anew. */
int ampd_server_watch_signals(struct ampd_server *server);

/* Begins the end, once the server runs: `cause` is for the log. No effect when it has begun. */
void ampd_server_drain(struct ampd_server *server, const char *cause, int64_t grace_ms);

/* The core has nothing left to do: connections are closed, then the loop ends. */
void ampd_server_drained(struct ampd_server *server);

/* Closes everything that is open; the loop must run afterwards until it is empty. */
void ampd_server_close(struct ampd_server *server);

#endif
