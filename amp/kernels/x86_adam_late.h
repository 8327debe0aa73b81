/*
 * The late elements of a span, those that Adam's guard sends to double, for AVX2 and AVX-512: which they are, and
 * whether they are picked one by one. Included by kernels/x86_adam_run.h, behind PICKED, redo_few and redo_many.
 */
#ifndef AMP_KERNELS_X86_ADAM_LATE_H
#define AMP_KERNELS_X86_ADAM_LATE_H

#include "amp/kernels/x86_adam_parts.h"
#include "base/wraps.h"

#include <immintrin.h>

/* Of more late elements than these in a span the vectors are cheaper than the picking. */
#define MANY_LATE (SPAN / 4)

/* Late elements that are listed in a turn: of 64 elements of a training few have more. */
#define LISTED 4

/* Late elements that are computed in a turn, at most. */
#define PICKED_MAX 8
_Static_assert(PICKED <= PICKED_MAX && LISTED <= PICKED_MAX, "room behind a list");

/* The indices of a span's late elements, and at most LISTED more behind them. Returns how many. */
AMP_WRAPS static size_t list_late(const struct span *old, size_t n, uint16_t *at)
{
    size_t count = 0;
    for (size_t w = 0; w < (n + 63) / 64; w++) {
        uint64_t bits = old->late[w];
        size_t end = count + (size_t)__builtin_popcountll(bits);
        /* One turn is nearly always enough and never too much: what is listed beyond the end is overwritten. */
        do {
            _Pragma("GCC unroll 4") for (size_t j = 0; j < LISTED; j++)
            {
                at[count + j] = (uint16_t)(w * 64 + _tzcnt_u64(bits)); /* of no bits it is 64 */
                bits &= bits - 1;                                      /* none stay none */
            }
            count += LISTED;
        } while (count < end);
        count = end;
    }
    return count;
}

/* The masters of a span's late elements. */
INLINE void redo_late(const struct source *s, struct kind kind, size_t start, size_t n, const struct target *t,
                      const struct span *old)
{
    uint16_t at[SPAN + PICKED_MAX];
    size_t count = list_late(old, n, at);
    if (count > MANY_LATE)
        redo_many(s, kind, start, n, t->p + start, old);
    else if (count > 0)
        redo_few(s, kind, start, t, old, at, count);
}

#endif
