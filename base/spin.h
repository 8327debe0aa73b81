/*
 * Decides whether a thread that waits for work spins for a while before it sleeps. To spin is to poll for work and to
 * yield the core (sched_yield) between two polls. Waking a sleeping thread costs 40 to 80 us if its core was halted
 * meanwhile (measured on virtual machines), more than a small piece of work takes; a spin that finds no work costs all
 * the time it lasts.
 *
 * The caller spins; this module only decides, from what earlier spins found. It reads no clock: all times are given by
 * the caller, in nanoseconds of one monotonic clock. A struct amp_spin is used by one thread at a time.
 */
#ifndef AMP_SPIN_H
#define AMP_SPIN_H

#include <stdbool.h>
#include <stdint.h>

/* After this many spins in a row that found no work, the next AMP_SPIN_REST_WAITS waits sleep without spinning. */
#define AMP_SPIN_MISSES     4
#define AMP_SPIN_REST_WAITS 64

/*
 * A spin that ends at least this many nanoseconds later than planned shows that other threads use the core: a thread
 * that yields its core then gets it back later than one that sleeps.
 */
#define AMP_SPIN_CONTENTION_NS UINT64_C(100000)

/*
 * After such a late spin there is no spin for AMP_SPIN_CONTENTION_REST times as long as it was late, so that a spinning
 * thread loses at most a 17th of its time to the others. The pause is at most AMP_SPIN_CONTENTION_REST_MAX_NS, which is
 * 16 time slices of a scheduler: a spin that ends even later was probably delayed by something else than other threads
 * on the core, such as an event loop that its owner did not run.
 */
#define AMP_SPIN_CONTENTION_REST        16
#define AMP_SPIN_CONTENTION_REST_MAX_NS UINT64_C(100000000)

/* What earlier spins found. All zero is the state at the start. */
struct amp_spin {
    unsigned misses;      /* spins in a row that found no work, at most AMP_SPIN_MISSES */
    unsigned rest;        /* so many of the next waits sleep without spinning */
    uint64_t rest_end_ns; /* until this time all waits sleep without spinning */
};

/* Called when a wait begins. True: the caller spins, and reports the end of the spin with one of the two below. */
bool amp_spin_begin(struct amp_spin *spin, uint64_t now_ns);

/*
 * Report that a spin which was planned to end at `end_ns` ended now, having found work or not. Work that came at
 * `end_ns` or later counts as not found.
 */
void amp_spin_found(struct amp_spin *spin, uint64_t end_ns, uint64_t now_ns);
void amp_spin_missed(struct amp_spin *spin, uint64_t end_ns, uint64_t now_ns);

#endif
