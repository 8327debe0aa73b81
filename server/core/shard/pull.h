/*
 * Pulls of a version of the parameters (pull.c). All functions run on the thread that steps the core. Private to
 * server/core.
 */
#ifndef AMPD_CORE_PULL_H
#define AMPD_CORE_PULL_H

#include <stdbool.h>
#include <stdint.h>

struct ampd_call;
struct ampd_core;
struct ampd_event_pull;
struct ampd_model;

/*
 * A Pull begins (AMPD_EVENT_PULL): it is granted, fails, or waits for its step to open. Renews the worker's lease.
 * Fails with AMP_EEXHAUSTED when AMPD_CALLS_WITHOUT_RANK_MAX calls are open and the caller is not known to hold a rank.
 */
void ampd_pull_begin(struct ampd_core *core, uint64_t call, const struct ampd_event_pull *pull);

/*
 * The stream is over, sent whole or broken off; called before the call is forgotten. Notes the time for step_times.h.
 */
void ampd_pull_closed(const struct ampd_call *call);

/* Judges every pull that waits again. */
void ampd_pull_retry(struct ampd_model *model);

/*
 * Apply has written a block of this copy: lists it to the pulls that stream the copy. `local`: from the shard's first.
 */
void ampd_pull_published(struct ampd_model *model, unsigned copy, uint64_t local);

/*
 * Ends the pulls that read the copy for a version below `version`, with ABORTED (PULL_OUTRUN). True: none reads it any
 * more. False: some have yet to let go, after which ampd_shard_try_apply calls again.
 */
bool ampd_pull_revoke(struct ampd_model *model, unsigned copy, uint64_t version);

#endif
