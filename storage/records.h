/*
 * Records: the plain structs that server/core decides with and the store keeps. They have no functions and do no I/O,
 * and are shared by the core, both stores and the simulator. This header has the record of a whole model, as it is
 * loaded at start; its parts are in records_model.h, records_worker.h, records_step.h and records_checkpoint.h.
 */
#ifndef AMPD_RECORDS_H
#define AMPD_RECORDS_H

#include "storage/records_checkpoint.h"
#include "storage/records_model.h"
#include "storage/records_step.h"
#include "storage/records_worker.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* So many of a model's newest operator actions with a request id are kept in memory, to recognise repeated requests. */
#define AMPD_ACTIONS_MAX 64

/* The state of a model as clients see it (docs/states.md). */
enum ampd_model_state {
    AMPD_MODEL_CREATED = 1,
    AMPD_MODEL_LOADING = 2,
    AMPD_MODEL_WAITING = 3,
    AMPD_MODEL_RUNNING = 4,
    AMPD_MODEL_STALLED = 5,
    AMPD_MODEL_DONE = 6,
};

/* An operator's action that carried a request id: enough of its row to answer a repeated request. */
struct ampd_act_record {
    enum ampd_row_kind kind; /* SET, RESET, EVICT or LR; EPOCH: a rollback */
    uint64_t epoch, step;    /* of the action's row */
    uint64_t from_step;      /* first step for which the action holds */
    uint64_t base_epoch;     /* kind EPOCH: epoch of the checkpoint rolled back to, whose step is `step` */
    uint32_t rank;           /* kind EVICT: the rank whose worker was evicted */
    bool nobody;             /* kind EVICT: no worker held the rank; not stored */
    struct ampd_carry after; /* scaler state and learning rate after the action */
    bool superseded;         /* a later epoch has superseded the action */
    char request_id[AMPD_REQUEST_ID_MAX];
};

/* All that the store holds about one model, as it is loaded at start. */
struct ampd_model_record {
    struct ampd_model_spec spec;
    int64_t created_us;             /* UTC microseconds */
    char owner[AMPD_ACTOR_MAX];     /* the user that created it, from the first epoch's row; "": not known */
    uint64_t epoch;                 /* the highest stored epoch; 0: none yet */
    uint64_t base_epoch, base_step; /* the checkpoint that this epoch starts from, see ampd_epoch_record */
    struct ampd_step_row *last;     /* the newest row of the history; NULL: there is none; owned */
    /*
     * The rows that a replay of the vote journal needs, ascending; owned. Only with durability STEP and a checkpoint:
     * the newest epoch's rows of steps from the newest checkpoint's step on, and operators' actions of the last step
     * and of the one before it, since shards received those together with the last step's verdict.
     */
    uint32_t rows_count;
    struct ampd_step_row *rows;
    uint32_t workers_count;
    struct ampd_worker_record *workers; /* ascending rank; owned */
    uint32_t checkpoints_count;
    struct ampd_checkpoint_record *checkpoints; /* those that are not void, ascending by (epoch, step); owned */
    uint32_t acts_count;
    struct ampd_act_record acts[AMPD_ACTIONS_MAX]; /* the newest actions with a request id, oldest first */
    bool deleting;                                 /* DeleteModel was begun and must be completed */
    /*
     * Set by the I/O layer, not by the store: the model has durability STEP, but this data directory has no journal of
     * it, so no vote of it can be replayed here (ampd_vote_journal_find).
     */
    bool no_journal;
};

#endif
