/*
 * The journals of votes of models with `durability: step`, on the journal's thread. Functions run on the loop's thread,
 * and their work is done in the order of the calls.
 */
#ifndef AMPD_IO_WRITE_JOURNAL_H
#define AMPD_IO_WRITE_JOURNAL_H

#include "server/core/core.h"

struct ampd_vote_journal;
struct ampd_server;

struct io_write_journal {
    /* By index of the model; NULL: not opened yet. Owned; used by the journal's thread only. */
    struct ampd_vote_journal *journals[AMPD_MODELS_MAX];
};

/*
 * Writes a vote, and gives the core JOURNALLED once it is synced. order->g is borrowed until then, the rest is copied.
 * A full disk is waited for; any other failure ends the process.
 */
void io_write_journal(struct ampd_server *server, const struct ampd_vote_journal_order *order);

/* Reads a vote into order->g, which is borrowed, and gives the core REPLAYED with 0, AMP_ENOTFOUND or another code. */
void io_write_journal_replay(struct ampd_server *server, const struct ampd_replay_order *order);

/* Removes the votes of other epochs than `epoch`, and those up to `step`: they are not needed any more. */
void io_write_journal_prune(struct ampd_server *server, const char *model, uint64_t epoch, uint64_t step);

/* Closes the journal of a model that is being deleted: its index and its name may soon be those of another model. */
void io_write_journal_close(struct ampd_server *server, const char *model);

/* Closes all journals. The journal's thread must have ended. */
void io_write_journal_close_all(struct ampd_server *server);

#endif
