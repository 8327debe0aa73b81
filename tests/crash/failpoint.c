/*
 * What a failpoint does: counts that it was passed, says which phase its thread is in, waits a random while, or ends the
 * process by SIGKILL. A file that the test shares with the process holds the orders and the counts; it outlives both.
 * tests/crash/failpoints.py has the same layout.
 */
#define _DEFAULT_SOURCE /* MAP_SHARED with ftruncate's file under -std=c17 */
#include "base/failpoint.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define NAME_MAX_BYTES 48
#define PLACES_MAX     96
#define PHASES         9

/* What a place says of its thread's phase, apart from an index. */
#define PHASE_NONE (-1) /* it ends: a place that is called done */
#define PHASE_SAME (-2) /* nothing: its name begins with no phase */

static const char *const phases[PHASES] = {"push",    "vote",   "persist", "apply",  "checkpoint",
                                           "restore", "answer", "start",   "journal"};

struct place {
    char name[NAME_MAX_BYTES];
    atomic_uint_least64_t passed;
};

struct shared {
    char kill_at[NAME_MAX_BYTES];          /* the place, "": none */
    atomic_uint_least64_t kill_in;         /* the process ends when that place is passed for the n-th time from now */
    uint64_t pause_us;                     /* each place waits 0 to this long */
    uint64_t seed;                         /* of the pauses */
    atomic_uint_least64_t passed;          /* places in all */
    atomic_int_least64_t inside[PHASES];   /* threads that are in the phase now */
    atomic_uint_least64_t entered[PHASES]; /* how often one began */
    struct place places[PLACES_MAX];
};

_Static_assert(sizeof(struct shared) == 48 + 4 * 8 + PHASES * 16 + PLACES_MAX * 56,
               "failpoints.py reads these offsets");

static struct shared *shared;
static pthread_once_t opened = PTHREAD_ONCE_INIT;
static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int in_phase = PHASE_NONE;

/* Nothing outlives a test that is ended. */
__attribute__((constructor)) static void die_with_parent(void)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* fails for no signal that exists */
}

static void open_shared(void)
{
    const char *path = getenv("AMPD_FAILPOINTS_FILE");
    int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *memory = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd); /* the mapping stays */
    if (memory == MAP_FAILED)
        return;
    shared = memory;
    for (int i = 0; i < PHASES; i++)
        atomic_store(&shared->inside[i], 0); /* of a process that is gone */
}

static struct place *place_of(const char *name)
{
    struct place *found = NULL;
    (void)pthread_mutex_lock(&places_lock);
    for (int i = 0; i < PLACES_MAX && found == NULL; i++) {
        struct place *place = &shared->places[i];
        if (place->name[0] == 0)
            (void)strncpy(place->name, name, sizeof place->name - 1);
        if (strcmp(place->name, name) == 0)
            found = place;
    }
    (void)pthread_mutex_unlock(&places_lock);
    return found;
}

/* The phase of a place: its name up to the dot. */
static int phase_of(const char *name)
{
    const char *dot = strchr(name, '.');
    if (dot == NULL || strcmp(dot, ".done") == 0)
        return PHASE_NONE;
    for (int i = 0; i < PHASES; i++)
        if (strncmp(phases[i], name, (size_t)(dot - name)) == 0 && phases[i][dot - name] == 0)
            return i;
    return PHASE_SAME;
}

static void enter(int phase)
{
    if (phase == in_phase || phase == PHASE_SAME)
        return;
    if (phase >= 0) {
        atomic_fetch_add(&shared->entered[phase], 1);
        atomic_fetch_add(&shared->inside[phase], 1);
    }
    if (in_phase >= 0)
        atomic_fetch_sub(&shared->inside[in_phase], 1);
    in_phase = phase;
}

/* SplitMix64: the n-th pause depends on the seed and n alone. */
static uint64_t random_of(uint64_t n)
{
    uint64_t z = shared->seed + n * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static void wait_a_while(uint64_t n)
{
    if (shared->pause_us == 0)
        return;
    struct timespec pause = {.tv_nsec = (long)(random_of(n) % (shared->pause_us + 1)) * 1000};
    (void)nanosleep(&pause, NULL); /* an early end is as good */
}

void amp_failpoint(const char *name)
{
    (void)pthread_once(&opened, open_shared);
    if (shared == NULL)
        return;
    struct place *place = place_of(name);
    int phase = phase_of(name);
    if (phase >= 0)
        enter(phase);
    if (place != NULL)
        atomic_fetch_add(&place->passed, 1);
    if (strcmp(shared->kill_at, name) == 0 && atomic_fetch_sub(&shared->kill_in, 1) == 1)
        (void)kill(getpid(), SIGKILL);
    wait_a_while(atomic_fetch_add(&shared->passed, 1));
    if (phase == PHASE_NONE)
        enter(PHASE_NONE);
}
