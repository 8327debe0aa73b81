/* What must hold of a model between two events (invariants.c). On the core's thread. Private to server/core. */
#ifndef AMPD_CORE_INVARIANTS_H
#define AMPD_CORE_INVARIANTS_H

struct ampd_model;

/* Asserts what must hold of the model's machines between two events, over all blocks, calls and writes. */
void ampd_model_check(const struct ampd_model *model);

#endif
