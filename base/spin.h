/*
 * Whether one who waits spins for a while before sleeping: it polls for work, and yields the core between two polls. To
 * be woken costs a thread 40 to 80 us where its core stops meanwhile (measured on virtual machines), more than a small
 * piece of work takes; a spin that finds nothing costs the time it lasts. Pure: times are given, in nanoseconds of one
 * clock. One thread at a time.
 */
#ifndef AMP_SPIN_H
#define AMP_SPIN_H

#include <stdbool.h>
#include <stdint.h>

/* After so many spins in a row that found nothing ... */
#define AMP_SPIN_MISSES 4
/* ... so many waits sleep at once before the next spin. */
#define AMP_SPIN_REST_WAITS 64
/*
 * A spin that ends so much later than it should: others wanted the core, and whoever yields gets it back later than who
 * sleeps.
 */
#define AMP_SPIN_CROWD_NS UINT64_C(100000)
/*
 * Then there is no spin for so many times as long, so that spinning loses a 17th of the time to others; but for no more
 * than this, which is 16 slices of a scheduler's: who comes back later has perhaps not wanted the core, for a loop need
 * not be run all the time.
 */
#define AMP_SPIN_CROWD_REST        16
#define AMP_SPIN_CROWD_REST_MAX_NS UINT64_C(100000000)

/* Zeroed: no spin has been in vain. */
struct amp_spin {
    unsigned misses;      /* in a row */
    unsigned rest;        /* waits that sleep at once */
    uint64_t rest_end_ns; /* all waits sleep at once until then */
};

/* A wait begins: whether to spin. */
bool amp_spin_begin(struct amp_spin *spin, uint64_t now_ns);

/* A spin that was to end at `end_ns` ended now, with work or without. */
void amp_spin_found(struct amp_spin *spin, uint64_t end_ns, uint64_t now_ns);
void amp_spin_missed(struct amp_spin *spin, uint64_t end_ns, uint64_t now_ns);

#endif
