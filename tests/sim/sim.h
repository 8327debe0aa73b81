/*
 * The simulator: workers (client/core) against the shards of a server (server/core) with a virtual clock, a network and
 * disks in memory, and one event a step, chosen by a seeded scheduler. One seed is one run, bit for bit.
 *
 *   model.c   what is trained: a random specification, gradients, and REF, the same training in a straight line
 *   sessions.c messages between shards; processes that were replaced and go on
 *   acts.c    an operator
 *   ends.c    processes that end in order
 *   losses.c  a disk that is lost, and epochs whose numbers are kept elsewhere
 *   snapshots.c an older copy of a shard's disk
 *   kinds.c   faults that a second generator draws, each kind of which can be left out
 *   asks.c    GetPushState at any moment
 *   floors.c  models that stop at the floor of their scale
 *   values.c  whose values an epoch has, and that a version names one state
 *   shared.c  workers that read versions where the servers write them
 *   leases.c  incarnations and leases, seen from outside
 *   silence.c a worker that does not ask whether its lease holds
 *   members.c workers that leave and come back, are evicted, or are put in quarantine
 *   server.c  the host of a shard's core: calls, streams, sessions; and its death
 *   disk.c    its jobs, store and files, and what a disk may do to them
 *   net.c     links that let nothing through for a while, ends that notice it or do not, calls that are made twice
 *   worker.c  the host of a worker's core and the program that trains with it; and its death
 *   check.c   the invariants of docs/architecture.md section 2
 *   run.c     the scheduler
 */
#ifndef AMPD_SIM_H
#define AMPD_SIM_H

#include "amp/kernels.h"
#include "base/list.h"
#include "base/random.h"
#include "client/core/client_core.h"
#include "server/core/core.h"
#include "server/core/model/states.h"

#define SIM_WORLD_MAX          3
#define SIM_SHARDS_MAX         4
#define SIM_STEPS_MAX          12
#define SIM_ZOMBIE             SIM_SHARDS_MAX /* the place of a process that was replaced and goes on */
#define SIM_EPOCHS_MAX         64
#define SIM_BLOCK_ELEMENTS_MAX 192 /* 64, 128 or 192, by seed: blocks of one and of several parameters */
#define SIM_CALLS_MAX          256
#define SIM_BOOTS_MAX          64  /* of the coordinator */
#define SIM_ACTORS_MAX         4096 /* Joins of one boot of the coordinator; a frozen model is joined again and again */
#define SIM_ACTS_MAX           64
#define SIM_EVENTS_MAX         400000 /* a run that takes more does not end */
#define SIM_VALUES             8      /* loaders with values of their own; the next one has those of the first again */
#define SIM_FULL_STEP          2      /* after which a full load is: one skipped, one applied */
#define SIM_KEEPALIVE_MS       20000  /* after at most this an end of a connection notices that nothing comes through */

/*
 * What must always hold. The names are printed with a violation; tests/sim/mutations says which mutation breaks which.
 * "2.1" to "2.7" are invariants in section 2 of docs/architecture.md, "step" is a section of docs/step-protocol.md.
 */
#define SIM_INVARIANTS(X)                                                                                              \
    X(SIM_ONE_VERDICT, "one-verdict")     /* 2.1: a step is decided once, and the same everywhere */                   \
    X(SIM_COUNTED_ONCE, "counted-once")   /* 2.2 */                                                                    \
    X(SIM_BITWISE, "bitwise")             /* 2.3: what REF computes, on every shard, in every answer and file */       \
    X(SIM_FINITE, "finite")               /* 2.4 */                                                                    \
    X(SIM_SCALE_HISTORY, "scale-history") /* 2.5: no gap, each row from the one before, in its bounds */               \
    X(SIM_DURABLE, "durable")             /* 2.6 */                                                                    \
    X(SIM_PROGRESS, "progress")           /* 2.7: the run ends, and nothing waits for ever */                          \
    X(SIM_ONE_ANSWER, "one-answer")       /* a call is answered once, and never with a fault of its sender's */        \
    X(SIM_INCARNATION, "incarnation")     /* step 1: never given twice */                                              \
    X(SIM_LEASE, "lease")           /* step 1: one that has ended stays ended, and one that nothing renews ends */     \
    X(SIM_FENCES, "fences")         /* step 1: only a process that was replaced is told so */                          \
    X(SIM_USER_STATE, "user-state") /* step 6: a Join gets that of the step that it begins after */                    \
    X(SIM_ACTS, "acts")             /* step 6: an act that was rolled back is told to be lost, and no other is */      \
    X(SIM_GONE, "gone")             /* a model that was deleted is nowhere, and does not come back */                  \
    X(SIM_ITSELF, "simulator")      /* the simulator's own trouble */

/*
 * Kinds of faults, and of models, that were added later: a second generator draws them, so that what the first one draws of a
 * seed stays as it was. `sim --without NAME` leaves one out, `--without all` all of them.
 */
#define SIM_KINDS(X)                                                                                                   \
    X(SIM_WEIGHTS, "weights") /* pushes of unlike weights, and some that have another one on one shard */              \
    X(SIM_SUMS, "sums")       /* gradients whose sum, or mean, is beyond the range */                                  \
    X(SIM_LOADS, "loads")     /* loaders with values of their own, and loads that break off */                         \
    X(SIM_AWAY, "away")       /* checkpoint files that are not there at a start, and come back */                      \
    X(SIM_READS, "reads")     /* reads of journals and checkpoints fail for a while */                                 \
    X(SIM_MEMORY, "memory")   /* a shard has no memory for the model before it gets more */                            \
    X(SIM_STARTS, "starts")   /* all processes die, and start in any order; one dies while an epoch begins */          \
    X(SIM_SILENCE, "silence") /* a worker whose lease has ended goes on without Join */                                \
    X(SIM_ASKS, "asks")       /* GetPushState at any moment, pushes that begin before the apply is over */             \
    X(SIM_ROWS, "rows")       /* in each seed: rows of epochs and acts are compared on all shards */                   \
    X(SIM_RATES, "rates")     /* pushes name the learning rate, and some another than the others of the step */        \
    X(SIM_FULL, "full")       /* two of three loaders bring a model that has made SIM_FULL_STEP steps elsewhere */            \
    X(SIM_SET_RATES, "set-rates") /* the operator sets the learning rate, too */                                       \
    X(SIM_FLOORS, "floors") /* the scale comes to its floor, where the model stops until an operator sets it */         \
    X(SIM_STATES, "states") /* workers give the user state of a step at any place among its pushes */                  \
    X(SIM_LEAVES, "leaves") /* workers leave, are evicted, and come back, under another name perhaps */                \
    X(SIM_SICK, "sick") /* one rank pushes Inf in each of the first steps, and the others never do */                  \
    X(SIM_SNAPSHOTS, "snapshots") /* a shard starts on an older copy of its disk, and the right one comes back */         \
    X(SIM_SHARED, "shared") /* workers read versions where the servers write them */

#define SIM_INVARIANT_ENUM(name, text) name,
enum sim_kind { SIM_KINDS(SIM_INVARIANT_ENUM) SIM_KINDS_COUNT };
enum sim_invariant { SIM_INVARIANTS(SIM_INVARIANT_ENUM) SIM_INVARIANTS_COUNT };

/* ---- REF ---- */

/* The state after one step, computed in a straight line. */
struct sim_state {
    float *master, *m, *v; /* flat */
    uint64_t version;
    struct ampd_carry carry;
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
    bool sums;     /* some gradients are beyond the range once they are summed */
    bool weights;  /* pushes have weights of their own */
    bool rates;    /* pushes name the learning rate of their step */
    bool sick;     /* the pushes of one rank are not finite up to a step, those of the others always are */
    uint32_t sick_rank;
    uint64_t sick_until;
    bool full;     /* some loads are full ones, */
    struct ampd_load_base base; /* after this step */
    struct sim_state states[SIM_STEPS_MAX + 1];
    uint64_t decided; /* states[0..decided] are filled */
};

void sim_model_init(struct sim_model *model, uint64_t seed);
bool sim_model_by_actor(uint64_t seed);
bool sim_model_quorum(uint64_t seed);
bool sim_model_shrinks(uint64_t seed);
void sim_model_close(struct sim_model *model);
float sim_model_weight(const struct sim_model *model, const struct sim_key *key);
double sim_model_rate(const struct sim_model *model, uint64_t step);
/* The first values, flat, of this one of SIM_VALUES loaders. */
void sim_model_first(const struct sim_model *model, uint64_t loader, float *master);
/* Whether a load is a full one, by the number of its loader; and its moments, beside these values. */
bool sim_model_is_full(const struct sim_model *model, uint64_t loader);
float sim_model_moment(uint32_t plane, float value);
/* Bits that the model draws for a key: of this kind, and at this place of it. */
uint64_t sim_model_bits(const struct sim_model *model, uint64_t kind, const struct sim_key *key, uint64_t place);
bool sim_model_absent(const struct sim_model *model, const struct sim_key *key, uint32_t parameter);
enum amp_dtype sim_model_dtype(const struct sim_model *model, const struct sim_key *key);
/* Writes the scaled gradient of one parameter in the key's dtype. */
void sim_model_gradient(const struct sim_model *model, const struct sim_key *key, float scale, uint32_t parameter,
                        void *gradient);
/* Computes states[row->step] from the one before, and compares all of the row with it. NULL, or what differs. */
const char *sim_model_step(struct sim_model *model, const struct ampd_step_row *row, const uint32_t *actors);

/* ---- the world ---- */

enum sim_call_kind { SIM_UNARY, SIM_CREATE, SIM_LOAD, SIM_PUSH, SIM_PULL, SIM_OBSERVE, SIM_ACT };

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
    struct ampd_metrics metrics;   /* END */
    struct ampclient_event answer; /* HEADER, STATE, ENDED */
    struct amp_error error;
    struct ampclient_range *ranges;
    uint8_t *bytes;
};

/* What a Push or a GetPushState names. */
struct sim_asked {
    uint64_t epoch, step;
    uint32_t rank;
    struct ampd_incarnation incarnation;
};

/* Blocks of a push that have come to a process. */
struct sim_got {
    struct sim_asked push;
    uint64_t blocks; /* bits */
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
    struct sim_asked asked; /* Push, GetPushState */
    struct amp_list up, down;
    bool begun;       /* the server's core knows it */
    bool over;        /* answered or closed at the server */
    bool client_gone; /* the client waits for nothing any more */
    bool lost;        /* the client has been told that it is broken; the server may not know yet */
    bool zombie;      /* it goes to the process that was replaced */
    bool half;        /* the server has closed it, and the client does not know yet */
    bool leaves;      /* a Leave */
    bool joins;       /* a Join of a worker's core */
    uint64_t client_ends_ms, server_ends_ms; /* when that end notices that nothing comes through; 0: it need not */
    uint64_t not_before_ms;                  /* a copy of another call: begins then at the earliest */
    uint64_t copy;                           /* the id of the call that is made of this one's messages, or 0 */
    /* grant */
    bool granted, revoked;
    uint8_t *listed; /* per block: 1 receive, 2 drop */
    struct ampd_push_grant push;
    bool has_terms; /* the next block of the push is voted on when it comes, by `terms` */
    struct ampd_vote_terms terms; /* has_terms: what the core said when the block before came */
    struct ampd_load_grant load;
    struct ampd_pull_grant pull;
    uint64_t sent; /* pull: blocks sent */
    uint64_t *to_send, to_send_count;
    uint32_t *crcs; /* per block: its CRC32C when it was listed */
    bool in_memory; /* pull: the worker reads the version where the server has it */
    uint8_t *pull_memory; /* the client's */
    size_t pull_stride;
    struct ampclient_pull_header seen; /* pulls */
    uint8_t *own;                      /* OBSERVE: its memory */
};

/* Something the server's host has been asked to do. */
struct sim_task {
    struct amp_list node;
    struct ampd_output output; /* PERSIST, RESTORE, CUT, JOB */
    struct ampd_step_row *row;
    uint8_t *notes; /* JOURNAL */
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
    bool gone; /* removed, though a catalogue that was taken back names it */
    bool away; /* not there, and back later */
    bool torn; /* a crash came while it was written */
    uint64_t step;
    float *master, *m, *v;
    struct ampd_checkpoint_state state;
    uint8_t manifest[16];
};

/* What a commit that was not synced has replaced: a power loss brings it back. */
struct sim_undo {
    struct amp_list node;
    enum ampd_persist_kind kind; /* VERDICT, WORKER, PARTS, ACT; CHECKPOINT: one that was dropped */
    uint64_t last_step;
    uint32_t acts_count, act_rows_count;
    bool has_worker;
    struct ampd_worker_record worker;
    struct ampd_checkpoint_record checkpoint;
};

/* A vote in a shard's journal. */
struct sim_record {
    bool used;
    struct ampd_vote_journal_key key;
    uint8_t *notes;
    uint64_t notes_size;
    float *g;
    uint64_t elements;
};

struct sim_store {
    bool has_model, deleting;
    uint64_t boots;
    uint64_t epoch, base_step, base_epoch;
    struct ampd_step_row rows[SIM_STEPS_MAX + 1]; /* valid rows of the present lineage, by step */
    uint64_t last_step;
    struct ampd_worker_record workers[SIM_WORLD_MAX];
    bool has_worker[SIM_WORLD_MAX];
    struct ampd_checkpoint_record checkpoints[SIM_STEPS_MAX + 1];
    uint32_t checkpoints_count;
    struct sim_file files[SIM_STEPS_MAX + 1];     /* by step: this shard's part */
    struct ampd_fence fences[SIM_SHARDS_MAX];     /* highest seen */
    struct sim_record journal[SIM_STEPS_MAX + 1]; /* by step */
    struct amp_list undo;                         /* newest last: commits since the last that was synced */
    struct ampd_act_record acts[AMPD_ACTIONS_MAX];
    uint32_t acts_count;
    struct ampd_step_row act_rows[SIM_ACTS_MAX]; /* SET and RESET, as stored: each behind the row of its step */
    uint32_t act_rows_count;
    uint64_t full_until_ms; /* the disk is full until then */
    uint64_t unreadable_until_ms;
    bool no_journal;        /* it has come with another disk, which has stored no epoch yet */
    bool lost;              /* it is another disk, and empty: what another shard has is put on it before a process starts */
    uint64_t lost_base_step, lost_last_step; /* as they were then: an answer may still be on its way */
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
    uint32_t peer;                 /* with which process of shard 0: 0, or SIM_ZOMBIE */
    bool fenced;                   /* it was told that another has its place: it ends */
    bool draining, drained;        /* it is to end, and may */
    bool left;                     /* it has ended in order, and is not back */
    uint64_t leave_ms;             /* when shard 0 has heard its first LEAVE, or is to end itself; 0: none */
    bool let_go_without;           /* shard 0 has let it go when it could have given the last checkpoint up */
    bool anew;                     /* this process has stored no epoch: of durability CHECKPOINT its memory is lost */
    uint64_t session_ms;           /* since when `up` */
    uint64_t lost_peers;           /* bits: sessions that are over, of which its core is not told yet */
    struct sim_store store;
    struct sim_file draft; /* the checkpoint file in the making, */
    uint64_t draft_left;   /* and how many blocks it lacks */
    struct sim_got got[SIM_WORLD_MAX]; /* by rank: the newest push of which a block has come to this process */
    uint64_t seen_epoch, seen_step;
    uint64_t seen_applied; /* of seen_epoch: the last step whose masters were compared with REF's */
};

/* From a worker to a shard, or from a shard to shard 0: nothing comes through before these times. */
struct sim_link {
    uint64_t up_until_ms, down_until_ms;
    uint64_t session_ends_ms; /* of shards: when the session that it carries is given up */
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
    SIM_DO_QUIT, /* its last push had weights or a rate that were refused, or another's was refused for its rate */
    SIM_FINISHED
};

struct sim_worker {
    uint32_t rank, life;
    uint32_t names; /* how often who has the rank has come under another name */
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
    uint32_t state_at; /* the user state of the step is given when so many of them are left */
    bool unlike;      /* a push of this process has had another weight, or rate, on one shard */
    bool wrong;       /* all pushes of this process name another rate than those of other ranks */
    bool silent;      /* it does not ask whether its lease holds, as long as it has */
    uint64_t silent_as[2]; /* this incarnation, */
    uint32_t lates;   /* and was told so often in a row that it came late */
    uint32_t loads;   /* streams of a load that are not answered */
    bool load_failed;
    uint64_t results;
    struct sim_map *map; /* what it has mapped; owned, or NULL */
};

/* Who sets scales and rolls back, one request at a time, each until it is answered. */
struct sim_operator {
    uint32_t left;
    bool asking, waits; /* a request is to be answered; a call of it is under way */
    uint64_t pause_ms;
    enum ampd_event_type type;
    struct ampd_note note;
    float scale;
    double lr;
    uint32_t rank;
    struct ampd_incarnation held; /* by whom the rank was, when the eviction was asked for */
    uint64_t epoch, step;
    char done[AMPD_REQUEST_ID_MAX]; /* the last SET, RESET or LR that was answered; "": none, or repeated already */
    enum ampd_event_type done_type;
    float done_scale;
    double done_lr;
};

/* What the last worker of a rank that left, or was evicted, has left behind. */
struct sim_left {
    struct ampd_incarnation incarnation;
    uint64_t epoch, step; /* the last that was decided then */
    uint64_t left_ms;     /* since when others may miss it, at the earliest */
    uint64_t gone_ms;     /* and since when a rank that is gone has been missed, at the latest, while `missed` */
    bool missed;
    enum ampd_lease_state lease; /* after the last event */
};

/* The rank that is sick, since shard 0 has started. */
struct sim_sick {
    bool based; /* what is decided is known: seen_epoch and seen_step */
    uint64_t seen_epoch, seen_step;
    char name[AMPD_NAME_MAX];
    uint32_t in_row, all;     /* its pushes that were not finite: in a row, and since its last quarantine */
    uint64_t health_until_ms; /* as the core has said last, */
    uint64_t until_ms;        /* and by this clock: 0, it has had no quarantine */
    struct ampd_incarnation incarnation; /* that was put in quarantine, */
    uint64_t epoch, step;                /* after this step */
};

/* Whether the run ends with DeleteModel, and how far that is. */
enum sim_end { SIM_KEEPS, SIM_DELETES, SIM_DELETING, SIM_DELETED };

/* An act, as shard 0 has stored it. */
struct sim_act {
    enum ampd_row_kind kind;
    uint64_t epoch, step, from_step;
    struct ampd_carry after;
    char request_id[AMPD_REQUEST_ID_MAX];
};

/* A lease as its worker may see it: from the answer to Join on, renewed by what comes to shard 0. */
struct sim_lease {
    struct ampd_incarnation incarnation;
    uint64_t until_ms;
};

struct sim {
    uint64_t seed;
    bool verbose;
    struct amp_random random;
    uint64_t now_ms;
    uint64_t events, trace; /* count, and a hash over everything that happened */
    struct sim_model model;
    uint32_t shards;
    struct sim_shard shard[SIM_ZOMBIE + 1]; /* 0 coordinates */
    uint64_t last_call;
    uint64_t last_loader;
    struct sim_call calls[SIM_CALLS_MAX];
    unsigned calls_end; /* none of those from here on is used */
    struct sim_worker workers[SIM_WORLD_MAX];
    /* by incarnation (boot, counter): which life of its rank joined with it */
    uint32_t actors[SIM_BOOTS_MAX][SIM_ACTORS_MAX];
    bool slow_disk;     /* files take long: cuts meet */
    bool rolls_back;    /* the operator does nothing else, mostly while the record of a part is being stored */
    bool takes_back;    /* the operator rolls back right behind what he has set, and then asks for it again */
    bool restarts;      /* shards are killed when they have voted, and much of what was said before comes again */
    bool opens_late;    /* above all what opened a step, to who has started and holds a vote */
    bool paused, voted; /* shard 0, after the last event: one is about to end; a verdict is being stored */
    uint32_t observers; /* pulls of onlookers left */
    uint32_t server_kills, worker_kills, breaks, flips; /* faults left */
    uint32_t cuts, repeats; /* likewise: of sessions between shards, and messages said twice */
    struct sim_operator operator;
    enum sim_end end;
    uint64_t delete_after; /* this step */
    struct sim_act acts[SIM_ACTS_MAX];
    uint32_t acts_count;
    struct ampd_carry newest;       /* what is handed on by the last row or act that shard 0 has stored */
    uint64_t rolled_back;           /* the last epoch that an operator has asked for */
    struct sim_lease leases[SIM_WORLD_MAX];
    struct sim_left left[SIM_WORLD_MAX];
    struct sim_sick sick;
    uint32_t leaves, quarantines; /* workers that may leave yet; how often a rank was put in quarantine */
    struct ampd_incarnation last_given;
    bool lease_over;             /* the event that is being taken comes of an incarnation whose lease has ended */
    bool recovers; /* the model, when the last event was over */
    struct amp_list late;        /* messages between shards that come a second time, whenever */
    uint32_t partitions, copies; /* links cut, calls made twice */
    uint32_t power_losses, disk_full, disk_errors, takeovers;
    uint32_t disks;   /* left: disks that are lost */
    uint64_t raised;  /* the highest epoch that was given out, where numbers are kept apart from the stores */
    uint64_t lost_epoch; /* a journal was lost in it, or in one before: what it was to keep */
    bool told;        /* a worker has a result: so parts of a checkpoint are known to all shards */
    uint32_t ends;    /* left: processes that are to end in order */
    uint64_t in_turn; /* bits: shards that are to be restarted, one after the other */
    bool loaded;      /* a loader was told so: checkpoint 0 is durable */
    bool destroyed;   /* a disk has destroyed a checkpoint: then what was durable may be lost */
    struct sim_link links[SIM_WORLD_MAX][SIM_SHARDS_MAX], peers[SIM_SHARDS_MAX];
    struct ampd_step_row *ledger[SIM_EPOCHS_MAX][SIM_STEPS_MAX + 1]; /* every verdict of any epoch, as first stored */
    uint64_t ranges[SIM_EPOCHS_MAX][SIM_STEPS_MAX + 1]; /* values beyond the cast's range before each of them */
    struct ampd_epoch_record epochs[SIM_EPOCHS_MAX];    /* as the first shard has stored them */
    uint64_t epochs_newest; /* number of it: stored by a shard */
    uint64_t steps_decided, steps_skipped, epochs_seen, applied_max;
    uint64_t durable_told; /* highest durable step that a worker was told, in the present lineage */
    uint32_t thaws;          /* acts asked for of a model that was frozen */
    uint64_t kinds;          /* bits: which the seed has */
    struct amp_random more;  /* what draws them */
    uint32_t unlike, silent, wrong; /* faults left */
    bool rates_differed;            /* a process was `wrong` */
    uint32_t load_breaks, early_pulls, aways, read_faults, read_cuts, starts, asks, moments;
    uint64_t away, away_until_ms;     /* bits: shards that files are away from */
    uint64_t limited, more_memory_ms; /* bits: shards that have no memory for the model until then */
    struct sim_snapshots *snapshots;  /* owned, or NULL */
    uint32_t snapshots_left;          /* how often an older copy may still be put in the place of a disk */
    bool snapshot_taken;              /* snapshots->copy is one, and is not in use yet */
    uint64_t snapshot_until_ms;       /* an older copy of a disk is in its place until then; 0: none is */
    uint64_t creating_ms;             /* since when it has been made, and nothing stood against that */
    float *values[SIM_VALUES];        /* of loaders: flat */
    uint8_t whose[SIM_EPOCHS_MAX];    /* bits: loaders whose values the epoch may begin with, by all that was seen of it */
    uint64_t pulled[SIM_EPOCHS_MAX][SIM_STEPS_MAX + 1][SIM_SHARDS_MAX]; /* by version: 1 + a hash of its bytes; 0: none */
    struct ampd_step_row *epoch_rows[SIM_EPOCHS_MAX];                   /* as first stored */
};

_Noreturn void sim_fail(const struct sim *sim, enum sim_invariant broken, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void sim_trace(struct sim *sim, uint64_t a, uint64_t b);
uint64_t sim_below(struct sim *sim, uint64_t bound);

/* ---- kinds.c ---- */
bool sim_without(const char *name); /* a kind, or all of them: not in any run to come. false: no such kind */
bool sim_has(uint64_t seed, enum sim_kind kind);
void sim_kinds_init(struct sim *sim, bool disturbed);
uint64_t sim_more(struct sim *sim, uint64_t bound); /* of the second generator */
void sim_kinds_fault(struct sim *sim);              /* before each event */
uint64_t sim_kinds_next(const struct sim *sim);     /* when something of it is due; UINT64_MAX: nothing is */
void sim_kinds_run(struct sim *sim);                /* what is due by now */

/* ---- floors.c ---- */
void sim_floors_spec(struct ampd_model_spec *spec, uint64_t seed);
bool sim_is_frozen(const struct sim *sim); /* and an operator is to do something about it */
bool sim_floors_refuse(const struct sim *sim, const struct amp_error *error); /* what a worker was told */
void sim_floors_choose(struct sim *sim); /* the operator's next act on such a model */
void sim_floors_check(struct sim *sim);  /* after every event */

uint64_t sim_memory_max(const struct sim *sim, const struct sim_shard *shard);
bool sim_is_limited(const struct sim *sim); /* some shard has no memory for the model */

/* ---- asks.c ---- */
void sim_asks_block(struct sim *sim, const struct sim_call *call, uint64_t block); /* of a push has come to its shard */
void sim_asks_reply(struct sim *sim, const struct sim_call *call, const struct ampd_reply *reply);
void sim_asks_act(struct sim *sim);
void sim_asks_push(struct sim *sim, uint32_t w, const struct ampclient_core_result *result); /* of the next step */

/* ---- values.c ---- */
void sim_values_init(struct sim *sim);
void sim_values_close(struct sim *sim);
bool sim_values_are_new(const struct sim *sim, uint64_t epoch, uint64_t version); /* as they were loaded */
bool sim_values_at(const struct sim *sim, uint64_t epoch, uint64_t step);         /* after which they were loaded */
void sim_values_epoch(struct sim *sim, const struct ampd_epoch_record *epoch);
/* Elements [from, to) of the model are these masters, or these bytes of the cast, before any step of the epoch was applied. */
void sim_values_masters(struct sim *sim, uint64_t epoch, uint64_t from, uint64_t to, const float *masters);
void sim_values_cast(struct sim *sim, uint64_t epoch, uint64_t from, uint64_t to, const void *bytes);
/* Bytes of a version that a shard has given out: all of that shard. */
void sim_values_pulled(struct sim *sim, uint64_t epoch, uint64_t version, uint32_t shard, const void *bytes);

/* ---- shared.c ---- */
extern const struct ampd_copy_memory sim_copy_memory;
void sim_map_begin(struct sim *sim, uint32_t w); /* a step is about to: the worker attaches, if it can and has not */
void sim_map_lost(struct sim_worker *worker);    /* what it has mapped stays, but a call of AttachMemory has ended */
void sim_map_process_ends(struct sim *sim, const struct sim_shard *shard);
void sim_map_free(struct sim_worker *worker);
/* Whether the process that a pull goes to has lent its copies to this incarnation. */
bool sim_map_serves(struct sim *sim, const struct sim_call *call, struct ampd_incarnation incarnation);
/* Where the worker sees a version; NULL: it is not lent anything any more. */
const void *sim_map_place(const struct sim_worker *worker, uint64_t version);
bool sim_map_took(struct sim *sim, struct sim_worker *worker); /* a step has begun. false: on bytes that were sent */
void sim_map_looks(struct sim *sim, struct sim_worker *worker); /* at the version in hand, while it computes */
void sim_map_counted(const struct sim *sim, const struct sim_worker *worker); /* its push */

/* ---- server.c ---- */
void sim_server_unchecked(void); /* the cores of all runs to come do not check themselves */
void sim_server_init(struct sim *sim, bool disturbed);
void sim_server_start(struct sim *sim, struct sim_shard *shard);
bool sim_server_knows(const struct sim_shard *shard); /* the model */
void sim_server_kill(struct sim *sim, struct sim_shard *shard);
void sim_server_event(struct sim *sim, struct sim_shard *shard, struct ampd_event *event);

/* ---- disk.c ---- */
void sim_task_free(struct sim_task *task);
void sim_disk_keep(struct sim *sim, struct sim_shard *shard, const struct ampd_output *output); /* to be done later */
void sim_disk_forget(struct amp_list *tasks);
void sim_disk_cancel(struct sim_shard *shard, uint64_t token);
void sim_disk_drop(struct sim_store *store, const struct ampd_checkpoint_record *record);
void sim_disk_remove(struct sim *sim, struct sim_shard *shard, const struct ampd_checkpoint_record *record);
bool sim_disk_is_full(const struct sim *sim, const struct sim_shard *shard);
void sim_disk_close(struct sim *sim, struct sim_shard *shard);
/* A crash comes while files are written. */
void sim_disk_tear(struct sim *sim, struct sim_shard *shard);
void sim_disk_synced(struct sim_store *store);                  /* all commits so far are */
void sim_disk_delete(struct sim *sim, struct sim_shard *shard); /* the model and its files */
/* What was not synced is gone. */
void sim_disk_power_loss(struct sim *sim, struct sim_shard *shard);
/* One persist, file or job; false: nothing was done. */
bool sim_server_run_task(struct sim *sim, struct sim_shard *shard, uint64_t pick);
uint64_t sim_server_tasks(const struct sim_shard *shard);
/* How many of them can be picked now: on a full disk the jobs alone. */
uint64_t sim_server_ready(const struct sim *sim, const struct sim_shard *shard);

/* ---- journal.c ---- */
void sim_journal_keep(struct sim_task *task, const struct ampd_vote_journal_order *order);
void sim_journal_write(struct sim_shard *shard, const struct sim_task *task);
void sim_journal_read(struct sim *sim, struct sim_shard *shard, const struct sim_task *task);
void sim_journal_prune(struct sim_shard *shard, uint64_t epoch, uint64_t step);
void sim_journal_forget(struct sim_store *store);
void sim_journal_copy(struct sim_store *store); /* a copied one gets records of its own */
/* A crash: a record that was on its way may be there, or not. Before the core is freed. */
void sim_journal_crash(struct sim *sim, struct sim_shard *shard);

/* ---- server.c: sessions and calls ---- */
struct sim_shard *sim_process(struct sim *sim, const struct sim_call *call); /* that it goes to */
struct sim_call *sim_call_new(struct sim *sim, enum sim_call_kind kind, uint32_t shard, uint32_t worker,
                              uint64_t client_call);
struct sim_message *sim_message_new(enum sim_message_type type);
void sim_message_free(struct sim_message *message);
bool sim_call_can_go_up(struct sim *sim, const struct sim_call *call);
void sim_call_go_up(struct sim *sim, struct sim_call *call);
void sim_call_send(struct sim *sim, struct sim_call *call); /* the next listed block of a pull */
void sim_call_let_go(struct sim *sim, struct sim_call *call);
void sim_call_close(struct sim *sim, struct sim_call *call); /* the server sees the stream end */
void sim_call_lose(struct sim *sim, struct sim_call *call);  /* the client does; what it has sent may still arrive */
void sim_call_free(struct sim_call *call);
void sim_server_close(struct sim *sim);

/* ---- told.c ---- */
/* What a worker tells of its step: loss and metrics. */
struct ampd_metrics sim_told(const struct sim_model *model, const struct sim_key *key);
/* NULL, or what of a row is not the mean of that; a key for each contributor. */
const char *sim_told_differs(const struct sim_model *model, const struct ampd_step_row *row,
                             const struct sim_key *keys);

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
void sim_worker_end(struct sim *sim, uint32_t w); /* it dies, and none comes in its place */
void sim_worker_close(struct sim *sim, uint32_t w);

/* ---- acts.c ---- */
void sim_operator_act(struct sim *sim);
void sim_operator_answer(struct sim *sim, const struct sim_message *message);
/* Shard 0 answers a request of his. */
void sim_check_act_reply(const struct sim *sim, const struct ampd_reply *reply);
void sim_act_stored(struct sim_store *store, const struct ampd_step_row *row, uint64_t base_epoch);
void sim_acts_supersede(struct sim_store *store, const struct ampd_epoch_record *epoch);
void sim_check_act(struct sim *sim, const struct sim_shard *shard, const struct ampd_step_row *row);
/* A shard stores this verdict: it has the rows of all acts before it, each once. */
void sim_check_acts_of(struct sim *sim, const struct sim_shard *shard, const struct ampd_step_row *row);
const struct ampd_carry *sim_act_in_force(const struct sim *sim, uint64_t epoch, uint64_t step);

/* ---- silence.c ---- */
void sim_silent_begin(struct sim *sim, struct sim_worker *worker); /* perhaps: it has a step in hand */
void sim_silent_hears(struct sim_worker *worker);                  /* what it is told, if it has joined again */
void sim_silent_answer(struct sim *sim, uint32_t w, const struct ampclient_output *output); /* a KeepAlive, itself */
bool sim_leaves_ranks_out(const struct sim *sim); /* steps go on without some ranks */
void sim_check_late(struct sim *sim, struct sim_worker *worker, const struct ampclient_core_result *result);

/* ---- members.c ---- */
bool sim_member_leaves(struct sim *sim, uint32_t w); /* instead of what it would do next */
void sim_member_name(struct sim *sim, uint32_t w, char *name, size_t size); /* of a process that starts */
uint64_t sim_member_instance(const struct sim *sim, uint32_t w);
bool sim_member_is_taken(const struct sim *sim, int code, const struct amp_error *error);
bool sim_member_waits(const struct sim *sim, uint32_t w, const struct amp_error *error);
void sim_members_boot(struct sim *sim); /* shard 0 starts */
void sim_members_row(const struct sim *sim, const struct ampd_step_row *row); /* shard 0 stores it */
void sim_members_reply(const struct sim *sim, const struct sim_call *call, const struct ampd_reply *reply);
void sim_members_stepped(struct sim *sim, const struct ampd_event *event); /* shard 0 has taken it */

/* ---- leases.c ---- */
/* What comes to shard 0, before it is taken; what it answers; and the workers after a tick. */
void sim_lease_event(struct sim *sim, const struct ampd_event *event);
void sim_lease_reply(struct sim *sim, const struct ampd_reply *reply);
void sim_lease_stepped(struct sim *sim, const struct ampd_event *event);
void sim_lease_boot(struct sim *sim); /* shard 0 starts */

/* ---- sessions.c ---- */
uint32_t sim_position(const struct sim *sim, const struct sim_shard *shard);
/* A message waits in its session, or is lost with it. */
void sim_session_keep(struct sim *sim, struct sim_shard *shard, const struct ampd_message *message);
/* The session of a shard with shard 0: its next message, its beginning and its end. */
void sim_session_deliver(struct sim *sim, struct sim_shard *shard, bool to_zero);
void sim_session_up(struct sim *sim, struct sim_shard *shard);
void sim_session_cut(struct sim *sim, struct sim_shard *shard);
void sim_session_end(struct sim *sim, struct sim_shard *shard); /* all of a process that ends */
void sim_session_late(struct sim *sim, uint64_t pick);          /* a message that comes once more */
uint64_t sim_session_late_count(const struct sim *sim);
void sim_session_open_late(struct sim *sim); /* an OPEN, to a shard that has started and holds a vote */
bool sim_session_can_begin(const struct sim *sim, const struct sim_shard *shard);
/* The process is replaced by another one with its disk, and goes on. */
bool sim_zombie_can_rise(const struct sim *sim, const struct sim_shard *shard);
void sim_zombie_rise(struct sim *sim, struct sim_shard *shard);
void sim_zombie_close(struct sim *sim); /* frees what it has left */
bool sim_is_zombie(const struct sim *sim, const struct sim_shard *shard);

/* ---- ends.c ---- */
bool sim_ends_in_order(uint64_t seed);
void sim_ends_act(struct sim *sim);                          /* what happens between two events */
void sim_ends_event(struct sim *sim);                        /* after each event */
void sim_ends_row(struct sim *sim);                          /* shard 0 stores a verdict */
void sim_ends_end(struct sim *sim, struct sim_shard *shard); /* DRAINED: the process is gone */
void sim_ends_lost(struct sim_shard *shard, uint32_t peer);  /* a session is over */
/* A process of the shard starts; a message of another shard comes to shard 0; one of shard 0 is sent. */
void sim_ends_start(struct sim *sim, struct sim_shard *shard);
void sim_ends_taken(struct sim *sim, const struct ampd_message *message);
void sim_ends_said(struct sim *sim, const struct sim_shard *zero, const struct ampd_message *message);
bool sim_ends_under_way(const struct sim *sim);

/* ---- losses.c ---- */
bool sim_loses_disks(uint64_t seed);
bool sim_disk_lose(struct sim *sim, struct sim_shard *shard);  /* perhaps; false: nothing was done */
void sim_disk_check(struct sim *sim); /* whether a lost one could be filled from any other */
bool sim_disk_refill(struct sim *sim, struct sim_shard *shard); /* before it starts; false: it must wait */
void sim_raise_epoch(struct sim *sim, struct sim_shard *shard, const struct sim_task *task);

/* ---- snapshots.c ---- */
bool sim_snapshots_fit(uint64_t seed); /* whether its run may have older copies: nothing durable is on one disk alone */
void sim_snapshots_init(struct sim *sim);
void sim_snapshots_close(struct sim *sim);
void sim_snapshots_fault(struct sim *sim);
void sim_snapshots_stored(struct sim *sim, const struct sim_shard *shard); /* the shard has stored something */
bool sim_snapshots_away(const struct sim *sim, const struct sim_store *store); /* it is an older copy now */
void sim_snapshots_run(struct sim *sim);

/* ---- net.c ---- */
bool sim_net_up(const struct sim *sim, const struct sim_call *call);   /* messages to the server come through */
bool sim_net_down(const struct sim *sim, const struct sim_call *call); /* messages to the client */
bool sim_net_session_up(const struct sim *sim, uint32_t k);            /* from shard k to shard 0 */
bool sim_net_session_down(const struct sim *sim, uint32_t k);
void sim_net_partition(struct sim *sim);                    /* of some parties, for some time */
void sim_net_begin(struct sim *sim, struct sim_call *call); /* a call over a link that may let nothing through */
uint64_t sim_net_next(const struct sim *sim);
void sim_net_run(struct sim *sim); /* what is due by now: links come back, ends give up */
/* Of a call that begins: perhaps it is made a second time, later, by something that got no answer. */
void sim_net_copy(struct sim *sim, struct sim_call *call, const struct sim_message *message);

/* ---- check.c ---- */
void sim_check_row(struct sim *sim, const struct sim_shard *shard, const struct ampd_step_row *row);
void sim_check_epoch(struct sim *sim, const struct sim_shard *shard, const struct ampd_epoch_record *epoch);
void sim_check_event(struct sim *sim);
void sim_check_epoch_row(struct sim *sim, const struct sim_shard *shard, const struct ampd_step_row *row);
bool sim_same_carry(const struct ampd_carry *a, const struct ampd_carry *b);
void sim_check_result(struct sim *sim, const struct ampclient_core_result *result);
void sim_check_pulled(struct sim *sim, const struct sim_worker *worker);
bool sim_pulled_differs(const struct sim *sim, const struct sim_worker *worker); /* from REF */
void sim_check_observed(struct sim *sim, const struct sim_call *call);
void sim_check_file(struct sim *sim, const struct sim_shard *shard, const struct sim_file *file);
void sim_check_gone(struct sim *sim);
void sim_check_end(struct sim *sim);
uint64_t sim_check_result_hash(const struct sim *sim); /* of the final checkpoint, all parts */
void sim_check_close(struct sim *sim);

/* ---- run.c ---- */
enum sim_faults { SIM_UNDISTURBED, SIM_DISTURBED };

/* Runs one seed to its end; returns the trace hash. *result: a hash of the final tensors, version and scale record. */
uint64_t sim_run(uint64_t seed, enum sim_faults faults, bool verbose, uint64_t *result);
bool sim_has_operator(uint64_t seed);
bool sim_rolls_back(uint64_t seed); /* one seed in 16 each */
bool sim_takes_back(uint64_t seed);
bool sim_is_large(uint64_t seed); /* some masters are beyond the range of f16 */
bool sim_restarts(uint64_t seed);
bool sim_ends_deleted(uint64_t seed);
/* Whether the result must be that of a run without faults: the same pushes count in each step of both. */
bool sim_has_one_result(uint64_t seed);

#endif
