/*
 * What was found that is not finite, by parameter and rank, in the blocks of one shard or of all of them (findings.c).
 * On the core's thread. Private to server/core.
 */
#ifndef AMPD_CORE_FINDINGS_H
#define AMPD_CORE_FINDINGS_H

#include "server/core/wire/step_messages.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_model;

/* What was found of one parameter: a row for each rank, by its number, then the range's and the sum's. */
struct ampd_finding {
    uint32_t parameter;
    uint32_t count;                                    /* of ranks: world_size */
    struct ampd_overflow_row rows[AMPD_WORLD_MAX + 2]; /* [count + 2], also those with nothing found */
};

/* Begins a finding of one parameter, with nothing found. */
void ampd_finding_init(struct ampd_finding *finding, uint32_t parameter, uint32_t world_size);

/* Adds what a row of the same parameter says to that of its rank, of the range or of the sum. */
void ampd_finding_add(struct ampd_finding *finding, const struct ampd_overflow_row *from);

/*
 * Writes the rows that the parameter gets, once all that was found of it is added: those of ranks with an Inf or NaN,
 * or if there is none, those of range and sum. `rows` has room for AMPD_WORLD_MAX + 2. Returns how many there are.
 */
uint32_t ampd_finding_rows(const struct ampd_finding *finding, struct ampd_overflow_row *rows);

/* Whether a row counts an Inf, a NaN or a value out of range. */
bool ampd_row_overflows(const struct ampd_overflow_row *row);

/* Whether this vote alone makes the step an overflow, so that nobody will ask for the gradient g. */
bool ampd_vote_overflows(const struct ampd_vote *vote);

/* Whether a parameter of this shard reaches into blocks of another shard, too. */
bool ampd_vote_shares(const struct ampd_model *model, uint32_t shard, uint32_t parameter);

#endif
