/* Records that identify processes and workers: fences, incarnations, and the worker of each rank. See records.h. */
#ifndef AMPD_RECORDS_WORKER_H
#define AMPD_RECORDS_WORKER_H

#include "storage/records_model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AMPD_BOOT_ID_BYTES 16

/*
 * Identifies one process of a shard. Its counter is higher than those of all processes that were this shard before;
 * messages with a lower one are refused (docs/step-protocol.md section 1).
 */
struct ampd_fence {
    uint64_t counter;                    /* a stored count of starts; with etcd: a revision of etcd plus a base */
    uint8_t boot_id[AMPD_BOOT_ID_BYTES]; /* random, with etcd the id of the lease: tells equal counters apart */
};

/*
 * Identifies what a worker does between one Join and the next; no incarnation is given out twice. Incarnations are
 * ordered by the fence, then by the number of the Join, which is in the low bits of `counter`. The bits above it are
 * random, so that a worker cannot guess the incarnation of another. {0, 0} is no incarnation.
 */
struct ampd_incarnation {
    uint64_t fence;   /* counter of the coordinator's fence at the Join */
    uint64_t counter; /* number of the Join under that fence, from 1, below AMPD_INCARNATION_SECRET_BITS random bits */
};

/*
 * 2^27 Joins of one process would take days in which it did nothing else. Number and random bits have 63 bits together:
 * an SQL integer is signed.
 */
#define AMPD_INCARNATION_NUMBER_BITS 27
#define AMPD_INCARNATION_SECRET_BITS 36
#define AMPD_INCARNATION_NUMBER_MAX  (((uint64_t)1 << AMPD_INCARNATION_NUMBER_BITS) - 1)
#define AMPD_INCARNATION_SECRET_MAX  (((uint64_t)1 << AMPD_INCARNATION_SECRET_BITS) - 1)

static inline bool ampd_incarnation_same(struct ampd_incarnation a, struct ampd_incarnation b)
{
    return a.fence == b.fence && a.counter == b.counter;
}

/* Whether `a` was given out after `b`. */
static inline bool ampd_incarnation_newer(struct ampd_incarnation a, struct ampd_incarnation b)
{
    uint64_t numbers[2] = {a.counter & AMPD_INCARNATION_NUMBER_MAX, b.counter & AMPD_INCARNATION_NUMBER_MAX};
    return a.fence > b.fence || (a.fence == b.fence && numbers[0] > numbers[1]);
}

/* Whether `a` names the Join of `b`, with another secret. */
static inline bool ampd_incarnation_is_guess(struct ampd_incarnation a, struct ampd_incarnation b)
{
    return !ampd_incarnation_same(a, b) && !ampd_incarnation_newer(a, b) && !ampd_incarnation_newer(b, a);
}

/* A worker whose push counts in a step whose contributors are fixed. */
struct ampd_contributor {
    uint32_t rank;
    struct ampd_incarnation incarnation;
    float weight; /* factor of its gradient in the sum */
};

/* The contributor of `list` that has this rank, or NULL. */
static inline const struct ampd_contributor *ampd_contributor_of(const struct ampd_contributor *list, size_t count,
                                                                 uint32_t rank)
{
    for (size_t i = 0; i < count; i++)
        if (list[i].rank == rank)
            return &list[i];
    return NULL;
}

/* A rank and the worker that has it. */
struct ampd_worker_record {
    char name[AMPD_NAME_MAX]; /* of the worker */
    uint32_t rank;
    struct ampd_incarnation incarnation; /* from its last Join */
    bool left;                           /* it called Leave, so that the rank is free */
};

#endif
