/* Calls that have waited too long (sweep.c). Private to server/core. */
#ifndef AMPD_CORE_SWEEP_H
#define AMPD_CORE_SWEEP_H

struct ampd_core;

/* Ends calls that have waited as long as a missing rank may hold a step up: nothing waits without a deadline. */
void ampd_calls_sweep(struct ampd_core *core);

#endif
