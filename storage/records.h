/*
 * The plain types that the server's core decides with and the store keeps. No function, no I/O: core, stores and the
 * simulator meet here. By subject: records_model.h, records_worker.h, records_step.h, records_checkpoint.h; here a
 * model with all that is stored of it.
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

#define AMPD_ACTIONS_MAX 32 /* newest actions whose request ids are known: repeats come at once */

enum ampd_model_state {
    AMPD_MODEL_CREATED = 1,
    AMPD_MODEL_LOADING = 2,
    AMPD_MODEL_WAITING = 3,
    AMPD_MODEL_RUNNING = 4,
    AMPD_MODEL_STALLED = 5,
    AMPD_MODEL_DONE = 6,
};

/* An operator's action that had a request id: what a repeated request is answered with. */
struct ampd_act_record {
    enum ampd_row_kind kind; /* SET, RESET, EVICT, LR; EPOCH: a rollback */
    uint64_t epoch, step;    /* of its row */
    uint64_t from_step;
    uint64_t base_epoch; /* EPOCH: of the checkpoint; its step is `step` */
    uint32_t rank;       /* EVICT */
    struct ampd_carry after;
    bool superseded; /* a later epoch has taken it back */
    char request_id[AMPD_REQUEST_ID_MAX];
};

/* A model as it is found at start. */
struct ampd_model_record {
    struct ampd_model_spec spec;
    int64_t created_us;             /* UTC microseconds */
    char owner[AMPD_ACTOR_MAX];     /* who created it, by the note of the first epoch's row; "": not known */
    uint64_t epoch;                 /* highest stored */
    uint64_t base_epoch, base_step; /* of that epoch */
    struct ampd_step_row *last;     /* newest row of that epoch, or NULL; owned */
    /*
     * With durability STEP: the rows of that epoch from the newest checkpoint's step on, ascending, those of operator
     * actions too, for the journal's replay; and the actions of the step before, which went out with the
     * first of those verdicts; owned.
     */
    uint32_t rows_count;
    struct ampd_step_row *rows;
    uint32_t workers_count;
    struct ampd_worker_record *workers; /* owned */
    uint32_t checkpoints_count;
    struct ampd_checkpoint_record *checkpoints; /* ascending (epoch, step), not void; owned */
    uint32_t acts_count;
    struct ampd_act_record acts[AMPD_ACTIONS_MAX]; /* the newest with a request id, oldest first */
    bool deleting;                                 /* DeleteModel has begun: it goes on */
    /* Set by the host: durability STEP, and this disk has stored no epoch of the model, so no vote either. */
    bool no_journal;
};

#endif
