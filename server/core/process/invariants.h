/* What holds between two events (invariants.c). Private to server/core. */
#ifndef AMPD_CORE_INVARIANTS_H
#define AMPD_CORE_INVARIANTS_H

struct ampd_model;

void ampd_model_check(const struct ampd_model *model); /* what holds between two events: asserts */

#endif
