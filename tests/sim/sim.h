/*
 * The simulator: workers (client/core) against the shards of a server (server/core) with a virtual clock, a network and
 * disks in memory, and one event a step, chosen by a seeded scheduler. One seed is one run, bit for bit.
 *
 *   model.c   what is trained: a random specification, gradients, and REF, the same training in a straight line
 *   server.c  the host of a shard's core: calls, streams, sessions; and its death
 *   disk.c    its jobs, store and files
 *   worker.c  the host of a worker's core and the program that trains with it; and its death
 *   check.c   the invariants of DESIGN section 2
 *   run.c     the scheduler
 */
#ifndef AMPD_SIM_H
#define AMPD_SIM_H

#include "amp/kernels.h"
#include "base/list.h"
#include "base/random.h"
#include "client/core/core.h"
#include "server/core/core.h"

#define SIM_WORLD_MAX          3
#define SIM_SHARDS_MAX         4
#define SIM_STEPS_MAX          12
#define SIM_EPOCHS_MAX         64
#define SIM_BLOCK_ELEMENTS_MAX 192 /* 64, 128 or 192, by seed: blocks of one and of several parameters */
#define SIM_CALLS_MAX          256
#define SIM_EVENTS_MAX         400000 /* a run that takes more does not end: invariant 7 */

/* ---- REF ---- */

/* The state after one step, computed in a straight line. */
struct sim_state {
    float *master, *m, *v; /* flat */
    uint64_t version;
    struct amp_scaler_state scaler;
};

/* What one process of a rank pushes for one step: a function of these numbers alone. */
struct sim_key {
    uint64_t step;
    uint32_t rank;
    uint32_t actor; /* which process of that rank; 0 when all push the same */
};

struct sim_model {
    struct ampd_model_spec spec; /* with defaults filled in */
    struct ampd_layout *layout;
    uint64_t seed;
    bool by_actor; /* processes of a rank have gradients of their own */
    struct sim_state states[SIM_STEPS_MAX + 1];
    uint64_t decided; /* states[0..decided] are filled */
};

void sim_model_init(struct sim_model *model, uint64_t seed);
void sim_model_close(struct sim_model *model);
/* The first value of an element. */
float sim_model_first(const struct sim_model *model, uint32_t parameter, uint64_t element);
bool sim_model_absent(const struct sim_model *model, const struct sim_key *key, uint32_t parameter);
enum amp_dtype sim_model_dtype(const struct sim_model *model, const struct sim_key *key);
/* Writes the scaled gradient of one parameter in the key's dtype. */
void sim_model_gradient(const struct sim_model *model, const struct sim_key *key, float scale, uint32_t parameter,
                        void *gradient);
/* Computes states[row->step] from the one before, and compares all of the row with it. Ends the program if not equal. */
void sim_model_step(struct sim_model *model, const struct ampd_step_row *row, const uint32_t *actors);

/* ---- the world ---- */

enum sim_call_kind { SIM_UNARY, SIM_CREATE, SIM_LOAD, SIM_PUSH, SIM_PULL, SIM_OBSERVE };

enum sim_message_type { SIM_REQUEST, SIM_BLOCK, SIM_END, SIM_HEADER, SIM_STATE, SIM_ENDED };

/* One message on a call's wire, in one of its directions. */
struct sim_message {
    struct amp_list node;
    enum sim_message_type type;
    uint64_t block;
    uint8_t *data;
    size_t size;
    struct ampd_event request;   /* REQUEST */
    char text[2][AMPD_NAME_MAX]; /* its strings */
    uint32_t *absent;            /* END */
    uint32_t absent_count;
    struct ampclient_event answer; /* HEADER, STATE, ENDED */
    struct amp_error error;
    struct ampclient_range *ranges;
    uint8_t *bytes;
};

/* One RPC. */
struct sim_call {
    bool used;
    uint64_t id; /* the server's number */
    enum sim_call_kind kind;
    uint32_t shard; /* that it goes to */
    uint32_t worker;
    uint32_t life;        /* of the worker that began it */
    uint64_t client_call; /* the client core's number; 0: the program's own */
    struct amp_list up, down;
    bool begun;       /* the server's core knows it */
    bool over;        /* answered or closed at the server */
    bool client_gone; /* the client waits for nothing any more */
    bool lost;        /* the client has been told that it is broken; the server may not know yet */
    /* grant */
    bool granted, revoked;
    uint8_t *listed; /* per block: 1 receive, 2 drop */
    struct ampd_push_grant push;
    struct ampd_load_grant load;
    struct ampd_pull_grant pull;
    uint64_t sent; /* pull: blocks sent */
    uint64_t *to_send, to_send_count;
    uint8_t *pull_memory; /* the client's */
    size_t pull_stride;
    struct ampclient_pull_header seen; /* OBSERVE */
    uint8_t *own;                      /* OBSERVE: its memory */
};

/* Something the server's host has been asked to do. */
struct sim_task {
    struct amp_list node;
    struct ampd_output output; /* PERSIST, RESTORE, CUT, JOB */
    struct ampd_step_row *row;
    struct ampd_epoch_record epoch;
    struct ampd_worker_record worker;
    struct ampd_checkpoint_record checkpoint;
    struct ampd_message *message; /* SEND */
    bool ran;                     /* a job that has run and is not reported yet */
    bool cancelled;
};

/* A checkpoint file. */
struct sim_file {
    bool used;
    uint64_t step;
    float *master, *m, *v;
    struct ampd_checkpoint_state state;
    uint64_t hash;
};

struct sim_store {
    bool has_model;
    uint64_t boots;
    uint64_t epoch, base_step, base_epoch;
    struct ampd_step_row rows[SIM_STEPS_MAX + 1]; /* valid rows of the present lineage, by step */
    uint64_t last_step;
    struct ampd_worker_record workers[SIM_WORLD_MAX];
    bool has_worker[SIM_WORLD_MAX];
    struct ampd_checkpoint_record checkpoints[SIM_STEPS_MAX + 1];
    uint32_t checkpoints_count;
    struct sim_file files[SIM_STEPS_MAX + 1]; /* by step: this shard's part */
    struct ampd_fence fences[SIM_SHARDS_MAX]; /* highest seen */
};

/* One process of the server. */
struct sim_shard {
    uint32_t index;
    struct ampd_core *core; /* NULL: it is down */
    uint64_t restart_ms, timer_ms;
    uint64_t block, blocks;        /* of the layout: first, and how many */
    uint64_t element, elements;    /* likewise */
    struct amp_list tasks, jobs;   /* what its core has asked for */
    struct amp_list inbox, outbox; /* messages from and to shard 0, in order; those to itself are in inbox */
    bool up;                       /* the session with shard 0 */
    struct sim_store store;
    uint64_t seen_epoch, seen_step;
};

enum sim_program {
    SIM_DEAD,
    SIM_DO_CREATE,
    SIM_WAIT_CREATE,
    SIM_DO_LOAD,
    SIM_WAIT_LOAD,
    SIM_DO_JOIN,
    SIM_DO_BEGIN,
    SIM_DO_PUSH,
    SIM_DO_END,
    SIM_DO_PULL,
    SIM_WAIT,
    SIM_FINISHED
};

struct sim_worker {
    uint32_t rank, life;
    struct ampclient_core *core;
    enum sim_program program, after; /* after: what WAIT goes on to */
    uint64_t restart_ms, pause_ms;
    uint64_t timer_ms;
    uint64_t epoch, step, version;
    float scale;
    struct sim_key key;
    void **gradients; /* [parameters] of the step in hand */
    uint32_t *order;  /* parameters still to be pushed */
    uint32_t order_count;
    bool state_given; /* the user state of the step */
    uint32_t loads;   /* streams of a load that are not answered */
    bool load_failed;
    uint64_t results;
};

struct sim {
    uint64_t seed;
    bool verbose;
    struct amp_random random;
    uint64_t now_ms;
    uint64_t events, trace; /* count, and a hash over everything that happened */
    struct sim_model model;
    uint32_t shards;
    struct sim_shard shard[SIM_SHARDS_MAX]; /* 0 coordinates */
    uint64_t last_call;
    uint64_t last_loader;
    struct sim_call calls[SIM_CALLS_MAX];
    struct sim_worker workers[SIM_WORLD_MAX];
    uint32_t actors[4096]; /* by incarnation counter: which life of its rank joined with it; reset at each boot */
    bool slow_disk;        /* files take long: cuts meet */
    uint32_t observers;    /* pulls of onlookers left */
    uint32_t server_kills, worker_kills, breaks, flips; /* faults left */
    uint32_t cuts, repeats;                          /* likewise: of sessions between shards, and messages said twice */
    struct ampd_epoch_record epochs[SIM_EPOCHS_MAX]; /* as the first shard has stored them */
    uint64_t steps_decided, steps_skipped, epochs_seen, applied_max;
    uint64_t durable_told; /* highest durable step that a worker was told, in the present lineage */
};

_Noreturn void sim_fail(const struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_trace(struct sim *sim, uint64_t a, uint64_t b);
uint64_t sim_below(struct sim *sim, uint64_t bound);

/* ---- server.c ---- */
void sim_server_init(struct sim *sim);
void sim_server_start(struct sim *sim, struct sim_shard *shard);
void sim_server_kill(struct sim *sim, struct sim_shard *shard);
void sim_server_event(struct sim *sim, struct sim_shard *shard, struct ampd_event *event);

/* ---- disk.c ---- */
void sim_task_free(struct sim_task *task);
void sim_disk_keep(struct sim_shard *shard, const struct ampd_output *output); /* to be done later */
void sim_disk_forget(struct amp_list *tasks);
void sim_disk_cancel(struct sim_shard *shard, uint64_t token);
void sim_disk_drop(struct sim_store *store, const struct ampd_checkpoint_record *record);
void sim_disk_close(struct sim *sim, struct sim_shard *shard);
/* One persist, file or job; false: nothing was done. */
bool sim_server_run_task(struct sim *sim, struct sim_shard *shard, uint64_t pick);
uint64_t sim_server_tasks(const struct sim_shard *shard);

/* ---- server.c: sessions and calls ---- */
/* The session of a shard with shard 0: its next message, its beginning and its end. */
void sim_session_deliver(struct sim *sim, struct sim_shard *shard, bool to_zero);
void sim_session_up(struct sim *sim, struct sim_shard *shard);
void sim_session_cut(struct sim *sim, struct sim_shard *shard);
bool sim_session_can_begin(const struct sim *sim, const struct sim_shard *shard);
struct sim_call *sim_call_new(struct sim *sim, enum sim_call_kind kind, uint32_t shard, uint32_t worker,
                              uint64_t client_call);
struct sim_message *sim_message_new(enum sim_message_type type);
void sim_message_free(struct sim_message *message);
bool sim_call_can_go_up(const struct sim *sim, const struct sim_call *call);
void sim_call_go_up(struct sim *sim, struct sim_call *call);
void sim_call_send(struct sim *sim, struct sim_call *call); /* the next listed block of a pull */
void sim_call_let_go(struct sim *sim, struct sim_call *call);
void sim_call_close(struct sim *sim, struct sim_call *call); /* the server sees the stream end */
void sim_call_lose(struct sim *sim, struct sim_call *call);  /* the client does; what it has sent may still arrive */
void sim_call_free(struct sim_call *call);
void sim_server_close(struct sim *sim);

/* ---- worker.c ---- */
void sim_worker_start(struct sim *sim, uint32_t w);
void sim_worker_kill(struct sim *sim, uint32_t w);
void sim_worker_answer(struct sim *sim, struct sim_call *call, struct sim_message *message);
/* Reads the bytes of a block of a push out of the worker's gradients, unless that was done before. */
void sim_message_fill(struct sim *sim, struct sim_call *call, struct sim_message *message);
void sim_worker_act(struct sim *sim, uint32_t w);
/* An onlooker pulls the newest version, at its own pace. */
void sim_observe(struct sim *sim);
bool sim_worker_can_act(const struct sim *sim, uint32_t w);
void sim_worker_tick(struct sim *sim, uint32_t w);
void sim_worker_close(struct sim *sim, uint32_t w);

/* ---- check.c ---- */
void sim_check_row(struct sim *sim, const struct sim_shard *shard, const struct ampd_step_row *row);
void sim_check_epoch(struct sim *sim, const struct sim_shard *shard, const struct ampd_epoch_record *epoch);
void sim_check_event(struct sim *sim);
void sim_check_result(struct sim *sim, const struct ampclient_core_result *result);
void sim_check_pulled(struct sim *sim, const struct sim_worker *worker);
void sim_check_observed(struct sim *sim, const struct sim_call *call);
void sim_check_file(struct sim *sim, const struct sim_shard *shard, const struct sim_file *file);
void sim_check_end(struct sim *sim);

/* ---- run.c ---- */
/* Runs one seed to its end; returns the trace hash. */
uint64_t sim_run(uint64_t seed, bool verbose);

#endif
