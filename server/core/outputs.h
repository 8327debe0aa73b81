/*
 * What the core wants done. The host drains outputs with ampd_core_next after each event, in order.
 *
 * Everything an output points to is valid until the next call of ampd_core_next or ampd_core_step, but for
 * memory of models (slots, masters, saved blocks, cast copies, checksums, layouts), which is valid as long as
 * the core.
 */
#ifndef AMPD_OUTPUTS_H
#define AMPD_OUTPUTS_H

#include "base/err.h"
#include "server/core/layout.h"
#include "server/core/messages.h"
#include "server/core/passes.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ampd_output_type {
    AMPD_OUT_REPLY = 1,       /* u.reply: end this call; it must be forgotten */
    AMPD_OUT_LOAD_GRANT,      /* u.load: blocks of this call go to memory */
    AMPD_OUT_PUSH_GRANT,      /* u.push: where blocks of this call go, once PUSH_BLOCKS lists them */
    AMPD_OUT_PUSH_BLOCKS,     /* u.blocks: these may be received (or are to be dropped) now */
    AMPD_OUT_PUSH_REVOKE,     /* Push, Load: touch that memory no more, then send REVOKED; a reply follows */
    AMPD_OUT_PULL_GRANT,      /* u.pull: send the header; blocks follow as PULL_BLOCKS lists them */
    AMPD_OUT_PULL_BLOCKS,     /* u.blocks: these may be sent now */
    AMPD_OUT_PULL_REVOKE,     /* let go of the copy (finish a frame from a zero page), then send REVOKED; a reply
                               follows */
    AMPD_OUT_JOB,             /* u.job: run it on a compute thread, then send JOB_DONE */
    AMPD_OUT_PERSIST,         /* u.persist: store it, then send PERSISTED. In order of output, each model */
    AMPD_OUT_RESTORE,         /* u.restore: read and verify a checkpoint into memory, then send RESTORED */
    AMPD_OUT_CUT,             /* u.cut: begin a checkpoint part. When all its blocks are in, make it durable, then send
                               * PART_WRITTEN */
    AMPD_OUT_CUT_BLOCKS,      /* u.cut_blocks: write these, then send PART_BLOCKS */
    AMPD_OUT_CUT_CANCEL,      /* u.token: stop that part; PART_WRITTEN follows with AMP_ECANCELLED (or 0), when none of
                               * its blocks is read any more. PART_BLOCKS may be left out */
    AMPD_OUT_DROP_CHECKPOINT, /* u.drop: out of the catalogue, then remove the file. No answer */
    AMPD_OUT_JOURNAL,         /* u.journal: write and sync a record, then send JOURNALLED. In order, each model */
    AMPD_OUT_REPLAY,          /* u.replay: read a record into memory, then send REPLAYED */
    AMPD_OUT_JOURNAL_PRUNE,   /* u.journal_prune: those records are not wanted any more. No answer; in order */
    AMPD_OUT_NOTIFY,          /* u.notify: a row for watchers, already stored; none: it is done */
    AMPD_OUT_TIMER,           /* u.timer: send TICK then; replaces the time given before */
    AMPD_OUT_SEND,            /* u.message: to shard message->to */
    AMPD_OUT_LOG,             /* u.log: one line for the operator */
    AMPD_OUT_FENCED,          /* u.fence: another process, with this fence, has this shard's place: the host ends this one */
    AMPD_OUT_RAISE_EPOCH,     /* u.raise: raise the highest epoch of a model where it is kept, then send EPOCH_RAISED */
    AMPD_OUT_DRAINED,         /* what DRAIN asked for is done: nothing is left to store */
};

/* Which member of ampd_reply.u is set. */
enum ampd_reply_kind {
    AMPD_REPLY_NONE = 0,
    AMPD_REPLY_CREATE,
    AMPD_REPLY_LOAD,
    AMPD_REPLY_JOIN,
    AMPD_REPLY_KEEP_ALIVE,
    AMPD_REPLY_STEP, /* Push: the StepResult */
    AMPD_REPLY_PUSH_STATE,
    AMPD_REPLY_CHECKPOINT,
    AMPD_REPLY_SCALE, /* SetScale, ResetScale */
    AMPD_REPLY_ROLLBACK,
};

/* STEP section 2. */
struct ampd_step_result {
    uint64_t epoch, step;
    enum ampd_verdict verdict; /* LATE: this push did not count; the rest is that of the step */
    uint64_t applied;          /* applied steps so far */
    uint64_t version;          /* after this step */
    double norm;
    uint32_t clips_count; /* clip coefficients, one per group of parameters */
    float clips[AMPD_GROUPS_MAX];
    float scale, new_scale;
    uint64_t scale_id, new_scale_id;
    uint64_t overflow_params; /* (parameter, rank) pairs */
    uint64_t inf_total, nan_total;
    uint32_t rows_count;
    const struct ampd_overflow_row *rows;
    uint64_t range_total; /* values beyond the cast's range in the previous apply */
    uint32_t range_count;
    const struct ampd_range_warning *range;
    uint64_t durable_step; /* 0: only the initial values survive a crash */
    double lr;             /* base learning rate of the step; 0 if skipped */
    uint32_t consecutive_overflows;
    bool unstable; /* max_consecutive_overflows are reached */
    bool frozen;   /* floor policy FREEZE: no step opens before an operator acts */
    bool failed;   /* floor policy FAIL: likewise, and training should end */
};

/* Consecutive blocks. */
struct ampd_block_range {
    uint64_t first, count;
};

struct ampd_join_result {
    uint32_t model; /* index, for the queries of core.h */
    uint32_t rank, world_size;
    struct ampd_incarnation incarnation;
    uint64_t epoch, step; /* the step to begin with */
    uint64_t lease_ms;
    const uint8_t *user_state; /* of this rank in the restored step; size 0: none */
    uint32_t user_state_size;
};

/* The end of one call. error.code 0: OK, and u holds the result. */
struct ampd_reply {
    struct amp_error error; /* code, ErrorInfo reason, text with the remedy */
    uint64_t epoch, step;   /* the present ones, for the details of ABORTED; 0, 0: not given */
    uint64_t retry_ms;      /* RetryInfo; 0: none */
    enum ampd_reply_kind kind;
    union {
        struct {
            uint32_t model;
            bool existed;
            uint64_t epoch;
        } create;
        struct {
            bool already_loaded;
        } load;
        struct ampd_join_result join;
        struct {
            uint64_t epoch, step; /* of the open step */
            enum ampd_model_state state;
            bool valid;        /* false: the lease has ended or the incarnation is not the rank's: join again */
            uint64_t lease_ms; /* 0 if not valid */
            uint32_t model;    /* its index */
            const char *taken_by; /* who holds the rank, if another process has taken it; else "" */
        } keep_alive;
        struct ampd_step_result step;
        struct {
            uint64_t ranges_count;
            const struct ampd_block_range *ranges; /* PRESENT, ascending */
            bool complete;                         /* the trailer is here too */
        } push_state;
        struct {
            uint64_t epoch, step, version;
        } checkpoint;
        struct {
            struct amp_scaler_state record;
            uint64_t from_step; /* the first that uses it */
        } scale;
        struct {
            uint64_t epoch, step; /* the new one, and the step that is next */
        } rollback;
    } u;
};

/* Load: block b, with 4 bytes an element, goes to masters + (b - first) * block_elements. All may be sent. */
struct ampd_load_grant {
    uint32_t model;
    const struct ampd_layout *layout;
    uint64_t first, count; /* the blocks of this shard */
    float *masters;
};

/* Push: block b goes to memory + (b - first) * stride, in the dtype of the push. */
struct ampd_push_grant {
    uint32_t model;
    const struct ampd_layout *layout;
    uint64_t first, count; /* the blocks of this shard: others are out of range */
    uint8_t *memory;       /* the slot of the rank */
    size_t stride;         /* bytes from block to block */
    enum amp_dtype dtype;
};

/* A range for a stream. Until a block is listed, its bytes stay unread. */
struct ampd_blocks {
    uint64_t first, count;
    bool drop; /* push: present already: read, and throw away; no PUSH_BLOCK event */
};

/*
 * The header of a pull, and where its blocks lie: memory + (b - first) * stride, CRC32C in crcs[b - first]. When the
 * host has sent all blocks it ends the stream with OK and sends CALL_CLOSED; there is no AMPD_OUT_REPLY then.
 */
struct ampd_pull_grant {
    uint32_t model;
    const struct ampd_layout *layout;
    uint64_t epoch, step, version; /* step: the one that computes on this version; 0: not known any more */
    uint64_t scale_id;
    float scale;
    enum amp_dtype dtype;
    bool unchanged; /* the client has this version: no block follows, end the stream with OK */
    uint64_t first, count;
    const uint8_t *memory;
    size_t stride;
    const uint32_t *crcs; /* of each block as sent; may be read once PULL_BLOCKS lists the block */
};

enum ampd_persist_kind {
    AMPD_PERSIST_MODEL = 1,  /* spec, then epoch with row: both or none is not asked for */
    AMPD_PERSIST_EPOCH,      /* epoch, row; voids checkpoints above the base, marks rows superseded */
    AMPD_PERSIST_WORKER,     /* worker; the power may take it */
    AMPD_PERSIST_VERDICT,    /* row (kind STEP); the power may take it, but with `durability: step` */
    AMPD_PERSIST_CHECKPOINT, /* checkpoint */
    AMPD_PERSIST_PARTS,      /* the parts of checkpoint, should it still be in the catalogue */
    AMPD_PERSIST_FENCE,      /* fence of shard `shard` */
    AMPD_PERSIST_ACT,        /* row (kind SET or RESET) */
    AMPD_PERSIST_DELETING,   /* the model is to be deleted, and goes on to be after a start */
    AMPD_PERSIST_DELETE,     /* the model and its files */
};

/*
 * Something to store. A full disk is tried again by the host until it goes or the process ends; a failed
 * fsync ends the process. So PERSISTED means stored, and there is no other answer.
 */
struct ampd_persist {
    uint64_t token;
    enum ampd_persist_kind kind;
    const char *model;
    int64_t at_us;
    const struct ampd_model_spec *spec;
    const struct ampd_epoch_record *epoch;
    const struct ampd_step_row *row;
    const struct ampd_worker_record *worker;
    const struct ampd_checkpoint_record *checkpoint;
    bool full; /* when it is answered, no loss of power takes it (out.c) */
    uint32_t shard;
    struct ampd_fence fence;
};

struct ampd_restore_order {
    uint64_t token;
    uint32_t model;
    const struct ampd_model_spec *spec;
    const struct ampd_layout *layout;
    const struct ampd_checkpoint_record *checkpoint;
    uint64_t first, count;           /* the blocks of this shard */
    struct ampd_tensor_view tensors; /* to be filled; from block `first` on */
};

struct ampd_cut_order {
    uint64_t token;
    uint32_t model;
    const struct ampd_model_spec *spec;
    const struct ampd_layout *layout;
    uint64_t epoch, step;
    uint64_t first, count;                     /* the blocks of this shard; all come as CUT_BLOCKS, in order */
    bool has_m, has_v;                         /* whether the optimizer has them */
    const struct ampd_checkpoint_state *state; /* stays as it is until PART_WRITTEN */
};

struct ampd_cut_blocks {
    uint64_t token;                  /* of the cut */
    uint64_t first, count;           /* consecutive blocks: those after the ones given before */
    struct ampd_tensor_view tensors; /* of block `first`, and those behind it; stay as they are until PART_BLOCKS */
};

/*
 * A vote to be journalled. A full disk is tried again by the host until it goes or the process ends; a failed fsync ends
 * the process. g stays as it is until JOURNALLED.
 */
struct ampd_journal_order {
    uint64_t token;
    const char *model;
    struct ampd_journal_key key;
    const uint8_t *notes; /* the core's own, not to be looked into */
    uint64_t notes_size;
    const float *g; /* NULL: the step cannot be applied */
    uint64_t elements;
};

struct ampd_replay_order {
    uint64_t token;
    const char *model;
    uint64_t epoch, step;
    float *g; /* to be filled: `elements` floats */
    uint64_t elements;
};

enum ampd_log_level { AMPD_LOG_INFO = 1, AMPD_LOG_WARN = 2, AMPD_LOG_ERROR = 3 };

struct ampd_output {
    enum ampd_output_type type;
    uint64_t call; /* of replies, grants, blocks and revocations */
    union {
        struct ampd_reply reply;
        struct ampd_load_grant load;
        struct ampd_push_grant push;
        struct ampd_pull_grant pull;
        struct ampd_blocks blocks;
        struct ampd_job job;
        struct ampd_persist persist;
        struct ampd_restore_order restore;
        struct ampd_cut_order cut;
        struct ampd_cut_blocks cut_blocks;
        struct ampd_journal_order journal;
        struct ampd_replay_order replay;
        struct {
            const char *model;
            uint64_t epoch; /* records of other epochs, */
            uint64_t step;  /* and those up to this step */
        } journal_prune;
        uint64_t token;
        struct {
            const char *model;
            const struct ampd_checkpoint_record *checkpoint;
        } drop;
        struct {
            uint32_t model;
            const struct ampd_step_row *row;
        } notify;
        struct {
            uint64_t at_ms;
        } timer;
        const struct ampd_message *message;
        struct ampd_fence fence;
        struct {
            uint64_t token;
            const char *model;
            uint64_t epoch; /* at least this one */
        } raise;
        struct {
            enum ampd_log_level level;
            const char *model; /* or "" */
            const char *text;
        } log;
    } u;
};

#endif
