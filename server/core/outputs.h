/*
 * What the core wants done. After each event the I/O layer (server/io) takes all outputs with ampd_core_next, and acts
 * on them in that order.
 *
 * What an output points to is valid until the next call of ampd_core_next or ampd_core_step, except memory of a model
 * (slots, masters, saved blocks, cast copies, checksums, layout), which stays until the model is deleted and nothing of
 * it is under way any more.
 */
#ifndef AMPD_OUTPUTS_H
#define AMPD_OUTPUTS_H

#include "base/log.h"
#include "server/core/call_outputs.h"
#include "server/core/model/passes.h"
#include "server/core/store_outputs.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_message;

enum ampd_output_type {
    AMPD_OUT_REPLY = 1,   /* u.reply: end this call with this answer; events of it have no effect any more */
    AMPD_OUT_LOAD_GRANT,  /* u.load: where blocks of this call go */
    AMPD_OUT_PUSH_GRANT,  /* u.push: where blocks of this call go, once PUSH_BLOCKS lists them */
    AMPD_OUT_PUSH_BLOCKS, /* u.blocks: these may be received now, or are to be dropped */
    AMPD_OUT_PUSH_REVOKE, /* of a Push or Load: touch its memory no more, then send REVOKED; a reply follows */
    AMPD_OUT_PULL_GRANT,  /* u.pull: send the header; its blocks follow as PULL_BLOCKS lists them */
    AMPD_OUT_PULL_BLOCKS, /* u.blocks: these may be sent now */
    AMPD_OUT_PULL_REVOKE, /* let go of the copy (fill the frame under way with zeros), send REVOKED; a reply follows */
    AMPD_OUT_JOB,         /* u.job: run it on a compute thread, then send JOB_DONE */
    AMPD_OUT_PERSIST,     /* u.persist: store it, then send PERSISTED. In the order of the outputs, for each model */
    AMPD_OUT_RESTORE,     /* u.restore: read and verify a checkpoint into memory, then send RESTORED */
    AMPD_OUT_CUT, /* u.cut: begin to write a part; make it durable after its last block, then send PART_WRITTEN */
    AMPD_OUT_PART_BLOCKS, /* u.part_blocks: write these blocks of the part, then send PART_BLOCKS */
    /*
     * u.token: stop that part. Send PART_WRITTEN with AMP_ECANCELLED, or with 0 if it is durable already, when none of
     * its blocks is read any more; PART_BLOCKS need not be sent.
     */
    AMPD_OUT_CUT_CANCEL,
    AMPD_OUT_DROP_CHECKPOINT, /* u.drop: take it out of the store's catalogue, then remove the file. No event follows */
    AMPD_OUT_JOURNAL,         /* u.journal: write and sync a record, then send JOURNALLED. One at a time of a model */
    AMPD_OUT_REPLAY,          /* u.replay: read a record into memory, then send REPLAYED */
    AMPD_OUT_JOURNAL_PRUNE,   /* u.journal_prune: remove those records, also while a JOURNAL waits. No event */
    AMPD_OUT_NOTIFY,          /* u.notify: a stored row for those who watch the history; row NULL: the model is DONE */
    AMPD_OUT_TIMER,           /* u.timer: send TICK at this time, which replaces the one given before */
    AMPD_OUT_SEND,            /* u.message: send it to shard message->to */
    AMPD_OUT_LOG,             /* u.log: one line for the operator */
    AMPD_OUT_FENCED,          /* u.fence: a process with this fence has this shard's place: end this process */
    AMPD_OUT_RAISE_EPOCH,     /* u.raise: raise the model's highest epoch, as etcd has it, then send EPOCH_RAISED */
    AMPD_OUT_DRAINED,         /* what DRAIN asked for is done: nothing is left to store, and the process may end */
};

/* Blocks that a stream may receive or send now. Until a block is listed, the bytes of a push stay unread. */
struct ampd_blocks {
    uint64_t first, count;
    bool drop; /* Push: they are here already; read and drop the bytes, and send no PUSH_BLOCK */
};

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
        struct ampd_part_order cut;
        struct ampd_part_blocks part_blocks;
        struct ampd_vote_journal_order journal;
        struct ampd_replay_order replay;
        struct {
            const char *model;
            uint64_t epoch; /* records of other epochs go, */
            uint64_t step;  /* and in this one those up to this step */
        } journal_prune;
        uint64_t token;
        struct {
            const char *model;
            const struct ampd_checkpoint_record *checkpoint;
            bool file_only; /* the store does not list it any more; its file goes before a later CUT is written */
        } drop;
        struct {
            uint32_t model; /* index */
            const struct ampd_step_row *row;
        } notify;
        struct {
            uint64_t at_ms; /* of the clock that ampd_core_step is given */
        } timer;
        const struct ampd_message *message;
        struct ampd_fence fence;
        struct {
            uint64_t token;
            const char *model;
            uint64_t epoch; /* the number must be at least this */
        } raise;
        struct {
            enum amp_log_level
                level;         /* DEBUG, what is decided of each step, only if ampd_core_set_debug asked for it */
            const char *model; /* its name, or "" */
            const char *text;
        } log;
    } u;
};

#endif
