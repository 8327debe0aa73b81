/* Who a process and a worker is: fences, incarnations and who holds a rank. See records.h. */
#ifndef AMPD_RECORDS_WORKER_H
#define AMPD_RECORDS_WORKER_H

#include "storage/records_model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AMPD_BOOT_ID_BYTES 16

/* Who a process is: its boot counter (or lease revision) and a random id of that boot. */
struct ampd_fence {
    uint64_t counter;
    uint8_t boot_id[AMPD_BOOT_ID_BYTES];
};

/*
 * One life of a worker, never given twice; ordered by the fence and the number of its Join, which is the lowest bits of
 * the counter. The bits above are random, so that nobody knows an incarnation but who was given it. {0, 0} is none.
 */
struct ampd_incarnation {
    uint64_t fence;   /* counter of the coordinator's fence */
    uint64_t counter; /* number of the Join, from 1 within the fence, and AMPD_INCARNATION_SECRET_BITS random bits */
};

/* 2^27 Joins of one process would take days of nothing else; 63 bits in all, as SQL has no more without a sign. */
#define AMPD_INCARNATION_NUMBER_BITS 27
#define AMPD_INCARNATION_SECRET_BITS 36
#define AMPD_INCARNATION_NUMBER_MAX  (((uint64_t)1 << AMPD_INCARNATION_NUMBER_BITS) - 1)
#define AMPD_INCARNATION_SECRET_MAX  (((uint64_t)1 << AMPD_INCARNATION_SECRET_BITS) - 1)

static inline bool ampd_incarnation_same(struct ampd_incarnation a, struct ampd_incarnation b)
{
    return a.fence == b.fence && a.counter == b.counter;
}

/* a after b. */
static inline bool ampd_incarnation_newer(struct ampd_incarnation a, struct ampd_incarnation b)
{
    uint64_t numbers[2] = {a.counter & AMPD_INCARNATION_NUMBER_MAX, b.counter & AMPD_INCARNATION_NUMBER_MAX};
    return a.fence > b.fence || (a.fence == b.fence && numbers[0] > numbers[1]);
}

/* One contributor of a closed step. */
struct ampd_contributor {
    uint32_t rank;
    struct ampd_incarnation incarnation;
    float weight;
};

/* The one of that rank; NULL: there is none. */
static inline const struct ampd_contributor *ampd_contributor_of(const struct ampd_contributor *list, size_t count,
                                                                 uint32_t rank)
{
    for (size_t i = 0; i < count; i++)
        if (list[i].rank == rank)
            return &list[i];
    return NULL;
}

/* A rank and who holds it. */
struct ampd_worker_record {
    char name[AMPD_NAME_MAX];
    uint32_t rank;
    struct ampd_incarnation incarnation;
    bool left; /* by Leave: the rank is free */
};

#endif
