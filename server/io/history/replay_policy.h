/* The stored verdicts of a model run through another policy, a page at a time. Pure. */
#ifndef AMPD_IO_REPLAY_POLICY_H
#define AMPD_IO_REPLAY_POLICY_H

#include "amp/scaler.h"
#include "proto/msg.h"
#include "storage/records.h"
#include "storage/store.h"

struct io_replay {
    struct amp_scaler_config config; /* checked, with its defaults */
    struct amp_scaler_state state;   /* after the last step that was replayed */
};

/* The state before the first step. The config must have been checked. */
void io_replay_init(struct io_replay *replay, const struct amp_scaler_config *config);

/* Moves by one stored row of kind STEP and tells what came of it. */
void io_replay_step(struct io_replay *replay, const struct ampd_step_row *row, struct ampd_msg_replayed_step *out);

/*
 * A page token holds the key of the next row and what the policy knows by then, so that a page costs only its own rows.
 * Parsing is the reverse: false for a text that is none, or whose state the config cannot have come to (it is of
 * another policy).
 */
void io_replay_token_write(const struct io_replay *replay, const struct ampd_history_key *key, char *text, size_t size);
bool io_replay_token_parse(const char *text, struct io_replay *replay, struct ampd_history_key *key);

#endif
