/*
 * Measures two sides (ways of doing the same work) within one program: they run on pinned threads and take turns, A B A
 * B, and a row of bench/run.sh is printed from their times. Used only by the programs in bench/; a failure ends the
 * program with a sentence on stderr.
 */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <stddef.h>
#include <stdint.h>

#define BENCH_PAIRS       12   /* measured rounds of both sides */
#define BENCH_WARM_UPS    2    /* rounds before these, which do not count */
#define BENCH_THREADS_MAX 2    /* threads of a side */
#define BENCH_OF_BOUND    0.95 /* the part of a bound that a row must reach at most */

/* Does a side's work on the elements [first, first + count). Each thread calls it with a part of its own. */
typedef void bench_work_fn(void *context, size_t first, size_t count);

struct bench_side {
    const char *name; /* printed on stderr if one of several sides is chosen */
    bench_work_fn *work;
    void *context;                 /* passed to both functions */
    void (*before)(void *context); /* called before each run, outside the measured time; may be NULL */
};

/* Seconds of a monotonic clock. */
double bench_now_s(void);

/* Zeroed memory aligned to 64 bytes, in huge pages if possible, not touched yet. Freed by bench_free. */
void *bench_alloc(size_t bytes);
void bench_free(void *memory, size_t bytes);

/* Pins the calling thread to the i-th core that it may run on (the last one if there are fewer). */
void bench_pin(unsigned i);

/*
 * Runs a side once over `elements` by `threads` (1 or 2) threads, each pinned, in parts that are multiples of `grain`;
 * the seconds from the common start to the last one's end.
 */
double bench_run(const struct bench_side *side, size_t elements, size_t grain, unsigned threads);

/* A row, without its times. */
struct bench_row {
    const char *name;
    double goal;     /* least ratio of the peer's time to our time */
    double bytes;    /* counted for one run, the same for both sides, to print GB/s */
    size_t elements; /* elements, grain and threads as in bench_run */
    size_t grain;
    unsigned threads;
};

/* Chooses the fastest of n sides (1 to 8) by the best of several runs of each; `what` names them on stderr. */
const struct bench_side *bench_fastest(const char *what, const struct bench_side *sides, size_t n,
                                       const struct bench_row *row);

/*
 * Warms up, measures the pairs, and prints the row; range and confidence interval go to stderr. `bound`, if it is not
 * NULL, is a side that has less to do than any implementation of the row's work, and takes turns with the others. The
 * goal is then at most BENCH_OF_BOUND of the bound's ratio to the peer (the upper end of its 95 % interval); a row is
 * also ok if it reaches BENCH_OF_BOUND of the bound itself, round by round.
 */
void bench_pairs(const struct bench_row *row, const struct bench_side *ours, const struct bench_side *peer,
                 const struct bench_side *bound);

/* The median of n values; sorts the array. */
double bench_median(double *values, size_t n);

/* Ends the program with exit code 1 and a sentence on stderr. */
_Noreturn void bench_fail(const char *what);

#endif
