#define _GNU_SOURCE /* sched_setaffinity and MAP_ANONYMOUS */
#include "bench/measure.h"

#include "base/large.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

/*
 * Runs of each side in turns, to choose the fastest of several: if the machine is also used by others two are too few.
 */
#define TRIALS    4
#define SIDES_MAX 8

/* Fixed, so that a list of ratios always gives the same interval. */
#define BOOTSTRAP_SEED  1
#define BOOTSTRAP_DRAWS 2000

void bench_fail(const char *what)
{
    (void)fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

double bench_now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/*
 * Allocates one page more than requested, as malloc does for its header. Arrays at distances of exactly 2^28 bytes
 * would have the same hash by which AMD's first-level cache predicts its way, and evict each other all the time (four
 * times slower).
 */
#define SPACING 4096

void *bench_alloc(size_t bytes)
{
    void *memory = mmap(NULL, bytes + SPACING, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        bench_fail("no memory for the arrays: a row needs about 3 GB");
    amp_large_advise(memory, bytes); /* as the server does with its tensors (server/core/model/tensors.c) */
    return memory;
}

void bench_free(void *memory, size_t bytes)
{
    (void)munmap(memory, bytes + SPACING);
}

void bench_pin(unsigned i)
{
    static cpu_set_t allowed;
    static bool known;
    if (!known && sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        bench_fail("the cores of this process cannot be asked for");
    known = true;
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &allowed))
            continue;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        if (i-- == 0)
            break;
    }
    if (sched_setaffinity(0, sizeof one, &one) != 0)
        bench_fail("a thread cannot be pinned");
}

/* The second thread of a run, which is started before the clock. */
struct helper {
    const struct bench_side *side;
    pthread_barrier_t barrier;
    size_t first, count;
};

static void *help(void *context)
{
    struct helper *helper = context;
    bench_pin(1);
    (void)pthread_barrier_wait(&helper->barrier);
    helper->side->work(helper->side->context, helper->first, helper->count);
    return NULL;
}

double bench_run(const struct bench_side *side, size_t elements, size_t grain, unsigned threads)
{
    bench_pin(0);
    if (side->before != NULL)
        side->before(side->context);
    if (threads == 1) {
        double begin = bench_now_s();
        side->work(side->context, 0, elements);
        return bench_now_s() - begin;
    }
    size_t half = elements / grain / 2 * grain;
    struct helper helper = {.side = side, .first = half, .count = elements - half};
    pthread_t thread;
    if (pthread_barrier_init(&helper.barrier, NULL, 2) != 0 || pthread_create(&thread, NULL, help, &helper) != 0)
        bench_fail("no second thread");
    (void)pthread_barrier_wait(&helper.barrier);
    double begin = bench_now_s();
    side->work(side->context, 0, half);
    (void)pthread_join(thread, NULL);
    double end = bench_now_s();
    (void)pthread_barrier_destroy(&helper.barrier);
    return end - begin;
}

const struct bench_side *bench_fastest(const char *what, const struct bench_side *sides, size_t n,
                                       const struct bench_row *row)
{
    double s[SIDES_MAX];
    size_t best = 0;
    if (n == 0 || n > SIDES_MAX)
        bench_fail("too many sides to choose from");
    for (unsigned trial = 0; trial < TRIALS; trial++) {
        for (size_t i = 0; i < n; i++) {
            double now = bench_run(&sides[i], row->elements, row->grain, row->threads);
            s[i] = trial == 0 || now < s[i] ? now : s[i];
        }
    }
    for (size_t i = 0; i < n; i++) {
        (void)fprintf(stderr, "# %s %s: %.1f ms\n", what, sides[i].name, s[i] * 1e3);
        best = s[i] < s[best] ? i : best;
    }
    return &sides[best];
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, ascending);
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

/* The 95 % confidence interval of the median, by the bootstrap: the medians of resampled lists. */
static void interval(const double *values, size_t n, double *low, double *high)
{
    static double medians[BOOTSTRAP_DRAWS];
    uint64_t state = BOOTSTRAP_SEED;
    for (size_t d = 0; d < BOOTSTRAP_DRAWS; d++) {
        double drawn[BENCH_PAIRS];
        for (size_t i = 0; i < n; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            drawn[i] = values[(state >> 33) % n];
        }
        medians[d] = bench_median(drawn, n);
    }
    qsort(medians, BOOTSTRAP_DRAWS, sizeof *medians, ascending);
    *low = medians[BOOTSTRAP_DRAWS / 40];
    *high = medians[BOOTSTRAP_DRAWS - 1 - BOOTSTRAP_DRAWS / 40];
}

/*
 * The goal of a row with a bound: the row's own, or BENCH_OF_BOUND of the bound's ratio if that is less. The upper end
 * of the ratio's interval counts, so that the noise of a busy machine makes no goal easier. Sorts `bounds`.
 */
static double bounded_goal(const struct bench_row *row, const struct bench_side *bound, double *bounds)
{
    double low, high;
    interval(bounds, BENCH_PAIRS, &low, &high);
    double goal = BENCH_OF_BOUND * high < row->goal ? BENCH_OF_BOUND * high : row->goal;
    (void)fprintf(stderr, "# %s: bound %.2f, 95 %% of it %.2f to %.2f (%s); goal %.2f, at most %.2f of that: %.2f\n",
                  row->name, bench_median(bounds, BENCH_PAIRS), low, high, bound->name, row->goal, BENCH_OF_BOUND,
                  goal);
    return goal;
}

/*
 * Whether a row reaches BENCH_OF_BOUND of its bound; `ratios` are those of the bound's times and ours, round by round.
 * Unlike a comparison of two ratios to the peer, these do not contain the differences between the peer's rounds.
 */
static bool reaches_bound(const struct bench_row *row, double *ratios)
{
    double low, high;
    interval(ratios, BENCH_PAIRS, &low, &high);
    double ratio = bench_median(ratios, BENCH_PAIRS);
    (void)fprintf(stderr, "# %s: beside the bound %.3f, 95 %% of it %.3f to %.3f; %.2f is asked\n", row->name, ratio,
                  low, high, BENCH_OF_BOUND);
    return ratio >= BENCH_OF_BOUND;
}

void bench_pairs(const struct bench_row *row, const struct bench_side *ours, const struct bench_side *peer,
                 const struct bench_side *bound)
{
    double a[BENCH_PAIRS], b[BENCH_PAIRS], ratios[BENCH_PAIRS], bounds[BENCH_PAIRS], beside[BENCH_PAIRS];
    for (int i = -BENCH_WARM_UPS; i < BENCH_PAIRS; i++) {
        double x = bench_run(ours, row->elements, row->grain, row->threads);
        double y = bench_run(peer, row->elements, row->grain, row->threads);
        double z = bound != NULL ? bench_run(bound, row->elements, row->grain, row->threads) : y;
        if (i < 0)
            continue;
        bounds[i] = y / z;
        beside[i] = z / x;
        a[i] = row->bytes / x / 1e9;
        b[i] = row->bytes / y / 1e9;
        ratios[i] = y / x;
    }
    double low, high;
    interval(ratios, BENCH_PAIRS, &low, &high);
    double ratio = bench_median(ratios, BENCH_PAIRS);
    double goal = bound != NULL ? bounded_goal(row, bound, bounds) : row->goal;
    bool reaches = bound != NULL && reaches_bound(row, beside);
    printf("%s\t%.2f\t%.2f\t%.2f\t%.2f\t%s\n", row->name, bench_median(a, BENCH_PAIRS), bench_median(b, BENCH_PAIRS),
           ratio, goal, reaches || ratio >= goal ? "ok" : "short");
    (void)fflush(stdout);
    (void)fprintf(stderr, "# %s: %d pairs, ratio %.2f to %.2f, 95 %% of its median %.2f to %.2f; %.3f ns an element\n",
                  row->name, BENCH_PAIRS, ratios[0], ratios[BENCH_PAIRS - 1], low, high,
                  row->bytes / bench_median(a, BENCH_PAIRS) / (double)row->elements);
}
