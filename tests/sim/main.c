/*
 * sim [--seeds N] [--first S] [--oracle] [--verbose]: runs N seeds from S on, each twice if it is among the first ten, and every
 * fifth once more without faults. --oracle: the core's own invariants (server/core/invariants.c) are not looked at, so that
 * those of the simulator must see what is wrong.
 */
#include "tests/sim/sim.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TWICE       10 /* seeds that are run a second time, to see that one seed is one run */
#define UNDISTURBED 5  /* every fifth seed is run without faults too, where that must give the same result */

/* The seed under way, for the line that a broken assert leaves behind. */
static char seed_line[64];

static void tell_seed(int signal_number)
{
    (void)signal_number;
    ssize_t written = write(STDERR_FILENO, seed_line, strlen(seed_line));
    (void)written; /* nothing can be done about it here */
}

int main(int argc, char **argv)
{
    uint64_t seeds = 200, first = 1;
    bool verbose = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) {
            seeds = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--first") == 0 && i + 1 < argc) {
            first = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--oracle") == 0) {
            sim_server_unchecked();
        } else if (strcmp(argv[i], "--verbose") == 0) {
            verbose = true;
        } else {
            (void)fprintf(stderr, "usage: sim [--seeds N] [--first S] [--oracle] [--verbose]\n");
            return 1;
        }
    }
    (void)signal(SIGABRT, tell_seed);
    uint64_t all = 0, compared = 0;
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        (void)snprintf(seed_line, sizeof(seed_line), "sim: seed %llu\n", (unsigned long long)seed);
        uint64_t result, again;
        uint64_t trace = sim_run(seed, SIM_DISTURBED, verbose, &result);
        if (seed - first < TWICE && sim_run(seed, SIM_DISTURBED, false, &again) != trace) {
            (void)fprintf(stderr, "seed %llu: the second run differs from the first\n", (unsigned long long)seed);
            return 1;
        }
        if (seed % UNDISTURBED == 1 && sim_has_one_result(seed)) {
            (void)sim_run(seed, SIM_UNDISTURBED, false, &again);
            if (again != result) {
                (void)fprintf(stderr,
                              "seed %llu, end: broken invariant bitwise: the final state differs from that of a run "
                              "without faults\n",
                              (unsigned long long)seed);
                return 1;
            }
            compared++;
        }
        all = all * 31 + trace;
    }
    (void)printf("sim: %llu seeds from %llu, trace %016llx; %llu compared with a run without faults\n",
                 (unsigned long long)seeds, (unsigned long long)first, (unsigned long long)all,
                 (unsigned long long)compared);
    return 0;
}
