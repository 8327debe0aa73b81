/*
 * Replays the stored verdicts of a model through another loss-scale policy, one page of steps at a time (ReplayPolicy).
 * Pure functions; any thread.
 */
#ifndef AMPD_IO_REPLAY_POLICY_H
#define AMPD_IO_REPLAY_POLICY_H

#include "amp/scaler.h"
#include "proto/msg.h"
#include "storage/records.h"
#include "storage/store.h"

/* A replay under way. */
struct io_replay {
    struct amp_scaler_config config; /* the other policy, checked, with its defaults filled in */
    struct amp_scaler_state state;   /* of that policy after the last step that was replayed */
};

/*
 * Begins a replay with the policy's first state. The config is checked, and has its defaults (amp_scaler_config_check).
 */
void io_replay_init(struct io_replay *replay, const struct amp_scaler_config *config);

/* Replays one stored row of kind STEP, and fills *out with the stored and the replayed scale after it. */
void io_replay_step(struct io_replay *replay, const struct ampd_step_row *row, struct ampd_msg_replayed_step *out);

/*
 * A page token has the key of the next page's first row and the policy's state before it, so that a page is made from
 * its own rows alone. Parsing sets *key and replay->state; replay->config is set by then. False, and nothing is set:
 * the text is no such token, or its state is one that the config cannot reach (it comes from another policy).
 */
void io_replay_token_write(const struct io_replay *replay, const struct ampd_history_key *key, char *text, size_t size);
bool io_replay_token_parse(const char *text, struct io_replay *replay, struct ampd_history_key *key);

#endif
