/* What follows from the row of a verdict, on every shard alike (verdict_rows.c). Private to server/core. */
#ifndef AMPD_CORE_VERDICT_ROWS_H
#define AMPD_CORE_VERDICT_ROWS_H

#include "server/core/wire/step_messages.h"
#include "storage/records.h"

#include <stdbool.h>

struct ampd_model;
struct ampd_plan;

/* Whether no step opens after this record: at the floor after too many overflows in a row, under FREEZE and FAIL. */
bool ampd_floor_stops(const struct ampd_model_spec *spec, const struct amp_scaler_state *scaler);
/* Learning rates and bias corrections of an applied step, from its row. */
void ampd_verdict_rates(const struct ampd_model *model, struct ampd_verdict_message *verdict);
/* The verdict as it was made, from its row. */
void ampd_verdict_of_row(const struct ampd_model *model, const struct ampd_step_row *row,
                         struct ampd_verdict_message *verdict);
/* What apply does with it. */
void ampd_verdict_plan(const struct ampd_model *model, const struct ampd_verdict_message *verdict,
                       struct ampd_plan *plan);

#endif
