/* Rows of the history about what an operator did (action_rows.c). On the core's thread. Private to server/core. */
#ifndef AMPD_CORE_ACTION_ROWS_H
#define AMPD_CORE_ACTION_ROWS_H

#include <stdint.h>

struct ampd_action;
struct ampd_model;

/*
 * Stores the row of an action behind a step (AMPD_PERSIST_ACT). `call` is answered when it is stored; 0: none is.
 * `old_lr`, of an action of kind LR: the base rate before it; 0: not known, as on other shards than 0.
 */
void ampd_action_row_persist(struct ampd_model *model, uint64_t call, const struct ampd_action *act, double old_lr,
                             uint64_t epoch, uint64_t step);

#endif
