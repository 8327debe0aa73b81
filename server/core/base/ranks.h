/*
 * Which worker holds a rank, and whose calls are refused (ranks.c). All functions run on the thread that steps the
 * core; rank < spec.world_size. Private to server/core.
 */
#ifndef AMPD_CORE_RANKS_H
#define AMPD_CORE_RANKS_H

#include "storage/records.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct amp_error;
struct ampd_model;
struct ampd_pending;
struct ampd_worker;

/* Whether the incarnation is known to hold the rank: on shard 0 with a lease that runs, else as the newest listed. */
bool ampd_ranks_holds(const struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation);

/*
 * Whether calls of an incarnation are refused; then *error says why (AMP_EABORTED, FENCED or RANK_TAKEN), and the
 * refusal is counted and logged: the call is to end with *error. Shard 0 refuses every incarnation that does not hold
 * the rank. Another shard goes by the lists of the steps that were opened: it refuses those older than the newest
 * listed, and that one while a step goes on without the rank.
 */
bool ampd_ranks_refuse(struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation,
                       struct amp_error *error);

/*
 * Writes which process has taken the rank from that incarnation's, or that it was evicted, as a sentence; "": neither.
 */
void ampd_ranks_taken(const struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation, char *text,
                      size_t size);

/* Shard 0: a Join is stored. Counts and logs it, and notes its process; called before worker.record is set. */
void ampd_ranks_joined(struct ampd_model *model, const struct ampd_pending *join);

/* Shard 0: a Leave is stored. Counts and logs it. */
void ampd_ranks_left(struct ampd_model *model, uint32_t rank);

/* Shard 0: whether the rank has a lease that has not ended. */
bool ampd_ranks_is_running(const struct ampd_model *model, const struct ampd_worker *worker);

/*
 * A sign of life. Shard 0 renews the lease, if it runs and the incarnation holds the rank; another shard notes it for
 * ALIVE. False: that incarnation holds the rank, but its lease has ended.
 */
bool ampd_ranks_renew(struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation);

/*
 * Another shard: notes the worker for the next ALIVE to shard 0 (shard/alive.c), which is due an eighth of a lease
 * later.
 */
void ampd_ranks_heard(struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation);

/* Logs in one line what was counted for the rank while its lines were held back, if that time is over. */
void ampd_ranks_tick(struct ampd_model *model, uint32_t rank);

/* When ampd_ranks_tick has something to log; 0: never. */
uint64_t ampd_ranks_next_ms(const struct ampd_worker *worker);

#endif
