/*
 * Measuring two sides of one program beside each other: threads on cores of their own, turns A B A B, and a row of
 * bench/run.sh from the times. For the programs in bench/ alone; a failure ends the program with a sentence.
 */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <stddef.h>
#include <stdint.h>

#define BENCH_PAIRS       12
#define BENCH_WARM_UPS    2
#define BENCH_THREADS_MAX 2
#define BENCH_OF_BOUND    0.95

/* Does the elements [first, first + count). Called by each thread with a part of its own. */
typedef void bench_work_fn(void *context, size_t first, size_t count);

struct bench_side {
    const char *name; /* told on stderr where one of several is chosen */
    bench_work_fn *work;
    void *context;
    void (*before)(void *context); /* before each run, outside its time; may be NULL */
};

/* Monotonic seconds. */
double bench_now_s(void);

/* Zeroed pages, huge ones where there are, aligned to 64 bytes, not touched yet. Ended by bench_free. */
void *bench_alloc(size_t bytes);
void bench_free(void *memory, size_t bytes);

/* Pins the calling thread to the i-th core that it may run on (the last one if there are fewer). */
void bench_pin(unsigned i);

/*
 * Runs a side once over `elements` by `threads` (1 or 2) threads, each pinned, in parts that are multiples of `grain`;
 * the seconds from the common start to the last one's end.
 */
double bench_run(const struct bench_side *side, size_t elements, size_t grain, unsigned threads);

/* What a row says besides the times. */
struct bench_row {
    const char *name;
    double goal;  /* of peer's time / our time */
    double bytes; /* moved by one run, for GB/s of both sides */
    size_t elements;
    size_t grain;
    unsigned threads;
};

/* The fastest of n sides (1 to 8), by the best of some runs each; `what` they are, for stderr. */
const struct bench_side *bench_fastest(const char *what, const struct bench_side *sides, size_t n,
                                       const struct bench_row *row);

/*
 * Warms up, measures the pairs, and prints the row; spread and interval go to stderr. `bound`, where it is not NULL,
 * has less to do than any way of doing the row's work, and takes its turns too: the goal is then at most BENCH_OF_BOUND
 * of the ratio that it has, of whose interval (95 %) the upper end counts.
 */
void bench_pairs(const struct bench_row *row, const struct bench_side *ours, const struct bench_side *peer,
                 const struct bench_side *bound);

/* The median of n values, which are sorted by it. */
double bench_median(double *values, size_t n);

/* The program's end with a sentence on stderr. */
_Noreturn void bench_fail(const char *what);

#endif
