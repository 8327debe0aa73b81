/* Who holds a rank, and whose calls are refused (ranks.c). Private to server/core. */
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

/*
 * Whether calls of an incarnation are refused: on shard 0 those of each that does not hold the rank, on another shard
 * as the steps that were opened list it (is_fenced_by_lists). Then *error says why.
 */
bool ampd_ranks_is_fenced(const struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation,
                          struct amp_error *error);
/* Whether the incarnation is known to hold the rank: on another shard than 0 the one that the steps list. */
bool ampd_ranks_holds(const struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation);
/* As ampd_ranks_is_fenced, and counts the refusal: the call is to end with *error. */
bool ampd_ranks_refuse(struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation,
                       struct amp_error *error);
/* Who has taken the rank from the process of that incarnation, as a sentence; "": nobody. */
void ampd_ranks_taken(const struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation, char *text,
                      size_t size);
void ampd_ranks_joined(struct ampd_model *model, const struct ampd_pending *join); /* before its record is set */
void ampd_ranks_left(struct ampd_model *model, uint32_t rank);
/* Whether the lease of its holder runs. */
bool ampd_ranks_is_running(const struct ampd_model *model, const struct ampd_worker *worker);
/*
 * A sign of life: renews a running lease; another shard tells shard 0. False: that incarnation holds the rank, but its
 * lease has ended.
 */
bool ampd_ranks_renew(struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation);
/* Another shard: it is noted, and shard 0 is told (shard/alive.c). */
void ampd_ranks_heard(struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation);
void ampd_ranks_tick(struct ampd_model *model, uint32_t rank);
uint64_t ampd_ranks_next_ms(const struct ampd_worker *worker); /* when tick has something to tell; 0: never */

#endif
