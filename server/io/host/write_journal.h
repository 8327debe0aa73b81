/* Votes of models with `durability: step`, on the journal's thread. */
#ifndef AMPD_IO_WRITE_JOURNAL_H
#define AMPD_IO_WRITE_JOURNAL_H

#include "server/core/core.h"

struct ampd_vote_journal;
struct ampd_server;

struct io_write_journal {
    struct ampd_vote_journal *journals[AMPD_MODELS_MAX]; /* of the journal's thread; NULL: not opened yet. Owned */
};

/* Writes a vote, and tells the core once it is synced. */
void io_write_journal(struct ampd_server *server, const struct ampd_vote_journal_order *order);

/* Reads a vote back. */
void io_write_journal_replay(struct ampd_server *server, const struct ampd_replay_order *order);

/* Votes of other epochs, and those up to `step`, are not needed any more. */
void io_write_journal_prune(struct ampd_server *server, const char *model, uint64_t epoch, uint64_t step);

/* The model is deleted: its index and its name may be another one's soon. */
void io_write_journal_close(struct ampd_server *server, const char *model);

/* Once the journal's thread has ended. */
void io_write_journal_close_all(struct ampd_server *server);

#endif
