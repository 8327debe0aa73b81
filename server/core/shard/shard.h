/*
 * A model on a shard, and the step that it collects gradients for (shard.c; docs/step-protocol.md section 2). All
 * functions run on the thread that steps the core; `local` is a block's index from the shard's first block, and a
 * handler of a message takes one whose fence and contents have been checked. Private to server/core.
 */
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

/* The step that collects gradients. */
struct ampd_open_step {
    enum ampd_step_state state;
    uint64_t fence;          /* counter of the coordinator's fence; (fence, open.try_number) orders tries */
    struct ampd_open open;   /* with state NONE: that of an earlier step */
    struct ampd_close close; /* CLOSED and VOTED: the contributors and the coefficient f */
    uint64_t hash;           /* CLOSED and VOTED: ampd_contributors_hash of `close` */
    struct ampd_plan *plan;  /* what the vote jobs of the try share; one reference, or NULL */
    uint64_t votes_left;     /* blocks whose vote pass is not done */
    uint8_t *vote_states;    /* per block: 0 not out, 1 out, 2 done */
    uint32_t *vote_serials;  /* per block: number of the newest vote job; older ones count for nothing */
    struct ampd_seen seen;   /* first push and last pull, over all tries of the step */
    /* The newest OPEN and CLOSE of the next step that came while the verdict before it was being stored; owned. */
    struct ampd_message *next_open;
    struct ampd_message *next_close;
};

/* What the coordinator has said about the model in STATE and DELETE. */
struct ampd_announced {
    uint64_t sequence;           /* of the newest STATE */
    enum ampd_model_state state; /* from WAITING on the model is loaded; 0: nothing is known yet */
    /* STATE has said that it is loaded since the memory was last brought back. False: it is only what the disk had. */
    bool loaded_is_confirmed;
    bool frozen;
    uint32_t missing_rank; /* STALLED: the rank that is waited for */
    bool troubled;         /* the model cannot be brought back now */
    bool deleting;         /* everything about the model ends; then it is taken out of the store */
    uint64_t delete_round; /* of the newest DELETE: its answer names it */
};

/* A model on a shard: a struct for each machine, owned by the file that declares it. */
struct ampd_shard {
    enum ampd_memory_state memory;
    uint64_t epoch;                 /* that is stored; 0: none, though the store may have the model */
    uint64_t base_epoch, base_step; /* the checkpoint it began from; base_epoch 0: none */
    uint64_t new_epoch;             /* being stored; 0: none */
    bool sync_waits;                /* SYNC was answered with `waits` for this model: the rest of the answer is owed */
    uint64_t version;               /* the newest that is complete in the masters */
    struct ampd_carry carry;        /* loss-scale record and set learning rate after the last decided step */
    struct ampd_slot *slots;        /* [world_size] */
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
    struct ampd_announced announced;
};

/* Allocates what the shard of a new model keeps; its tensors must be there. AMP_ENOMEM: ampd_shard_close frees it. */
int ampd_shard_init(struct ampd_model *model);
/* Frees all that the shard owns. No job may be out. */
void ampd_shard_close(struct ampd_model *model);
/* Handles OPEN: keeps it while a verdict is being stored, refuses one that contradicts a kept vote, else takes it. */
void ampd_shard_open(struct ampd_model *model, const struct ampd_message *message);
/* Handles CLOSE of the open try: OPEN -> CLOSED, and vote passes begin. Kept or refused as by ampd_shard_open. */
void ampd_shard_take_close(struct ampd_model *model, const struct ampd_message *message);
/* Sends the vote pass of a block out, if the step is CLOSED, its contributions are here, and nothing else uses it. */
void ampd_shard_try_block(struct ampd_model *model, uint64_t local);
/* As ampd_core_vote_terms (core_info.h). */
bool ampd_shard_vote_terms(const struct ampd_model *model, uint32_t rank, struct ampd_vote_terms *terms);
/* Takes the votes that came with a block in the place of its vote pass, if they are what the pass would find now. */
void ampd_shard_take_votes(struct ampd_model *model, uint64_t local, uint32_t rank,
                           const struct ampd_event_block *block);
/* The rank's trailer leaves out a parameter of the block: a vote pass that is out or done for it must run again. */
void ampd_shard_revote(struct ampd_model *model, uint64_t local, uint32_t rank);
/* The rank's push is whole here: sends COMPLETE, if the open step expects the slot's incarnation. */
void ampd_shard_completed(struct ampd_model *model, uint32_t rank);
/*
 * Votes once all passes are done, all pushes whole and the step before is applied; through the journal if there is one.
 */
void ampd_shard_try_vote(struct ampd_model *model);
/* Changes the step's state; asserts that the table allows it. */
void ampd_shard_set_step(struct ampd_shard *shard, enum ampd_step_state to);
/* The step becomes NONE, from any state. */
void ampd_shard_end_step(struct ampd_shard *shard);
/* Handles the OPEN and CLOSE that were kept while a verdict was being stored. */
void ampd_shard_take_waiting(struct ampd_model *model);
/* CLOSED -> VOTED, and sends VOTE. With `durability: step` its record must be in the journal. */
void ampd_shard_voted(struct ampd_model *model);
/* Handles UNFIT of the open try: empties the slot of the push, whose calls are refused with the reason. */
void ampd_shard_unfit(struct ampd_model *model, const struct ampd_message *message);
/* A restore or deletion begins: forgets the open step, the apply, and what waits for them. Slots stay as they are. */
void ampd_shard_forget(struct ampd_model *model);
/* Forgets the same and the last verdict, and empties all slots: steps go on from what is in memory now. */
void ampd_shard_begin_anew(struct ampd_model *model);
/* Sends APPLIED, COMPLETE and VOTE again, as far as a READY memory has come, since a session may have lost them. */
void ampd_shard_resend(struct ampd_model *model);
/* Hands a job out. Takes a reference to its plan, which ampd_shard_job_done drops. */
void ampd_shard_send_job(struct ampd_model *model, struct ampd_job *job);
/* A vote job is back; without effect if its try is over or a newer job of the block counts. */
void ampd_shard_vote_done(struct ampd_model *model, const struct ampd_job *job, uint64_t local);
/* Handles STATE: answers calls that a stalled, loaded or done model cannot keep waiting. */
void ampd_shard_state(struct ampd_model *model, const struct ampd_message *message);
/* The (rank, incarnation) that the open step expects, or NULL. A view, valid until the step changes. */
const struct ampd_expected *ampd_shard_expected(const struct ampd_model *model, uint32_t rank);
/* The open step, or the next one if none is open. */
uint64_t ampd_shard_next_step(const struct ampd_model *model);

#endif
