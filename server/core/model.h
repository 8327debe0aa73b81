/*
 * Inside the core: what one process and one model are made of. Private to server/core.
 *
 * Machines, one file each: calls (calls.c), loading (load.c), pushes and slots (push.c), pulls (pull.c), the shard
 * (shard.c), its memory (memory.c) and checkpoints (snapshot.c), workers and leases (workers.c), the coordinator (coord.c,
 * sync.c), and what operators ask of it (acts.c, rollback.c, delete.c). Coordinator and shards exchange messages (bus.c), also when they are in one process; fences.c says whose count,
 * resend.c repeats what a broken session may have lost.
 */
#ifndef AMPD_MODEL_H
#define AMPD_MODEL_H

#include "base/list.h"
#include "server/core/core.h"
#include "server/core/messages.h"
#include "server/core/spec.h"
#include "server/core/states.h"
#include "server/core/tensors.h"
#include "server/core/verdict.h"
#include "server/core/workers.h"

#define AMPD_SHARDS_MAX   AMPD_PARTS_MAX
#define AMPD_CALL_BUCKETS 4096 /* of the table of calls */
#define AMPD_RETRY_MS     200  /* RetryInfo of UNAVAILABLE: recovery and drain take about that */
#define AMPD_CUTS_MAX     4    /* checkpoints under way: one is written, one waits, and then a shard applies no more */
#define AMPD_CUT_BATCH    4    /* blocks given to the writer at a time: 3 MiB with AdamW, written in milliseconds */
#define AMPD_CUT_OUT_MAX  8    /* blocks that the writer may hold: it always has the next batch */
#define AMPD_SWEEP_MS     5000 /* how often calls that wait too long are looked for */
#define AMPD_HELD_PUSHES  4 /* held pushes of one rank: each keeps a user state; the newest takes the oldest's place */
/* Trailers that fit a process before this one: a client that lost an answer sends two, if it is called twice three. */
#define AMPD_VANISHED    3
#define AMPD_TROUBLE_MAX 512 /* a sentence with a model's name and a path */
#define AMPD_NO_RANK     UINT32_MAX
#define AMPD_NO_PLACE    UINT32_MAX
#define AMPD_BLOCK_BYTES 24 /* known of each block, apart from slots: pending, published, votes, serials, jobs */

enum ampd_call_kind {
    AMPD_CALL_UNARY,
    AMPD_CALL_PUSH,
    AMPD_CALL_PULL,
    AMPD_CALL_LOAD,
    AMPD_CALL_CHECKPOINT,
    AMPD_CALL_CREATE,
    AMPD_CALL_ROLLBACK,
    AMPD_CALL_DELETE
};

/* A call that has not been answered. */
struct ampd_call {
    struct amp_list link; /* in the table */
    struct amp_list node; /* in the model's list of its kind */
    uint64_t id;
    enum ampd_call_kind kind;
    enum ampd_call_state state;
    struct ampd_model *model;
    uint64_t begun_ms;
    struct ampd_reply *later;          /* REVOKING: the answer; owned */
    struct ampd_verdict_message *late; /* likewise, of a push that came late: of its step; owned */
    struct ampd_event_push push;
    uint8_t *user_state; /* of push; owned */
    struct ampd_event_pull pull;
    unsigned copy;       /* pull, STREAMING: which cast copy it reads, */
    uint64_t version;    /* and which version */
    bool unchanged;      /* pull: no blocks are sent */
    bool already_loaded; /* create: the model was there before */
    uint64_t loader;     /* load: its number */
    uint64_t step;       /* checkpoint: answered by one of this step or a later one */
};

/* A write that has been asked for. */
struct ampd_pending {
    struct amp_list node;
    uint64_t token;
    enum ampd_persist_kind kind;
    struct ampd_model *model;
    uint64_t call;                    /* answered afterwards, or 0 */
    struct ampd_worker_record worker; /* WORKER */
    uint64_t instance;                /* WORKER of a Join: the process that joins */
    char peer[AMPD_PEER_NAME_MAX];    /* WORKER of a Join: the address that it joins from */
    struct ampd_act_record act;       /* ACT */
    uint32_t shard;                   /* FENCE: whose, */
    struct ampd_fence fence;          /* and which */
};

/* What is known of another shard. */
struct ampd_peer {
    struct ampd_fence fence;   /* the highest seen, stored; counter 0: none */
    struct ampd_fence storing; /* a higher one that is being stored; counter 0: none */
    struct ampd_message *held; /* its last HELLO or SYNC, taken when the fence is stored; owned */
    uint64_t told;             /* the counter of a fence that was reported as too low */
    bool up;                   /* a session with it has begun, and is not over */
    uint64_t leaving;          /* shard 0: the counter of the fence that is about to end; 0: none */
    uint64_t let_go;           /* shard 0: ... and that was told that it may */
};

/* SYNC of a process: what it asked for, or was asked for. */
struct ampd_sync_round {
    uint64_t round;                        /* shard 0: number of the newest round, of SYNC or of a RESTORE alone */
    uint64_t current;                      /* shard 0: number of the newest SYNC */
    bool running;                          /* shard 0: not all have answered */
    bool unlearned;                        /* shard 0: another holds a model that there is no room for here */
    uint64_t done;                         /* shard 0: bits of those that have */
    uint64_t synced_with[AMPD_SHARDS_MAX]; /* shard 0: counter of the fence that answered last */
    uint64_t started;                      /* shard 0: bits of those that answer for the first time */
    uint64_t asked;                        /* the round that waits for our answer; 0: none */
    uint64_t seen;                         /* the newest round of the present coordinator */
};

/* The staging slot of one rank: what it pushes for the open step. */
struct ampd_slot {
    uint8_t *states;  /* [blocks of this shard] enum ampd_block_state */
    uint64_t present; /* blocks PRESENT for the open step */
    uint64_t writer;  /* the call that may write, or 0; until the host has let go */
    bool has_header;
    struct ampd_incarnation incarnation; /* whose bytes they are */
    enum amp_dtype dtype; /* of the bytes in the slot, also when the header is forgotten; NONE: there were none yet */
    float weight;
    bool ended;      /* the trailer is here */
    bool complete;   /* and every block is, or is absent */
    uint8_t *absent; /* bit per parameter, with ended; NULL: none */
    uint32_t absent_count;
    uint32_t vanished; /* a restart has taken what was told to be PRESENT: so many unfit trailers mean: ask again */
    struct ampd_segment_count *counts; /* [parameters] of the open step */
    uint8_t *user_state;
    uint32_t user_state_size;
};

struct ampd_bytes {
    uint8_t *data;
    uint32_t size;
};

/* The step that collects. */
struct ampd_open_step {
    enum ampd_step_state state; /* NONE, OPEN, CLOSED, VOTED */
    uint64_t fence;             /* with open.try_number: orders tries */
    struct ampd_open open;
    struct ampd_close close; /* CLOSED and later: the contributors and f */
    uint64_t hash;
    struct ampd_plan *plan;
    uint64_t votes_left; /* blocks whose vote pass is not done */
};

/* What jobs over all blocks are under way. */
enum ampd_bulk {
    AMPD_BULK_NONE,
    AMPD_BULK_APPLY,
    AMPD_BULK_LOAD,
    AMPD_BULK_RESTORE,
    AMPD_BULK_REPLAY,
    AMPD_BULK_VOID /* a restore has made it pointless: only its end is waited for */
};

/* Durability STEP: the way from a checkpoint to the last decided step, after a start or a RESTORE that came to nothing. */
struct ampd_replay {
    bool on;
    struct ampd_step_row
        *rows; /* decided in this epoch, from the newest checkpoint's step on; kept while it lasts; owned */
    uint32_t count, room, next; /* next: the one whose record is asked for; count: one more, not decided */
    bool scaler_set;
    struct amp_scaler_state scaler; /* after the newest row, whatever its kind */
    bool late_act;    /* an act was done while a step was open: that step goes on with the scale before it */
    float open_scale; /* of that step */
    uint64_t open_scale_id;
    uint64_t token; /* of the record that is being read; 0: none */
};

struct ampd_shard {
    enum ampd_memory_state memory;
    uint64_t epoch, base_epoch, base_step;
    uint64_t new_epoch; /* being stored; 0: none */
    bool stored;        /* the store has the model */
    bool taken;     /* RESTORE has taken a memory that checkpoint and journal can bring back; no epoch has followed */
    uint64_t round; /* of the last RESTORE, */
    bool restore_refused; /* which was of a checkpoint that is not here: the memory is as it was before */
    struct ampd_open_step step;
    enum ampd_step_state decided_state;   /* NONE, DECIDED, APPLIED */
    struct ampd_verdict_message *verdict; /* of decided_step, if decided in this epoch and process; owned */
    uint64_t decided_step;
    struct ampd_verdict_message *verdict_waits; /* the next one, being stored; owned */
    struct ampd_message *open_waits;            /* a newer OPEN that came meanwhile, and */
    struct ampd_message *close_waits;           /* its CLOSE; owned */
    struct ampd_plan *apply_plan;
    bool apply_waits; /* DECIDED, but its jobs are not out yet */
    uint64_t version; /* newest complete one */
    bool copy_valid[AMPD_COPIES];
    uint64_t copy_version[AMPD_COPIES];
    struct amp_scaler_state scaler;
    struct ampd_slot *slots; /* [world_size] */
    uint8_t *pending;        /* per block: holds bytes of decided_step that apply has not read */
    uint8_t *published;      /* per block, of the copy that is written now */
    uint8_t *vote_states;    /* per block: 0 not out, 1 out, 2 done */
    uint32_t *vote_serials;  /* per block: of the newest vote job */
    uint32_t *busy;          /* per block: jobs out */
    uint64_t jobs_out;
    enum ampd_bulk bulk;
    uint64_t bulk_left, bulk_serial;
    uint8_t *held;                       /* per block: apply waits for the checkpoint's writer */
    uint64_t held_count;                 /* of them; all are at or behind */
    uint64_t held_next;                  /* this one */
    uint64_t held_from_ms;               /* since when nothing of the apply has been out but those; 0: something is */
    struct ampd_applied applied;         /* range warnings of the last apply */
    struct ampd_bytes *user_states;      /* [world_size] of the last decided step */
    struct ampd_bytes *base_user_states; /* [world_size] of the step the epoch began from */
    /* the journal */
    uint64_t journal_token;              /* of the vote that is being written; g must stay. 0: none */
    struct ampd_journal_key journal_key; /* of it */
    struct ampd_vote *kept; /* VOTED before a restart: the vote; its slots' bytes are gone, step.plan is given; owned */
    struct ampd_replay replay;
    bool found_scaler; /* at the start: the record of the newest row, an act's perhaps; and */
    struct amp_scaler_state newest_scaler;
    bool late_act; /* whether a step was open then, with another scale than that */
    float open_scale;
    uint64_t open_scale_id;
    /* the checkpoint part that is written */
    enum ampd_snapshot_state snapshot;
    uint64_t snapshot_epoch, snapshot_step, snapshot_token;
    struct ampd_checkpoint_state snapshot_state; /* owns its user states */
    bool snapshot_void;                          /* STORING: a new epoch came meanwhile */
    struct ampd_checkpoint_record snapshot_record;
    uint8_t *cut_blocks;   /* per block: enum ampd_cut_block_state */
    uint32_t *cut_places;  /* per block: where it is saved, or AMPD_NO_PLACE */
    uint32_t *free_places; /* [free_count] of those for saved blocks */
    uint32_t free_count;
    uint64_t cut_next, cut_out, cut_left, cut_saving; /* blocks: next to be given out; OUT; not DONE; SAVING */
    uint64_t cut_held_ms;                             /* how long apply has stood still for it */
    bool part_over;                                   /* ENDING: the host has let go */
    /* the next one: apply must not go on before it begins */
    bool cut_waits;
    struct ampd_checkpoint_state cut_state; /* owns its user states */
    uint64_t cut_epoch;
    bool cut_is_asked; /* a CUT of step cut_asked came while another one waited */
    uint64_t cut_asked;
    /* restore */
    bool restore_waits;
    uint64_t restore_retry_ms; /* RESTORING, REPLAYING: when what could not be read is read again; 0: not */
    bool restore_missing;      /* the file was not there */
    char unread[AMPD_TROUBLE_MAX]; /* what cannot be read now, and what to do, as a sentence; "": nothing */
    uint64_t restore_token;
    struct ampd_checkpoint_record restore_record;
    struct amp_scaler_state restored_scaler;
    uint64_t restored_step, restored_version;
    /* load */
    uint64_t loader;     /* the call that writes masters, or 0 */
    uint64_t granted;    /* number of the loader that may in this epoch, or 0 */
    uint8_t *load_have;  /* per block */
    uint64_t load_count; /* of them */
    /* catalogue of this shard, ascending */
    struct ampd_checkpoint_record *checkpoints;
    uint32_t checkpoints_count, checkpoints_room;
    uint32_t parts_storing; /* PARTS of it that are not stored yet */
    /* told by the coordinator */
    uint64_t state_sequence;
    bool loaded, stalled, done, frozen;
    bool told_loaded; /* `loaded` is not only what was found on the disk, since the memory was last brought back */
    uint32_t missing_rank;
    bool troubled;   /* shard 0 has said that the model cannot be brought back now */
    bool sync_waits; /* the rest of the answer to SYNC that told of this model is owed */
    bool deleting;   /* everything about the model ends; then it is taken out of the store */
};

struct ampd_coord {
    enum ampd_coord_state state;
    uint64_t epoch, base_epoch, base_step;
    uint64_t parent_step; /* last one decided in the epoch before a start; 0: none */
    char reason[AMPD_REASON_MAX];
    uint64_t decided;               /* last decided step */
    uint64_t version;               /* after it */
    struct amp_scaler_state scaler; /* the record of the newest row that is stored: steps open with it */
    struct amp_scaler_state newest; /* of the newest one that is stored or being stored: the next row follows from it */
    bool has_record;                /* they are known: not so after a start, until SYNC is over */
    uint64_t new_epoch;             /* being stored on all shards; 0: none */
    uint64_t raise_token;           /* of the number that it gets, which is asked for; 0: none is */
    uint64_t base_version;          /* of the checkpoint that is being restored, */
    struct amp_scaler_state base_scaler; /* and its record: those of the model once the epoch is stored */
    uint32_t acts_storing;               /* acts that are not stored yet */
    uint32_t acts_count;                 /* since the last verdict: they travel with the next one */
    struct ampd_act acts[AMPD_ACTS_WAIT_MAX];
    uint64_t acts_calls[AMPD_ACTS_WAIT_MAX]; /* who asked */
    uint32_t acts_placed;                    /* of them have their step; the others wait for a verdict to be stored */
    uint32_t known_count;
    struct ampd_act_record known[AMPD_ACTS_MAX]; /* the newest, stored, oldest first */
    struct {
        bool active;          /* asked for, and its epoch is not stored */
        bool begun;           /* RESTORE has been sent; else the shards are asked whether they hold the checkpoint */
        uint64_t epoch, step; /* of the checkpoint */
        uint64_t held;        /* bits of the shards that do, */
        uint8_t manifests[AMPD_SHARDS_MAX][16]; /* and what their parts are */
        struct ampd_note note;
    } rollback;
    uint64_t restore_round; /* of RESTORE: its answers have it */
    uint64_t deleted;       /* bits of the shards that have deleted the model */
    enum ampd_step_state step;
    struct ampd_open open;
    bool opened_before; /* step NONE: it may have been open before a start or SYNC, with the scale that is in `open` */
    struct ampd_close close;
    uint64_t hash;
    uint64_t complete[AMPD_WORLD_MAX]; /* per rank: bit per shard */
    uint32_t complete_count;           /* ranks that are complete on all shards */
    float weights[AMPD_WORLD_MAX];
    uint64_t opened_ms, completed_ms[AMPD_WORLD_MAX]; /* of the present try; the latter where complete */
    uint64_t awaited_told_ms;                    /* when ranks that keep others waiting were last logged; 0: never */
    struct ampd_message *votes[AMPD_SHARDS_MAX]; /* owned */
    uint32_t votes_count;
    struct ampd_verdict_message *verdict; /* being stored, then the last one; owned */
    enum ampd_step_state decided_state;   /* NONE, DECIDED, APPLIED */
    uint64_t applied_bits;                /* shards that have applied `decided` */
    struct ampd_applied applied;          /* merged range warnings of the apply before */
    struct ampd_applied applying;         /* of the present one */
    bool unstable;
    bool cut_wanted; /* by a Checkpoint call: at the next verdict, or at the last decided step if none is near */
    struct {
        uint64_t step;
        uint64_t bits;                          /* shards whose part is done, */
        uint8_t manifests[AMPD_SHARDS_MAX][16]; /* and what it is */
    } cuts[AMPD_CUTS_MAX];
    uint32_t cuts_count;
    struct ampd_parts parts; /* that were told last; count 0: none */
    uint64_t parts_told;     /* 1 + the newest step of which all parts are there, so that PARTS has gone out; 0: none */
    uint64_t parts_known[AMPD_SHARDS_MAX]; /* 1 + the newest step of which the shard's store knows them; 0: none */
    uint64_t durable_step;
    bool has_checkpoint;
    uint64_t state_sequence;
    uint32_t missing_rank;
    struct ampd_message *synced[AMPD_SHARDS_MAX]; /* answers of SYNC; owned */
    uint64_t misfits;                             /* SYNC: bits of the shards whose answer cannot be of this model */
    uint64_t started;               /* SYNC: bits of those that have started since it was last decided on */
    uint64_t unread;                /* RESTORE: bits of those that cannot read the checkpoint now */
    uint32_t untried; /* SYNC: how many checkpoints of shard 0's answer, oldest first, have not been tried */
    char trouble[AMPD_TROUBLE_MAX]; /* SYNCING: why the model is refused, as a sentence; "": it is not */
    enum ampd_coord_state before;   /* SYNC: the state that it interrupted */
    uint64_t answered;              /* bits: of RESTORE, or of EPOCH */
    bool restore_failed;
    bool restore_absent;          /* a shard has dropped what was asked for since it answered SYNC */
    struct ampd_restore restored; /* what the first shard has told; all must agree */
    uint64_t loader;              /* number of the loader that has the grant of this epoch, or 0 */
    uint64_t loader_until_ms;     /* when another loader may take the grant, if no WANT comes before */
    uint64_t loaded_bits;
};

struct ampd_model {
    struct ampd_core *core;
    uint32_t index;
    struct ampd_model_spec spec;
    struct ampd_layout *layout;
    struct ampd_tensors tensors;
    struct ampd_shard shard;
    struct ampd_coord coord;                                                        /* used by shard 0 */
    struct ampd_worker *workers;                                                    /* [world_size], likewise */
    struct amp_list pushes, pulls, loads, checkpoints, creates, rollbacks, deletes; /* calls */
    int64_t created_us;                                                             /* UTC, for the records alone */
    uint64_t memory_bytes;                                                          /* counted in the core's */
    uint64_t alive_due_ms;  /* another shard: when the next ALIVE is due; 0: none is */
    uint64_t alive_told_ms; /* another shard: when the last ALIVE was sent */
    bool gone;             /* deleted: its place is free, and nothing finds it */
    struct amp_list grave; /* among the core's */
    uint32_t holds; /* calls, writes and the host that use it: specification and layout stay as long as it is not 0 */
};

struct ampd_core {
    struct ampd_core_config config;
    uint64_t now_ms;
    int64_t utc_us;
    bool started, draining, drained;
    struct ampd_model *models[AMPD_MODELS_MAX];
    uint32_t models_count;
    struct amp_list graves; /* models that are gone, whose places others have taken, until nobody holds them */
    struct ampd_peer peers[AMPD_SHARDS_MAX];
    struct ampd_sync_round sync;
    uint64_t misfit_ms;  /* when the log was last told of a message that fits no model; 0: never */
    bool fenced;         /* another process has this shard's place */
    uint64_t may_leave;  /* the counter of the fence of shard 0 that has let this process go; 0: none */
    bool leave_given_up; /* what it waited for is not there */
    bool leave_busy;     /* its threads had something to do when it last tried to end */
    uint64_t alone_ms;   /* leaving: how long the other side is waited for; 0: no longer, or it is there */
    uint64_t memory_bytes;
    struct amp_list outputs;      /* ampd_out_node */
    struct ampd_out_node *handed; /* the one that the host looks at */
    struct amp_list inbox;        /* messages to this shard */
    struct amp_list calls[AMPD_CALL_BUCKETS];
    uint32_t calls_count;
    struct amp_list pendings;
    uint64_t last_token;
    uint64_t last_incarnation;
    uint64_t timer_ms;     /* 0: none asked for */
    uint64_t sweep_ms;     /* next look at calls that wait; 0: none wait */
    uint64_t hello_ms;     /* another shard: when HELLO is said again; 0: shard 0 is not waited for */
    bool hello_heard;      /* another shard: the session's HELLO was answered */
    unsigned hello_agains; /* another shard: in a row, without a word of shard 0 */
};

#define AMPD_COUNT(core)      ((core)->config.shards)
#define AMPD_BIT(shard)       ((uint64_t)1 << (shard))
#define AMPD_ALL_SHARDS(core) (UINT64_MAX >> (64 - AMPD_COUNT(core)))

/* ---- core.c ---- */
/* Memory for a decision already taken: running out of it ends the process, and a restart recovers. */
void *ampd_need(void *memory);
void *ampd_copy(const void *from, size_t size);                /* NULL when memory is out */
const char *ampd_checkpoint_dir(const struct ampd_core *core); /* its name, for a person */
/* A model with its memory, in the core's table. AMP_EEXHAUSTED with a text. */
int ampd_model_new(struct ampd_core *core, const struct ampd_model_spec *spec, struct ampd_model **model,
                   struct amp_error *error);
void ampd_model_free(struct ampd_model *model);
void ampd_core_free_graves(struct ampd_core *core); /* of models that nobody holds any more */
void ampd_model_forget(struct ampd_model *model);   /* deleted: its memory is free; the place is for the next one */
struct ampd_model *ampd_core_model_named(struct ampd_core *core, const char *name);
/* The model of a call, if there is one that is served; else NULL, and the call has its answer. */
struct ampd_model *ampd_core_known(struct ampd_core *core, uint64_t call, const char *name);
/* Likewise, and it is ready now. */
struct ampd_model *ampd_core_usable(struct ampd_core *core, uint64_t call, const char *name);
/* Likewise for calls that the coordinator alone answers. */
struct ampd_model *ampd_core_coordinated(struct ampd_core *core, uint64_t call, const char *name);
bool ampd_incarnation_same(struct ampd_incarnation a, struct ampd_incarnation b);
bool ampd_incarnation_newer(struct ampd_incarnation a, struct ampd_incarnation b); /* a after b */

/* ---- out.c ---- */
struct ampd_output *ampd_out(struct ampd_core *core, enum ampd_output_type type, uint64_t call);
void *ampd_out_own(struct ampd_core *core, void *memory); /* freed when the last output has been handed out */
struct ampd_pending *ampd_out_persist(struct ampd_model *model, enum ampd_persist_kind kind, uint64_t call,
                                      struct ampd_persist **persist);
/* Something of the process, not of a model. */
struct ampd_pending *ampd_out_persist_plain(struct ampd_core *core, enum ampd_persist_kind kind,
                                            struct ampd_persist **persist);
void ampd_out_log(struct ampd_core *core, enum ampd_log_level level, const struct ampd_model *model, const char *format,
                  ...) __attribute__((format(printf, 4, 5)));
void ampd_out_message_take(struct ampd_core *core, struct ampd_message *message);
void ampd_out_close(struct ampd_core *core);

/* ---- bus.c ---- */
struct ampd_message *ampd_bus_message(struct ampd_model *model, enum ampd_message_type type, uint32_t to);
/* A message of the process, about no model. */
struct ampd_message *ampd_bus_plain(struct ampd_core *core, enum ampd_message_type type, uint32_t to);
void ampd_bus_send_take(struct ampd_core *core, struct ampd_message *message);
void ampd_bus_send_all_take(struct ampd_core *core, struct ampd_message *message); /* a copy to each shard */
void ampd_bus_drain(struct ampd_core *core);
void ampd_bus_close(struct ampd_core *core);
void ampd_bus_receive(struct ampd_core *core, const struct ampd_message *message);
/* Whether a message does not fit the model; then the log says so. */
bool ampd_bus_refuses(struct ampd_model *model, const struct ampd_message *message);
/* Its sender is no shard of this cluster that runs the same program, or that has the same model: the log says so, now and then. */
void ampd_bus_misfit(struct ampd_model *model, const struct ampd_message *message, const char *why);

/* ---- invariants.c ---- */
void ampd_model_check(const struct ampd_model *model); /* what holds between two events: asserts */

/* ---- calls.c ---- */
struct ampd_call *ampd_call_find(struct ampd_core *core, uint64_t id);
struct ampd_call *ampd_call_begin(struct ampd_core *core, uint64_t id, enum ampd_call_kind kind,
                                  struct ampd_model *model);
void ampd_call_forget(struct ampd_core *core, struct ampd_call *call);
struct ampd_reply *ampd_call_reply(struct ampd_core *core, uint64_t id, enum ampd_reply_kind kind);
void ampd_call_fail(struct ampd_core *core, uint64_t id, const struct ampd_model *model, int code, const char *reason,
                    const char *format, ...) __attribute__((format(printf, 6, 7)));
void ampd_call_fail_with(struct ampd_core *core, uint64_t id, const struct ampd_model *model,
                         const struct amp_error *error);
/* Fails a call that may hold a grant: at once if it holds none, else after the host has let go. */
void ampd_call_end(struct ampd_call *call, int code, const char *reason, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void ampd_call_let_go(struct ampd_core *core, struct ampd_call *call); /* REVOKED came */
void ampd_call_frozen(struct ampd_call *call);                         /* a pull or push of a step that does not open */
void ampd_call_set(struct ampd_call *call, enum ampd_call_state state);
void ampd_calls_refuse(struct ampd_model *model, const char *text); /* all that wait for it end with this sentence */
/* Ends calls that have waited as long as a missing rank may hold a step up: nothing waits without a deadline. */
void ampd_calls_sweep(struct ampd_core *core);
void ampd_calls_close(struct ampd_core *core);

/* ---- load.c ---- */
void ampd_load_begin(struct ampd_core *core, uint64_t call, const struct ampd_event_load *load);
void ampd_load_block(struct ampd_core *core, struct ampd_call *call, const struct ampd_event_block *block);
void ampd_load_end(struct ampd_core *core, struct ampd_call *call);
void ampd_load_closed(struct ampd_model *model, uint64_t call); /* the loader's stream is gone */
void ampd_load_next(struct ampd_model *model);                  /* grants the next loader, or answers all */
void ampd_load_cast_done(struct ampd_model *model);
void ampd_load_void(struct ampd_model *model);          /* a restore: whoever loads is told to begin anew */
bool ampd_load_streams(const struct ampd_model *model); /* masters may be written: not only waited for */
void ampd_load_gone(struct ampd_model *model);          /* GONE to the coordinator, if a load has broken off here */
void ampd_load_loaded(struct ampd_model *model);        /* LOADED to the coordinator, if it may lack it */
void ampd_load_wants(struct ampd_model *model);         /* WANT, if a loader waits or loads; also now and then */
void ampd_load_granted(struct ampd_model *model, const struct ampd_message *message);

/* ---- push_answer.c ---- */
/* The result of a decided step; `counted`: for a push that did, else it is LATE. Owned by the last output. */
void ampd_push_result(const struct ampd_model *model, const struct ampd_verdict_message *verdict, bool counted,
                      struct ampd_step_result *result);
void ampd_push_answer_decided(struct ampd_model *model, struct ampd_call *call); /* a push of the last decided step */

/* ---- push.c ---- */
void ampd_push_begin(struct ampd_core *core, uint64_t call, const struct ampd_event_push *push);
void ampd_push_block(struct ampd_core *core, struct ampd_call *call, const struct ampd_event_block *block);
void ampd_push_end(struct ampd_core *core, struct ampd_call *call, const struct ampd_event_push_end *end);
void ampd_push_closed(struct ampd_model *model, uint64_t call);   /* the stream lets go of its slot */
void ampd_push_retry(struct ampd_model *model);                   /* looks at every held push again */
void ampd_push_unblock(struct ampd_model *model, uint64_t local); /* the block may be written again */
void ampd_push_stalled(struct ampd_model *model, struct ampd_call *call);
void ampd_push_check_ends(struct ampd_model *model); /* trailers that came before apply was through */
void ampd_push_answer(struct ampd_model *model);     /* all pushes of the step just decided */
void ampd_push_state(struct ampd_core *core, uint64_t call, const struct ampd_event_push_state *state);
void ampd_slot_empty(struct ampd_model *model, uint32_t rank); /* all that is for the open step */
void ampd_slot_unfit(struct ampd_model *model,
                     uint32_t rank); /* likewise, and its pushes are refused for their weight */
/* Whether a parameter with a part in the block is in the slot's absent list. */
bool ampd_slot_any_absent(const struct ampd_model *model, const struct ampd_slot *slot, uint64_t block);
void ampd_slot_next(struct ampd_model *model, uint32_t rank); /* the step is decided: metadata for the next one */

/* ---- pull.c ---- */
void ampd_pull_begin(struct ampd_core *core, uint64_t call, const struct ampd_event_pull *pull);
void ampd_pull_retry(struct ampd_model *model);
void ampd_pull_published(struct ampd_model *model, unsigned copy, uint64_t local);
/* Ends the pulls of versions below `version` that read the copy. True: nobody reads them any more. */
bool ampd_pull_revoke(struct ampd_model *model, unsigned copy, uint64_t version);

/* ---- shard.c ---- */
int ampd_shard_init(struct ampd_model *model);
void ampd_shard_close(struct ampd_model *model);
void ampd_shard_open(struct ampd_model *model, const struct ampd_message *message);
void ampd_shard_take_open(struct ampd_model *model, const struct ampd_open *open, uint64_t fence);
void ampd_shard_take_close(struct ampd_model *model, const struct ampd_message *message);
void ampd_shard_try_block(struct ampd_model *model, uint64_t local); /* its vote pass, if all is here */
void ampd_shard_revote(struct ampd_model *model, uint64_t local,
                       uint32_t rank); /* the rank's trailer leaves a part out */
void ampd_shard_completed(struct ampd_model *model, uint32_t rank);
void ampd_shard_try_vote(struct ampd_model *model);
void ampd_shard_voted(struct ampd_model *model); /* CLOSED -> VOTED: what it takes is stored */
void ampd_shard_verdict(struct ampd_model *model, const struct ampd_message *message);
void ampd_shard_verdict_stored(struct ampd_model *model); /* not on shard 0: the coordinator stores it there */
void ampd_shard_unfit(struct ampd_model *model, const struct ampd_message *message);
void ampd_shard_forget(struct ampd_model *model);     /* a restore: the step, and the one being applied */
void ampd_shard_begin_anew(struct ampd_model *model); /* likewise; and from what is in memory now, with empty slots */
void ampd_shard_tell(struct ampd_model *model);       /* COMPLETE, VOTE, APPLIED, as far as they were sent */
void ampd_shard_send_job(struct ampd_model *model, struct ampd_job *job);
void ampd_shard_vote_done(struct ampd_model *model, const struct ampd_job *job, uint64_t local);
void ampd_shard_consume(struct ampd_model *model, uint64_t local); /* a block is read, or its step skipped */
void ampd_shard_applied(struct ampd_model *model);                 /* DECIDED -> APPLIED */
void ampd_shard_state(struct ampd_model *model, const struct ampd_message *message);
const struct ampd_expected *ampd_shard_expected(const struct ampd_model *model, uint32_t rank);
uint64_t ampd_shard_next_step(const struct ampd_model *model); /* the open step, or the next one */
uint64_t ampd_contributors_hash(const struct ampd_contributor *contributors, uint32_t count);

/* ---- bulk.c ---- */
void ampd_shard_bulk(struct ampd_model *model, enum ampd_bulk kind, uint32_t work, struct ampd_plan *plan);
void ampd_shard_bulk_done(struct ampd_model *model);
void ampd_shard_try_apply(struct ampd_model *model);
void ampd_shard_try_held(struct ampd_model *model); /* applies of blocks that the checkpoint has let go of */
void ampd_shard_forget_bulk(struct ampd_model *model);
void ampd_shard_job_done(struct ampd_model *model, const struct ampd_job *job);

/* ---- memory.c ---- */
void ampd_memory_set(struct ampd_shard *shard, enum ampd_memory_state to); /* as the table allows */
void ampd_memory_restore(struct ampd_model *model, const struct ampd_message *message);
void ampd_memory_try_restore(struct ampd_model *model);
void ampd_memory_restored(struct ampd_model *model, const struct ampd_event_restored *restored);
void ampd_memory_tick(struct ampd_model *model);
/* What is read at a start cannot be read now, as the sentence says: it is tried again, and the other models go on meanwhile. */
void ampd_memory_read_later(struct ampd_model *model, const char *format, ...) __attribute__((format(printf, 2, 3)));
void ampd_memory_cast_done(struct ampd_model *model);
void ampd_memory_epoch(struct ampd_model *model, const struct ampd_message *message);
void ampd_epoch_persist(struct ampd_model *model, const struct ampd_epoch_message *message,
                        enum ampd_persist_kind kind);
void ampd_memory_epoch_stored(struct ampd_model *model);
void ampd_memory_tell(struct ampd_model *model); /* RESTORED or EPOCH_STORED, if that is the present state */

void ampd_memory_give_back(struct ampd_model *model); /* SYNC: what a RESTORE without an epoch after it has taken */
void ampd_memory_begin_replay(struct ampd_model *model);
void ampd_memory_end_replay(struct ampd_model *model, bool ok);

/* ---- sums.c ---- */
void ampd_sums_vote(struct ampd_model *model);   /* the vote is written, */
void ampd_sums_stored(struct ampd_model *model); /* and may leave */
void ampd_sums_prune(struct ampd_model *model, uint64_t step);
void ampd_sums_found(struct ampd_model *model, const struct ampd_model_record *record);
void ampd_sums_start(struct ampd_model *model);
void ampd_sums_restored(struct ampd_model *model); /* the checkpoint is in memory */
void ampd_sums_read_on(struct ampd_model *model);  /* asks for the next record */
void ampd_sums_replayed(struct ampd_model *model, const struct ampd_event_replayed *event);
void ampd_sums_applied(struct ampd_model *model);
void ampd_sums_give_up(struct ampd_model *model, const char *why);
void ampd_sums_stop(struct ampd_model *model);
/* The rows that a replay goes by: one more is decided; those below the step are in a checkpoint; the epoch is over. */
void ampd_sums_note(struct ampd_model *model, const struct ampd_step_row *row);
void ampd_sums_trim(struct ampd_model *model, uint64_t step);
void ampd_sums_clear(struct ampd_model *model);
/* Whether the vote that is held serves the OPEN too. */
bool ampd_sums_fits(const struct ampd_model *model, const struct ampd_open *open);
void ampd_sums_drop(struct ampd_model *model);   /* the vote that is held, with its slots */
void ampd_sums_forget(struct ampd_model *model); /* the vote alone: its step is over */

/* ---- adopt.c ---- */
bool ampd_adopt_can(const struct ampd_model *model); /* all shards have answered, and hold what it takes */
void ampd_adopt(struct ampd_model *model,
                const struct ampd_checkpoint_record *checkpoint); /* the newest; epoch 0: none */

/* ---- snapshot.c ---- */
int ampd_snapshot_init(struct ampd_model *model); /* AMP_ENOMEM */
void ampd_snapshot_close(struct ampd_model *model);
void ampd_snapshot_cut(struct ampd_model *model, const struct ampd_message *message);
/* A checkpoint of the masters as they are now, at decided_step; none may wait already. */
void ampd_snapshot_request(struct ampd_model *model);
/* Whether apply may write over the block. True: *job is told to save it first, if it must. False: it waits. */
bool ampd_snapshot_spares(struct ampd_model *model, uint64_t local, struct ampd_job *job);
void ampd_snapshot_check(const struct ampd_model *model); /* what holds at any time, over all blocks: asserts */
void ampd_snapshot_saved(struct ampd_model *model, uint64_t local); /* the job that saved it is back */
void ampd_snapshot_blocks(struct ampd_model *model, const struct ampd_event_part_blocks *blocks);
void ampd_snapshot_written(struct ampd_model *model, const struct ampd_event_part *part);
void ampd_snapshot_stored(struct ampd_model *model); /* the catalogue has it */
/* Abandons a part that is being written, and one that waits. The masters are free once ampd_snapshot_reads is false. */
void ampd_snapshot_end(struct ampd_model *model);
void ampd_snapshot_void(struct ampd_model *model);        /* and a new epoch: one that is stored counts for nothing */
bool ampd_snapshot_reads(const struct ampd_shard *shard); /* the host, or a job for it, may read masters */
void ampd_snapshot_forget(struct ampd_model *model);      /* the one that waits */
void ampd_snapshot_tell(struct ampd_model *model);        /* PART_DONE of every checkpoint of this epoch */
void ampd_snapshot_tell_known(struct ampd_model *model);  /* and of the newest of which all parts are known */

/* ---- catalogue.c ---- */
int ampd_catalogue_add(struct ampd_shard *shard, const struct ampd_checkpoint_record *record);
void ampd_catalogue_void(struct ampd_shard *shard, uint64_t base_epoch, uint64_t base_step);
/* Of the checkpoints that exist on all shards, those that nothing keeps go. */
void ampd_catalogue_prune(struct ampd_model *model);
void ampd_catalogue_parts(struct ampd_model *model, const struct ampd_parts *parts); /* PARTS came */
void ampd_catalogue_parts_stored(struct ampd_model *model);
/* Whether the store knows all parts of a checkpoint, so that a shard whose disk is lost can be filled from it. */
bool ampd_catalogue_knows(const struct ampd_model *model, const struct ampd_checkpoint_record *record);
/* Out of the catalogue of the store, and its file. */
void ampd_catalogue_drop(struct ampd_model *model, const struct ampd_checkpoint_record *record);
const struct ampd_checkpoint_record *ampd_catalogue_find(const struct ampd_shard *shard, uint64_t epoch, uint64_t step);

/* ---- acts.c ---- */
void ampd_acts_scale(struct ampd_core *core, uint64_t call, const struct ampd_event_act *act, enum ampd_row_kind kind);
void ampd_acts_place(struct ampd_model *model); /* those that waited for a verdict, once it is stored */
void ampd_acts_stored(struct ampd_model *model, const struct ampd_pending *pending);
void ampd_acts_take(struct ampd_coord *coord, struct ampd_verdict_message *verdict); /* those since the last verdict */
void ampd_acts_forget(struct ampd_coord *coord);
/* On another shard than the coordinator's: the rows of the acts that came with a verdict, or before it. */
void ampd_acts_persist(struct ampd_model *model, const struct ampd_verdict_message *verdict);
void ampd_acts_told(struct ampd_model *model, const struct ampd_message *message);
void ampd_acts_resend(struct ampd_model *model, uint32_t shard); /* those since the last verdict */
void ampd_acts_found(struct ampd_model *model,
                     const struct ampd_model_record *record); /* by a coordinator that starts */
void ampd_acts_remember(struct ampd_coord *coord, const struct ampd_act_record *act);
void ampd_acts_supersede(struct ampd_model *model); /* a new epoch: what it takes back is told */
bool ampd_acts_known(struct ampd_model *model, uint64_t call, const struct ampd_event_act *act,
                     enum ampd_row_kind kind);

/* ---- rollback.c ---- */
void ampd_rollback_call(struct ampd_core *core, uint64_t call, const struct ampd_event_act *act);
void ampd_rollback_holds(struct ampd_model *model, const struct ampd_message *message); /* a shard is asked */
void ampd_rollback_held(struct ampd_model *model, const struct ampd_message *message);  /* and answers */
void ampd_rollback_try(struct ampd_model *model); /* once nothing is being stored */
void ampd_rollback_resend(struct ampd_model *model, uint32_t shard);
void ampd_rollback_fail(struct ampd_model *model, int code, const char *reason, const char *text);
void ampd_rollback_done(struct ampd_model *model);

/* ---- delete.c ---- */
void ampd_delete_call(struct ampd_core *core, uint64_t call, const struct ampd_event_act *act);
void ampd_delete_begin(struct ampd_model *model); /* on shard 0: all forget it */
void ampd_delete_marked(struct ampd_model *model);
void ampd_delete_send(struct ampd_model *model, uint32_t shard);
void ampd_delete_asked(struct ampd_core *core, const struct ampd_message *message);
void ampd_delete_answered(struct ampd_model *model, const struct ampd_message *message);
void ampd_delete_try(struct ampd_model *model); /* when nothing of the model is under way any more */
void ampd_delete_stored(struct ampd_model *model);

/* ---- health.c ---- */
void ampd_health_count(struct ampd_model *model, const struct ampd_step_row *row); /* a decided step */
/* Since when a push is complete while the open step needs others, and from when on those are named; 0: nobody waits. */
uint64_t ampd_health_awaited_ms(const struct ampd_model *model);
uint64_t ampd_health_late_ms(const struct ampd_model *model);
bool ampd_health_awaits(const struct ampd_model *model, uint32_t rank); /* it is one of those */
void ampd_health_names(const struct ampd_model *model, char *text, size_t size); /* them, by rank; "": none */
#define AMPD_AWAITED_NAMES_MAX 256
void ampd_health_tick(struct ampd_model *model);
uint64_t ampd_health_next_ms(const struct ampd_model *model); /* when tick has something to do; 0: never */

/* ---- coord.c ---- */
void ampd_coord_record(struct ampd_coord *coord, const struct amp_scaler_state *scaler); /* the one of a new epoch */
void ampd_coord_create(struct ampd_core *core, uint64_t call, const struct ampd_event_create *create);
bool ampd_coord_creates(
    const struct ampd_model *model);                 /* it has no values, and not all shards have stored its epoch */
void ampd_coord_created(struct ampd_model *model);   /* answers those who wait for it */
void ampd_coord_sweep(struct ampd_model *model);     /* ends those who have waited for the time of a lease */
void ampd_coord_interrupt(struct ampd_model *model); /* SYNC begins */
void ampd_coord_resume(struct ampd_model *model);    /* SYNC found nothing lost: a new try */
void ampd_coord_forget_step(struct ampd_model *model);
struct ampd_message *ampd_coord_grant(struct ampd_model *model, uint32_t shard);
void ampd_coord_want(struct ampd_model *model, const struct ampd_message *message);
void ampd_coord_gone(struct ampd_model *model, const struct ampd_message *message);
void ampd_coord_resend(struct ampd_model *model, uint32_t shard);
void ampd_coord_set(struct ampd_model *model, enum ampd_coord_state state);
void ampd_coord_loaded(struct ampd_model *model, const struct ampd_message *message);
void ampd_coord_ranks(struct ampd_model *model); /* a rank joined, left, or its lease ended; or an act is stored */
void ampd_coord_complete(struct ampd_model *model, const struct ampd_message *message);
bool ampd_coord_decides_soon(const struct ampd_model *model); /* enough ranks of the open step have pushed or live */
bool ampd_coord_waits_for(const struct ampd_model *model, uint32_t rank); /* only its push can move the step */
void ampd_coord_vote(struct ampd_model *model, const struct ampd_message *message);
void ampd_coord_store_verdict(struct ampd_model *model);
void ampd_coord_verdict_stored(struct ampd_model *model);
void ampd_coord_applied(struct ampd_model *model, const struct ampd_message *message);
bool ampd_coord_has_steps(const struct ampd_coord *coord); /* steps go on; not so while SYNC finds out from where */
void ampd_coord_review(struct ampd_model *model);          /* STALLED, and for whom, or RUNNING */
bool ampd_coord_drained(const struct ampd_model *model);
void ampd_coord_tell_state(struct ampd_model *model);
enum ampd_model_state ampd_coord_public(const struct ampd_model *model);
void ampd_coord_close(struct ampd_model *model);

/* ---- cuts.c ---- */
void ampd_cuts_expect(struct ampd_coord *coord, uint64_t step); /* PART_DONE of all shards */
bool ampd_cuts_under_way(const struct ampd_coord *coord, uint64_t step);
void ampd_cuts_begin(struct ampd_model *model); /* an epoch: its base, if it has one, is known to all stores */
/* Goes on in an epoch, with what the answers of SYNC say: how far all stores know the parts; 0: no checkpoint. */
uint64_t ampd_cuts_adopt(struct ampd_model *model, const struct ampd_checkpoint_record *newest);
void ampd_cuts_send(
    struct ampd_model *model); /* CUT at the last decided step: no verdict of a later one has been sent */
/* The same if it is in no checkpoint, and is to be: steps pause, or a Checkpoint would wait for a verdict that is far. */
void ampd_cuts_try(struct ampd_model *model);
void ampd_cuts_resend(struct ampd_model *model, uint32_t shard);
void ampd_cuts_lost(struct ampd_model *model, uint64_t started); /* parts that these shards were writing */
void ampd_coord_part_done(struct ampd_model *model, const struct ampd_message *message);
void ampd_coord_checkpoint(struct ampd_core *core, uint64_t call, const struct ampd_event_named *named);

/* The parts of a checkpoint, to all: by their manifests, or as the answers of SYNC tell, to shard 0's record of it. */
void ampd_cuts_tell_parts(struct ampd_model *model, uint64_t epoch, uint64_t step, const uint8_t (*manifests)[16]);
void ampd_cuts_tell_synced(struct ampd_model *model, const struct ampd_checkpoint_record *newest);
/* And those that were told last, to a shard that may lack them. */
void ampd_cuts_resend_parts(struct ampd_model *model, uint32_t shard);

#include "server/core/shards.h"

#endif
