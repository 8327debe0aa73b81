/* The part of a checkpoint that a shard writes (checkpoint_part.c). Private to server/core. */
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

/* The part that is written. */
struct ampd_part {
    enum ampd_part_state state;
    uint64_t epoch, step, token;
    struct ampd_checkpoint_state content; /* owns its user states */
    bool is_void;                         /* STORING: a new epoch came meanwhile */
    struct ampd_checkpoint_record record;
    uint8_t *blocks;        /* per block: enum ampd_part_block_state */
    uint32_t *buffers;      /* per block: the index of the buffer with its copy, or AMPD_NO_BUFFER */
    uint32_t *free_buffers; /* [free_count] of those for saved blocks */
    uint32_t free_count;
    uint64_t next, out, left, saving; /* blocks: next to be given out; OUT; not DONE; SAVING */
    uint64_t blocked_ms;              /* how long apply has stood still for it */
    bool is_over;                     /* ENDING: the host has let go */
};

/* The one after it: apply must not go on before it begins. */
struct ampd_next_part {
    bool waits;
    struct ampd_checkpoint_state content; /* owns its user states */
    uint64_t epoch;
    bool is_asked; /* a CUT of step asked_step came while another one waited */
    uint64_t asked_step;
};

int ampd_part_init(struct ampd_model *model); /* AMP_ENOMEM */
void ampd_part_close(struct ampd_model *model);
void ampd_part_begin(struct ampd_model *model, const struct ampd_message *message);
/* A checkpoint of the masters as they are now, at decided_step; none may wait already. */
void ampd_part_request(struct ampd_model *model);
/* Whether apply may write over the block. True: *job is told to save it first, if it must. False: it waits. */
bool ampd_part_may_overwrite(struct ampd_model *model, uint64_t local, struct ampd_job *job);
void ampd_part_check(const struct ampd_model *model);           /* what holds at any time, over all blocks: asserts */
void ampd_part_saved(struct ampd_model *model, uint64_t local); /* the job that saved it is back */
void ampd_part_blocks(struct ampd_model *model, const struct ampd_event_part_blocks *blocks);
void ampd_part_written(struct ampd_model *model, const struct ampd_event_part *part);
void ampd_part_stored(struct ampd_model *model); /* the catalogue has it */
/* Abandons a part that is being written, and one that waits. The masters are free once ampd_part_reads is false. */
void ampd_part_end(struct ampd_model *model);
void ampd_part_void(struct ampd_model *model);        /* and a new epoch: one that is stored counts for nothing */
bool ampd_part_reads(const struct ampd_shard *shard); /* the host, or a job for it, may read masters */
void ampd_part_forget(struct ampd_model *model);      /* the one that waits */
void ampd_part_tell(struct ampd_model *model);        /* PART_DONE of every checkpoint of this epoch */
void ampd_part_tell_known(struct ampd_model *model);  /* and of the newest of which all parts are known */

#endif
