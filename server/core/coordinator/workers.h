/*
 * The workers of a model as the coordinator has them: ranks, incarnations and leases (workers.c). All functions run on
 * the thread that steps the core, on shard 0 unless it is said otherwise. Private to server/core.
 */
#ifndef AMPD_CORE_WORKERS_H
#define AMPD_CORE_WORKERS_H

#include "server/core/events.h"
#include "server/core/model/states.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_alive;
struct ampd_core;
struct ampd_model;
struct ampd_pending;

/*
 * Join: answered when the new incarnation is stored. Fails as ampd_core_coordinated does, with AMP_EINVAL for a request
 * that cannot be, and with AMP_ESTATE if no rank is free (NO_FREE_RANK) or the rank is in quarantine (QUARANTINED).
 */
void ampd_workers_join(struct ampd_core *core, uint64_t call, const struct ampd_event_join *join);

/* Handles ALIVE: renews the leases of workers that another shard has heard from. */
void ampd_workers_alive(struct ampd_model *model, const struct ampd_alive *alive);

/* The record of a Join or a Leave is stored: it takes effect, its call is answered, and steps may open. */
void ampd_workers_stored(struct ampd_model *model, const struct ampd_pending *pending);

/* KeepAlive, the caller having renewed the lease: answers at once whether it is valid, and where the model is. */
void ampd_workers_keep_alive(struct ampd_core *core, uint64_t call, const struct ampd_event_worker *worker);

/* Leave: answered when it is stored. ABORTED if the incarnation does not hold the rank any more. */
void ampd_workers_leave(struct ampd_core *core, uint64_t call, const struct ampd_event_worker *worker);

/* Whether a rank may be evicted now. False: the call has its answer (no such rank, or a write of it is under way). */
bool ampd_workers_may_evict(struct ampd_model *model, uint64_t call, uint32_t rank);

/*
 * Ends the lease of the worker that holds the rank, as a Leave does, and refuses that incarnation as RANK_TAKEN. False:
 * no worker holds it, or it has left, and a line of the log was all. ampd_workers_may_evict must be true.
 */
bool ampd_workers_evict(struct ampd_model *model, uint32_t rank, const struct ampd_note *note);

/* Whether enough ranks are there for a step to open: all (on_loss WAIT), or min_workers and a quorum (SHRINK). */
bool ampd_workers_enough(const struct ampd_model *model);

/* The number of ranks that are enough for a step to open; 1 or more. */
uint32_t ampd_workers_least(const struct ampd_model *model);

/* Whether a step that opens now expects the rank: always with WAIT, those that live under the epoch with SHRINK. */
bool ampd_workers_expected(const struct ampd_model *model, uint32_t rank);

/*
 * Puts a rank in quarantine: its lease ends, and nobody may join as it for AMPD_QUARANTINE_MS. False, and nothing is
 * done, if steps could not go on without it.
 */
bool ampd_workers_quarantine(struct ampd_model *model, uint32_t rank);

/* Whether the rank is in quarantine at this time. A new epoch ends it. Any shard; false on others than 0. */
bool ampd_workers_quarantined(const struct ampd_model *model, uint32_t rank, uint64_t now_ms);

/* Whether a worker of the present epoch holds a lease that runs; then *rank is the lowest such rank. */
bool ampd_workers_holds_lease(const struct ampd_model *model, uint32_t *rank);

/* Ends leases whose time is over, and lets the step go on without their ranks, or stalls it, as on_loss says. */
void ampd_workers_tick(struct ampd_model *model);

/* When ampd_workers_tick has something to do; 0: never. */
uint64_t ampd_workers_next_ms(const struct ampd_model *model);

/*
 * SYNC has found nothing lost: which ranks count as joined under the epoch, with a lease that begins now. `started`:
 * this process knows the workers from its store alone, so all that had not left are meant; else those that live.
 * `begun`: a step of the epoch had begun; without it, workers that are known from the store alone have to join again.
 */
void ampd_workers_adopt(struct ampd_model *model, bool started, bool begun);

/*
 * A start has found the record of a worker, on any shard: it holds its rank, with a lease that begins now, unless it
 * had left.
 */
void ampd_workers_found(struct ampd_model *model, const struct ampd_worker_record *record);

/* A rank that the step cannot go on without and that has been gone for loss_timeout, or AMPD_NO_RANK. */
uint32_t ampd_workers_gone(const struct ampd_model *model);

#endif
