/*
 * Whether one who waits looks for work for a while before sleeping. To be woken costs a thread 40 to 80 us where its core stops
 * meanwhile (measured on virtual machines), more than a small piece of work takes; to look in vain costs the time of the look.
 * Who looks yields the core between two looks. Pure: times are given, in nanoseconds of one clock. One thread at a time.
 */
#ifndef AMP_LOOK_H
#define AMP_LOOK_H

#include <stdbool.h>
#include <stdint.h>

/* After so many looks in vain in a row ... */
#define AMP_LOOK_MISSES 4
/* ... so many waits sleep at once before the next look. */
#define AMP_LOOK_REST_WAITS 64
/* A look that ends so much later than it should: others wanted the core, and whoever yields gets it back later than who sleeps. */
#define AMP_LOOK_CROWD_NS UINT64_C(100000)
/*
 * Then it does not look for so many times as long, so that looking loses a 17th of the time to others; but for no more than this, which is
 * 16 slices of a scheduler's: who comes back later has perhaps not wanted the core, for a loop need not be run all the time.
 */
#define AMP_LOOK_CROWD_REST        16
#define AMP_LOOK_CROWD_REST_MAX_NS UINT64_C(100000000)

/* Zeroed: no look has been in vain. */
struct amp_look {
    unsigned misses;      /* in a row */
    unsigned rest;        /* waits that sleep at once */
    uint64_t rest_end_ns; /* until then all do */
};

/* A wait begins: whether to look. */
bool amp_look_begin(struct amp_look *look, uint64_t now_ns);

/* A look that was to end at `end_ns` ended now, with work or without. */
void amp_look_found(struct amp_look *look, uint64_t end_ns, uint64_t now_ns);
void amp_look_missed(struct amp_look *look, uint64_t end_ns, uint64_t now_ns);

#endif
