/*
 * What was found that is not finite, by parameter and rank: of a shard, or of all of them (findings.c). Private to
 * server/core.
 */
#ifndef AMPD_CORE_FINDINGS_H
#define AMPD_CORE_FINDINGS_H

#include "server/core/wire/step_messages.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_model;

/* What was found of one parameter. Its rows: of ranks by their number, then the range's and the sum's. */
struct ampd_finding {
    uint32_t parameter;
    uint32_t count; /* of ranks */
    struct ampd_overflow_row rows[AMPD_WORLD_MAX + 2];
};

void ampd_finding_init(struct ampd_finding *finding, uint32_t parameter, uint32_t world_size);
void ampd_finding_add(struct ampd_finding *finding, const struct ampd_overflow_row *from);
/* The rows that a parameter has, by all that was found of it: of ranks, or else of range and sum. */
uint32_t ampd_finding_rows(const struct ampd_finding *finding, struct ampd_overflow_row *rows);
bool ampd_row_overflows(const struct ampd_overflow_row *row);
bool ampd_vote_overflows(const struct ampd_vote *vote); /* by what this shard has found: so nobody will ask for its g */
/* Whether the parameter lies in blocks of another shard, too. */
bool ampd_vote_shares(const struct ampd_model *model, uint32_t shard, uint32_t parameter);

#endif
