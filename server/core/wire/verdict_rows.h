/*
 * What follows from the row of a verdict, the same bits on every shard (verdict_rows.c). Pure functions. Private to
 * server/core.
 */
#ifndef AMPD_CORE_VERDICT_ROWS_H
#define AMPD_CORE_VERDICT_ROWS_H

#include "server/core/wire/step_messages.h"
#include "storage/records.h"

#include <stdbool.h>

struct ampd_model;
struct ampd_plan;

/* Whether there were max_consecutive_overflows overflows in a row. */
bool ampd_is_unstable(const struct ampd_model_spec *spec, const struct amp_scaler_state *scaler);

/* Whether no step opens after this record: unstable at the floor, under FREEZE and FAIL. */
bool ampd_floor_stops(const struct ampd_model_spec *spec, const struct amp_scaler_state *scaler);

/* Fills plan->applies, for each group of parameters, with what apply does by the row of an applied step. */
void ampd_verdict_plan(const struct ampd_model *model, const struct ampd_step_row *row, struct ampd_plan *plan);

#endif
