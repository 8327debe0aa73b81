/* A seeded pseudo-random sequence (splitmix64, Steele 2014): the same on every machine. Not for secrets. */
#ifndef AMP_BASE_RANDOM_H
#define AMP_BASE_RANDOM_H

#include "base/wraps.h"

#include <stdint.h>

struct amp_random {
    uint64_t state;
};

/* The sequence named by seed. */
static inline void amp_random_init(struct amp_random *random, uint64_t seed)
{
    random->state = seed;
}

/* The next 64 bits. The generator is defined modulo 2^64. */
AMP_WRAPS static inline uint64_t amp_random_next(struct amp_random *random)
{
    uint64_t z = (random->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A number in [0, bound), bound > 0; the bias is below 2^-32 for bounds up to 2^32. */
static inline uint64_t amp_random_below(struct amp_random *random, uint64_t bound)
{
    return amp_random_next(random) % bound;
}

/* A double in [0, 1) with 53 random bits. */
static inline double amp_random_unit(struct amp_random *random)
{
    return (double)(amp_random_next(random) >> 11) * 0x1.0p-53;
}

#endif
