/* The journal of votes: written before a vote leaves, replayed at a start (journal.c). Private to server/core. */
#ifndef AMPD_CORE_SHARD_JOURNAL_H
#define AMPD_CORE_SHARD_JOURNAL_H

#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_event_replayed;
struct ampd_model;
struct ampd_open;
struct ampd_vote;

/*
 * Durability STEP: the way from a checkpoint to the last decided step, after a start or a RESTORE that came to nothing.
 */
struct ampd_replay {
    bool on;
    struct ampd_step_row
        *rows; /* decided in this epoch, from the newest checkpoint's step on; kept while it lasts; owned */
    uint32_t count, capacity, next; /* next: the one whose record is asked for; count: one more, not decided */
    bool carry_set;
    struct ampd_carry carry; /* after the newest row, whatever its kind */
    bool late_act;           /* an operator action came while a step was open: that step keeps the earlier scale */
    float open_scale;        /* of that step */
    uint64_t open_scale_id;
    uint64_t token; /* of the record that is being read; 0: none */
};

/* The votes of a model, and how a step goes on from them after a start. */
struct ampd_shard_journal {
    uint64_t token;                   /* of the vote that is being written; g must stay. 0: none */
    struct ampd_vote_journal_key key; /* of it */
    struct ampd_vote *kept; /* VOTED before a restart: the vote; its slots' bytes are gone, step.plan is given; owned */
    struct ampd_replay replay;
    bool found_carry; /* at the start: the record of the newest row, an operator's action perhaps; and */
    struct ampd_carry newest_carry;
    bool late_action; /* whether a step was open then, with another scale than that */
    float open_scale;
    uint64_t open_scale_id;
};

void ampd_shard_journal_vote(struct ampd_model *model);   /* the vote is written, */
void ampd_shard_journal_stored(struct ampd_model *model); /* and may leave */
void ampd_shard_journal_prune(struct ampd_model *model, uint64_t step);
void ampd_shard_journal_found(struct ampd_model *model, const struct ampd_model_record *record);
void ampd_shard_journal_start(struct ampd_model *model);
void ampd_shard_journal_restored(struct ampd_model *model); /* the checkpoint is in memory */
void ampd_shard_journal_read_on(struct ampd_model *model);  /* asks for the next record */
void ampd_shard_journal_replayed(struct ampd_model *model, const struct ampd_event_replayed *event);
void ampd_shard_journal_applied(struct ampd_model *model);
void ampd_shard_journal_give_up(struct ampd_model *model, const char *why);
void ampd_shard_journal_stop(struct ampd_model *model);
/* The rows that a replay goes by: one more is decided; those below the step are in a checkpoint; the epoch is over. */
void ampd_shard_journal_note(struct ampd_model *model, const struct ampd_step_row *row);
void ampd_shard_journal_trim(struct ampd_model *model, uint64_t step);
void ampd_shard_journal_clear(struct ampd_model *model);
/* Whether the vote that is held serves the OPEN too. */
bool ampd_shard_journal_fits(const struct ampd_model *model, const struct ampd_open *open);
void ampd_shard_journal_drop(struct ampd_model *model);   /* the vote that is held, with its slots */
void ampd_shard_journal_forget(struct ampd_model *model); /* the vote alone: its step is over */

#endif
