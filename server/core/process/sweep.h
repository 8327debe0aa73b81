/* Calls that have waited too long (sweep.c). On the core's thread. Private to server/core. */
#ifndef AMPD_CORE_SWEEP_H
#define AMPD_CORE_SWEEP_H

struct ampd_core;

/*
 * Ends calls that have waited for a lease and the model's loss_timeout together, the longest time that a missing rank
 * may hold a step up: nothing waits without a deadline. Also sends LOAD_WANT for loads that wait.
 */
void ampd_calls_sweep(struct ampd_core *core);

#endif
