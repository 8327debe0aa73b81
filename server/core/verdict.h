/* From what the passes of a shard found to its vote, and from votes to a verdict (verdict.c). Private to server/core. */
#ifndef AMPD_VERDICT_H
#define AMPD_VERDICT_H

#include "server/core/messages.h"

struct ampd_model;
struct ampd_plan;

/* Whether no step opens after this record: at the floor after too many overflows in a row, under FREEZE and FAIL. */
bool ampd_floor_stops(const struct ampd_model_spec *spec, const struct amp_scaler_state *scaler);
struct ampd_verdict_message *ampd_verdict_make(struct ampd_model *model);
void ampd_vote_fill(struct ampd_model *model, struct ampd_vote *vote);
/* Whether the parameter lies in blocks of another shard, too. */
bool ampd_vote_shares(const struct ampd_model *model, uint32_t shard, uint32_t parameter);
bool ampd_vote_overflows(const struct ampd_vote *vote); /* by what this shard has found: so nobody will ask for its g */
bool ampd_row_overflows(const struct ampd_overflow_row *row);
bool ampd_vote_absent(const struct ampd_model *model, uint32_t parameter); /* from all contributors */
/* The verdict as it was made, from its row. */
void ampd_verdict_of_row(const struct ampd_model *model, const struct ampd_step_row *row,
                         struct ampd_verdict_message *verdict);
void ampd_verdict_plan(const struct ampd_model *model, const struct ampd_verdict_message *verdict,
                       struct ampd_plan *plan);

#endif
