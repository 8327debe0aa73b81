/*
 * The journals of votes of models with `durability: step`, on the journal's thread. Functions run on the loop's thread,
 * and their work is done in the order of the calls, except that a write that fails may wait to be tried again: what is
 * to be removed then goes before it. The core gives one write at a time of each model.
 */
#ifndef AMPD_IO_WRITE_JOURNAL_H
#define AMPD_IO_WRITE_JOURNAL_H

#include "base/list.h"
#include "server/core/core.h"

#include <uv.h>

struct ampd_vote_journal;
struct ampd_server;

struct io_write_journal {
    /* By index of the model; NULL: not opened yet. Owned; used by the journal's thread only. */
    struct ampd_vote_journal *journals[AMPD_MODELS_MAX];
    struct amp_list waiting; /* tasks that have failed and wait for the timer, owned */
    uv_timer_t timer;        /* runs while `waiting` is not empty */
    unsigned retried;        /* tasks that have failed and are tried again; used by the journal's thread only */
};

/* Sets the struct up, which must be zeroed. */
void io_write_journal_init(struct io_write_journal *journal);

/* Opens and closes the timer. The loop must run on after the close. */
void io_write_journal_open(struct ampd_server *server);
void io_write_journal_close_timer(struct ampd_server *server);

/*
 * Writes a vote, and gives the core JOURNALLED once it is synced. order->g is borrowed until then, the rest is copied.
 * A full disk is waited for, as long as the vote is wanted (ampd_core_wants_vote); any other failure ends the process.
 */
void io_write_journal(struct ampd_server *server, const struct ampd_vote_journal_order *order);

/*
 * Makes the directory of a model's journal (ampd_vote_journal_make), whose epoch io_persist has stored. Then gives the
 * core PERSISTED with its token, and calls the model's watchers (watchers.h). A full disk, or one that may not be
 * written, is waited for until the model is being deleted; any other failure ends the process.
 */
void io_write_journal_make(struct ampd_server *server, const char *model, uint64_t token);

/* Reads a vote into order->g, which is borrowed, and gives the core REPLAYED with 0, AMP_ENOTFOUND or another code. */
void io_write_journal_replay(struct ampd_server *server, const struct ampd_replay_order *order);

/* Removes the votes of other epochs than `epoch`, and those up to `step`: they are not needed any more. */
void io_write_journal_prune(struct ampd_server *server, const char *model, uint64_t epoch, uint64_t step);

/* Closes the journal of a model that is being deleted: its index and its name may soon be those of another model. */
void io_write_journal_close(struct ampd_server *server, const char *model);

/* Closes all journals, and drops the writes that still wait. The journal's thread must have ended. */
void io_write_journal_close_all(struct ampd_server *server);

#endif
