/*
 * sim [--seeds N | --seconds N] [--first S] [--jobs N] [--without KIND] [--oracle] [--verbose]: runs N seeds from S on, or as many as fit
 * into N seconds, in so many processes side by side. Without --first, AMPD_SIM_FIRST says where they begin, and without that they
 * are drawn anew in each run, and named before they run. The first ten are run twice, and every fifth that allows it once more without
 * faults. --oracle: the core's own invariants (server/core/process/invariants.c) are not looked at, so that those of the simulator must
 * see what is wrong. --without: no faults of this kind (SIM_KINDS in sim.h), or of `all` of them: so seeds that were kept before there
 * were such kinds run as they did.
 */
#define _GNU_SOURCE /* getrandom; MAP_ANONYMOUS */
#include "tests/sim/sim.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#define TWICE       10            /* seeds that are run a second time, to see that one seed is one run */
#define UNDISTURBED 5             /* every fifth seed is run without faults too, where that must give the same result */
#define DRAWN_BELOW 1000000000000 /* twelve digits, to be typed */
#define JOBS_MAX    1024

struct options {
    uint64_t seeds, seconds, first;
    unsigned jobs;
    bool first_given, verbose;
};

/* What the processes share: each takes the next seed, until there is none or one of them stops all. */
struct work {
    uint64_t first, end;
    bool verbose;
    atomic_uint_least64_t next, done, traces, compared;
    atomic_bool stop;
};

static struct work *work;

/* Of a sanitizer, where the program has one: what is called before it ends the process. */
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)(void));

/* The seed under way, for the lines that whatever ends the process leaves behind. */
static char seed_line[128];

static void tell_seed(void)
{
    ssize_t written = write(STDERR_FILENO, seed_line, strlen(seed_line));
    (void)written; /* nothing can be done about it here */
}

static void tell_and_end(int signal_number)
{
    tell_seed();
    (void)raise(signal_number); /* as it would have ended without this */
}

static void listen_to_ends(void)
{
    struct sigaction action = {.sa_handler = tell_and_end, .sa_flags = (int)SA_RESETHAND};
    (void)sigaction(SIGABRT, &action, NULL);
    if (__sanitizer_set_death_callback != NULL)
        __sanitizer_set_death_callback(tell_seed); /* which tells of a bad access itself */
    else
        (void)sigaction(SIGSEGV, &action, NULL);
}

static void time_is_over(int signal_number)
{
    (void)signal_number;
    atomic_store(&work->stop, true);
}

/* The trace of the seed, after all that is compared with it; ends the process if something differs. */
static uint64_t run_seed(uint64_t seed)
{
    uint64_t result, again;
    (void)snprintf(seed_line, sizeof(seed_line), "sim: seed %llu\nagain: sim --seeds 1 --first %llu --verbose\n",
                   (unsigned long long)seed, (unsigned long long)seed);
    uint64_t trace = sim_run(seed, SIM_DISTURBED, work->verbose, &result);
    if (seed - work->first < TWICE && sim_run(seed, SIM_DISTURBED, false, &again) != trace) {
        (void)fprintf(stderr, "seed %llu: the second run differs from the first\n", (unsigned long long)seed);
        abort();
    }
    if (seed % UNDISTURBED == 1 && sim_has_one_result(seed)) {
        (void)sim_run(seed, SIM_UNDISTURBED, false, &again);
        if (again != result) {
            (void)fprintf(stderr,
                          "seed %llu, end: broken invariant bitwise: the final state differs from that of a run "
                          "without faults\n",
                          (unsigned long long)seed);
            abort();
        }
        (void)atomic_fetch_add(&work->compared, 1);
    }
    return trace;
}

static void run_seeds(void)
{
    while (!atomic_load(&work->stop)) {
        uint64_t seed = atomic_fetch_add(&work->next, 1);
        if (seed >= work->end)
            return;
        (void)atomic_fetch_add(&work->traces, run_seed(seed));
        (void)atomic_fetch_add(&work->done, 1);
    }
}

/* Whether all of the processes came to their end. */
static bool run_side_by_side(unsigned jobs)
{
    bool whole = true;
    unsigned running = 0;
    for (; running < jobs && whole; running += whole ? 1 : 0) {
        pid_t child = fork();
        if (child == 0) {
            run_seeds();
            exit(0);
        }
        whole = child > 0;
    }
    while (running > 0) {
        int status;
        if (wait(&status) < 0)
            continue; /* the time is over */
        running--;
        if (status != 0) {
            whole = false;
            atomic_store(&work->stop, true);
        }
    }
    return whole;
}

static bool parse(int argc, char **argv, struct options *options)
{
    for (int i = 1; i < argc; i++) {
        bool valued = i + 1 < argc;
        if (strcmp(argv[i], "--seeds") == 0 && valued) {
            options->seeds = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--seconds") == 0 && valued) {
            options->seconds = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--first") == 0 && valued) {
            options->first = strtoull(argv[++i], NULL, 10);
            options->first_given = true;
        } else if (strcmp(argv[i], "--jobs") == 0 && valued) {
            options->jobs = (unsigned)strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--oracle") == 0) {
            sim_server_unchecked();
        } else if (strcmp(argv[i], "--without") == 0 && valued && sim_without(argv[i + 1])) {
            i++;
        } else if (strcmp(argv[i], "--verbose") == 0) {
            options->verbose = true;
        } else {
            return false;
        }
    }
    return options->jobs > 0 && options->jobs <= JOBS_MAX && (options->seeds == 0 || options->seconds == 0);
}

/* What --first has not said. */
static uint64_t first_seed(void)
{
    const char *given = getenv("AMPD_SIM_FIRST");
    if (given != NULL && given[0] != '\0')
        return strtoull(given, NULL, 10);
    uint64_t drawn;
    if (getrandom(&drawn, sizeof(drawn), 0) != (ssize_t)sizeof(drawn))
        abort();
    return 1 + drawn % DRAWN_BELOW;
}

int main(int argc, char **argv)
{
    struct options options = {.jobs = 1};
    if (!parse(argc, argv, &options)) {
        (void)fprintf(
            stderr,
            "usage: sim [--seeds N | --seconds N] [--first S] [--jobs N] [--without KIND] [--oracle] [--verbose]; without --first they "
            "are drawn, or AMPD_SIM_FIRST says where they begin\n");
        return 1;
    }
    if (!options.first_given)
        options.first = first_seed();
    if (options.seeds == 0 && options.seconds == 0)
        options.seeds = 200;
    work = mmap(NULL, sizeof(*work), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (work == MAP_FAILED)
        abort();
    work->first = options.first;
    work->end = options.seconds != 0 ? UINT64_MAX : options.first + options.seeds;
    work->verbose = options.verbose;
    atomic_init(&work->next, options.first);
    listen_to_ends();
    (void)signal(SIGALRM, time_is_over);
    if (!options.first_given)
        (void)printf("sim: the seeds begin with %llu; the same ones again: AMPD_SIM_FIRST=%llu, or --first %llu\n",
                     (unsigned long long)options.first, (unsigned long long)options.first,
                     (unsigned long long)options.first);
    (void)fflush(stdout); /* before a child has a copy of it, and before anything fails */
    (void)alarm((unsigned)options.seconds);
    bool whole = true;
    if (options.jobs == 1)
        run_seeds();
    else
        whole = run_side_by_side(options.jobs);
    (void)printf("sim: %llu seeds from %llu, trace %016llx; %llu compared with a run without faults\n",
                 (unsigned long long)atomic_load(&work->done), (unsigned long long)options.first,
                 (unsigned long long)atomic_load(&work->traces), (unsigned long long)atomic_load(&work->compared));
    return whole ? 0 : 1;
}
