/*
 * The part of a checkpoint that a shard writes in the background (checkpoint_part.c). All functions run on the thread
 * that steps the core; block indexes named `local` count from the shard's first block. Private to server/core.
 */
#ifndef AMPD_CORE_CHECKPOINT_PART_H
#define AMPD_CORE_CHECKPOINT_PART_H

#include "server/core/model/states.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_event_part;
struct ampd_event_part_blocks;
struct ampd_job;
struct ampd_message;
struct ampd_model;
struct ampd_shard;

/* The part that is being written; with state FREE there is none. */
struct ampd_part {
    enum ampd_part_state state;
    uint64_t epoch, token;                /* token: names the part towards the I/O layer; 0: it has let go of it */
    struct ampd_checkpoint_state content; /* step, version, scale record and user states; owns the latter */
    struct ampd_checkpoint_record record; /* STORING: what the catalogue gets */
    uint8_t *blocks;                      /* per block: enum ampd_part_block_state */
    uint32_t *buffers;                    /* per block: index of the buffer with its copy, or AMPD_NO_BUFFER */
    uint32_t *free_buffers;               /* [free_count] indexes of the buffers that hold no copy */
    uint32_t free_count;
    /* Next block to be given to the writer, counted from the first; numbers of blocks OUT, not DONE, and SAVING. */
    uint64_t next, out, left, saving;
    uint64_t blocked_ms; /* how long apply has stood still for this part */
};

/* The part after that one: no apply begins before it does. */
struct ampd_next_part {
    bool waits;                           /* it is to begin; `content` is set */
    struct ampd_checkpoint_state content; /* owns its user states */
    bool is_asked;                        /* a CUT of asked_step came while another part waited */
    uint64_t asked_step;                  /* is_asked: taken if it is still the last decided step by then */
};

/* Allocates the arrays per block. AMP_ENOMEM: ampd_part_close frees what there is. */
int ampd_part_init(struct ampd_model *model);

/* Frees both parts' user states and the arrays. */
void ampd_part_close(struct ampd_model *model);

/*
 * Handles CUT: begins a part at the last decided step once it can, or answers PART_DONE if that part is here already.
 */
void ampd_part_begin(struct ampd_model *model, const struct ampd_message *message);

/*
 * Asks for a part of the masters as they are now, at decided.step, with copies of the user states. It begins when no
 * other part and no jobs over all blocks are under way. No other part may be waiting.
 */
void ampd_part_request(struct ampd_model *model);

/*
 * Whether apply may write over the block now. True: the job has AMPD_JOB_SAVE added to it where the block must be
 * copied to a buffer first. False: its apply waits until the writer has the block or a buffer is free.
 */
bool ampd_part_may_overwrite(struct ampd_model *model, uint64_t local, struct ampd_job *job);

/* Asserts that the counts agree with the states of all blocks, and that each buffer is free or taken once. */
void ampd_part_check(const struct ampd_model *model);

/* The job that copied a block to its buffer is back. */
void ampd_part_saved(struct ampd_model *model, uint64_t local);

/* AMPD_EVENT_PART_BLOCKS: the memory of these blocks is not read any more; gives out the next ones. */
void ampd_part_blocks(struct ampd_model *model, const struct ampd_event_part_blocks *blocks);

/* AMPD_EVENT_PART_WRITTEN: the file is durable, and the catalogue is asked for; or an abandoned part is let go of. */
void ampd_part_written(struct ampd_model *model, const struct ampd_event_part *part);

/*
 * The store's catalogue has the part: adds it to ours and sends PART_DONE, unless a new epoch with a base below it has
 * begun meanwhile, or the model is being deleted.
 */
void ampd_part_stored(struct ampd_model *model);

/* Abandons the part being written and the one that waits. The masters are free once ampd_part_reads is false. */
void ampd_part_end(struct ampd_model *model);

/* Whether the I/O layer, or a job for it, may still read masters. */
bool ampd_part_reads(const struct ampd_shard *shard);

/* Drops the part that waits, and a CUT that came meanwhile; the one being written goes on. */
void ampd_part_forget(struct ampd_model *model);

/* Sends PART_DONE for every checkpoint of the present epoch, for a session that may have lost it. */
void ampd_part_resend(struct ampd_model *model);

/*
 * Sends PART_DONE for the newest checkpoint of the present epoch of which the store knows all parts, if there is one.
 */
void ampd_part_send_known(struct ampd_model *model);

#endif
