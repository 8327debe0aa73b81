/* A step on a shard (shard.c). Private to server/core. */
#ifndef AMPD_CORE_SHARD_H
#define AMPD_CORE_SHARD_H

#include "server/core/base/limits.h"
#include "server/core/base/local.h"
#include "server/core/model/states.h"
#include "server/core/model/tensors.h"
#include "server/core/shard/bulk.h"
#include "server/core/shard/catalogue.h"
#include "server/core/shard/checkpoint_part.h"
#include "server/core/shard/decided.h"
#include "server/core/shard/load.h"
#include "server/core/shard/memory.h"
#include "server/core/shard/journal.h"
#include "server/core/wire/messages.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_job;
struct ampd_model;
struct ampd_slot;

/* The step that collects. */
struct ampd_open_step {
    enum ampd_step_state state; /* NONE, OPEN, CLOSED, VOTED */
    uint64_t fence;             /* with open.try_number: orders tries */
    struct ampd_open open;
    struct ampd_close close; /* CLOSED and later: the contributors and f */
    uint64_t hash;
    struct ampd_plan *plan;
    uint64_t votes_left;             /* blocks whose vote pass is not done */
    uint8_t *vote_states;            /* per block: 0 not out, 1 out, 2 done */
    uint32_t *vote_serials;          /* per block: of the newest vote job */
    struct ampd_seen seen;           /* in all its tries */
    struct ampd_message *next_open;  /* a newer OPEN that came while the step before is being decided, and */
    struct ampd_message *next_close; /* its CLOSE; owned */
};

/* What the coordinator has told of the model (STATE, DELETE). */
struct ampd_told {
    uint64_t sequence; /* of the newest STATE */
    bool loaded, stalled, done, frozen;
    bool loaded_is_told; /* by STATE, since the memory was last brought back; else `loaded` is only what the disk had */
    uint32_t missing_rank;
    bool troubled;         /* the model cannot be brought back now */
    bool deleting;         /* everything about the model ends; then it is taken out of the store */
    uint64_t delete_round; /* of the newest DELETE: its answer names it */
};

/* A model on a shard: a struct for each machine, owned by the file that declares it. */
struct ampd_shard {
    enum ampd_memory_state memory;
    uint64_t epoch, base_epoch, base_step;
    uint64_t new_epoch; /* being stored; 0: none */
    bool stored;        /* the store has the model */
    bool sync_waits;    /* SYNC was answered for this model with "waits": the rest of the answer is owed */
    uint64_t version;   /* newest complete one */
    struct ampd_carry carry;
    struct ampd_slot *slots; /* [world_size] */
    struct ampd_open_step step;
    struct ampd_decided decided;
    struct ampd_shard_jobs jobs;
    struct ampd_apply apply;
    struct ampd_shard_journal journal;
    struct ampd_part part;
    struct ampd_next_part next_part;
    struct ampd_catalogue catalogue;
    struct ampd_memory_restore restore;
    struct ampd_shard_load load;
    struct ampd_told told;
};

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
void ampd_shard_set_step(struct ampd_shard *shard, enum ampd_step_state to); /* as the table allows */
void ampd_shard_end_step(struct ampd_shard *shard);                          /* -> NONE */
void ampd_shard_take_waiting(struct ampd_model *model); /* what came while a verdict was being stored */
void ampd_shard_voted(struct ampd_model *model);        /* CLOSED -> VOTED: what it takes is stored */
void ampd_shard_unfit(struct ampd_model *model, const struct ampd_message *message);
void ampd_shard_forget(struct ampd_model *model);     /* a restore: the step, and the one being applied */
void ampd_shard_begin_anew(struct ampd_model *model); /* likewise; and from what is in memory now, with empty slots */
void ampd_shard_tell(struct ampd_model *model);       /* COMPLETE, VOTE, APPLIED, as far as they were sent */
void ampd_shard_send_job(struct ampd_model *model, struct ampd_job *job);
void ampd_shard_vote_done(struct ampd_model *model, const struct ampd_job *job, uint64_t local);
void ampd_shard_state(struct ampd_model *model, const struct ampd_message *message);
const struct ampd_expected *ampd_shard_expected(const struct ampd_model *model, uint32_t rank);
uint64_t ampd_shard_next_step(const struct ampd_model *model); /* the open step, or the next one */

#endif
