/*
 * The journal of votes with `durability: step`: a vote is written before it leaves, and replayed at a start
 * (journal.c). All functions run on the thread that steps the core. Without that durability _prune and _note have no
 * effect, and no vote is written, found or kept. Private to server/core.
 */
#ifndef AMPD_CORE_SHARD_JOURNAL_H
#define AMPD_CORE_SHARD_JOURNAL_H

#include "server/core/base/local.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_event_replayed;
struct ampd_model;
struct ampd_open;
struct ampd_vote;

/* The way from a checkpoint to the last decided step, after a start or after a RESTORE that no epoch has followed. */
struct ampd_replay {
    bool on;
    /* [count] rows of the steps decided in this epoch, from the newest checkpoint's step on; owned. */
    struct ampd_step_row *rows;
    /* next: the row whose journal record is asked for; next == count asks for a vote that has no verdict yet. */
    uint32_t count, capacity, next;
    uint64_t token; /* of the record that is being read; 0: none is */
};

/* The votes of a model, and how a step goes on from them after a start. */
struct ampd_shard_journal {
    uint64_t token; /* of the vote that is being written, during which g must not change; 0: none is */
    struct ampd_vote_journal_key key; /* of that vote */
    /* A vote from before a restart, of the try that is open. Its slots' bytes are gone: step.plan is `given`. Owned. */
    struct ampd_vote *kept;
    struct ampd_replay replay;
    struct ampd_found found; /* for a coordinator that starts in this process; without the base (ampd_local_found) */
};

/* Writes the record of the vote on the CLOSED step. ampd_shard_journal_stored follows when it is synced. */
void ampd_shard_journal_vote(struct ampd_model *model);
/* AMPD_EVENT_JOURNALLED: the vote leaves, unless another try has come meanwhile; then that one goes on. */
void ampd_shard_journal_stored(struct ampd_model *model);
/* As ampd_core_wants_vote (core_info.h). */
bool ampd_shard_journal_wanted(const struct ampd_model *model);
/* Asks for records up to this step, and those of other epochs, to be removed. */
void ampd_shard_journal_prune(struct ampd_model *model, uint64_t step);
/* Takes the rows of a model found at a start; a replay follows if it has a checkpoint and its journal counts. */
void ampd_shard_journal_found(struct ampd_model *model, const struct ampd_model_record *record);
/* All models have been found: begins the replay of this one, if there is one. */
void ampd_shard_journal_start(struct ampd_model *model);
/* The checkpoint is in memory and cast: takes its step, version and scale record, and asks for the next record. */
void ampd_shard_journal_restored(struct ampd_model *model);
/* Asks for the record of the step after decided.step to be read into g. */
void ampd_shard_journal_read_on(struct ampd_model *model);
/* AMPD_EVENT_REPLAYED: applies the step again; after the last one the memory is READY, and SYNC is answered. */
void ampd_shard_journal_replayed(struct ampd_model *model, const struct ampd_event_replayed *event);
/* A replayed step is applied, or was skipped: asks for the next record. */
void ampd_shard_journal_applied(struct ampd_model *model);
/* A decided step, or the checkpoint, is missing or damaged: the memory is LOST, which the log says with the reason. */
void ampd_shard_journal_give_up(struct ampd_model *model, const char *why);
/* A RESTORE or deletion begins: the replay ends. A record that is being read still comes back, without effect. */
void ampd_shard_journal_stop(struct ampd_model *model);

/* Keeps the row of a step that was just decided, for a replay in this process. */
void ampd_shard_journal_note(struct ampd_model *model, const struct ampd_step_row *row);
/* Forgets the kept rows below a step, since a checkpoint of that step holds what they did. */
void ampd_shard_journal_trim(struct ampd_model *model, uint64_t step);
/* Forgets all kept rows, and what the start has found: the epoch is over, or they are of no use. */
void ampd_shard_journal_clear(struct ampd_model *model);

/* Whether a vote is kept and serves this OPEN too: the same step, scale id, ranks and incarnations. */
bool ampd_shard_journal_fits(const struct ampd_model *model, const struct ampd_open *open);
/* Drops the kept vote with its plan and slots; its pushes are ended with ABORTED, and the workers push again. */
void ampd_shard_journal_drop(struct ampd_model *model);
/* Frees the kept vote alone, for its step is over. */
void ampd_shard_journal_forget(struct ampd_model *model);

#endif
