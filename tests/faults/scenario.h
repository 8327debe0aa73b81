/*
 * Runs an act again and again, its n-th allocation or call to the disk failing, for n = 1, 2, ... until a run in which
 * nothing failed. After each: a clear error or a true success, the state as before or as after, and a second try that
 * succeeds.
 */
#ifndef AMPD_TESTS_FAULTS_SCENARIO_H
#define AMPD_TESTS_FAULTS_SCENARIO_H

#include "base/err.h"
#include "tests/faults/faults.h"

#include <stddef.h>

/* Text that grows; what a state is compared by. */
struct text {
    char *data;
    size_t size, room;
};

__attribute__((format(printf, 2, 3))) void text_add(struct text *text, const char *format, ...);
void text_bytes(struct text *text, const void *data, size_t size); /* as hexadecimal digits */
void text_clear(struct text *text);

struct scenario {
    const char *name;
    void (*before)(void);                /* a new world: files, open handles. Nothing fails here, */
    int (*act)(struct amp_error *error); /* only here */
    void (*reopen)(void);                /* handles that refuse to go on are closed and opened again; may be NULL */
    void (*state)(struct text *text);    /* all that is there, and what was read */
    void (*after)(void);                 /* closes and removes everything */
    int done;                            /* what a repetition returns whose first try had its effect, besides 0 */
    bool advances;                       /* a repetition has an effect of its own: only its success is looked at */
    bool grows_old;                      /* a failed act may leave a part of itself that changes nothing; states are
                                             compared only after a success */
};

/* How many runs failed. */
uint64_t scenario_run(const struct scenario *scenario, unsigned what, bool forever, int cause);

/* Of memory: each allocation once, and from each on. Of the disk: EIO and ENOSPC, likewise; EMFILE for open. */
void scenario_memory(const struct scenario *scenario);
void scenario_disk(const struct scenario *scenario);

#endif
