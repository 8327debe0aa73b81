/*
 * What the core wants done. The host drains outputs with ampd_core_next after each event, in order.
 *
 * Everything an output points to is valid until the next call of ampd_core_next or ampd_core_step, but for
 * memory of models (slots, masters, saved blocks, cast copies, checksums, layouts), which is valid as long as
 * the core.
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
    AMPD_OUT_PART_BLOCKS,     /* u.part_blocks: write these, then send PART_BLOCKS */
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
    AMPD_OUT_FENCED, /* u.fence: another process, with this fence, has this shard's place: the host ends this one */
    AMPD_OUT_RAISE_EPOCH, /* u.raise: raise the highest epoch of a model where it is kept, then send EPOCH_RAISED */
    AMPD_OUT_DRAINED,     /* what DRAIN asked for is done: nothing is left to store */
};

/* A range for a stream. Until a block is listed, its bytes stay unread. */
struct ampd_blocks {
    uint64_t first, count;
    bool drop; /* push: present already: read, and throw away; no PUSH_BLOCK event */
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
            enum amp_log_level
                level;         /* DEBUG only where ampd_core_set_debug asks for it: what is decided of each step */
            const char *model; /* or "" */
            const char *text;
        } log;
    } u;
};

#endif
