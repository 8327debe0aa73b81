#include "tests/faults/scenario.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/*
 * A scenario of so many faults at most is run for each of them; of more, for a sample: each SAMPLE-th, or each that
 * AMPD_TEST_SAMPLE says (1: all), or all where AMPD_TEST_LONG is set.
 */
#define ALL_UP_TO 4
#define SAMPLE    53

void text_add(struct text *text, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int size = vsnprintf(NULL, 0, format, list);
    va_end(list);
    if (text->size + (size_t)size + 1 > text->room) {
        text->room = 2 * (text->size + (size_t)size + 1);
        text->data = realloc(text->data, text->room);
        assert_non_null(text->data);
    }
    va_start(list, format);
    (void)vsnprintf(text->data + text->size, text->room - text->size, format, list);
    va_end(list);
    text->size += (size_t)size;
}

void text_bytes(struct text *text, const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        text_add(text, "%02x", ((const uint8_t *)data)[i]);
    text_add(text, " ");
}

void text_clear(struct text *text)
{
    free(text->data);
    *text = (struct text){0};
}

static bool same(const struct text *a, const struct text *b)
{
    return a->size == b->size && (a->size == 0 || memcmp(a->data, b->data, a->size) == 0);
}

static struct text state_of(const struct scenario *scenario)
{
    struct text text = {0};
    scenario->state(&text);
    return text;
}

/* What a run that fails is known by. */
struct run {
    const struct scenario *scenario;
    unsigned what;
    bool forever;
    int cause;
    uint64_t n;
};

static void broken(const struct run *run, const char *how, int rc, const struct amp_error *error)
{
    fail_msg("%s, class %u, %s %llu (%s, errno %d): %s; it returned %d \"%s\"", run->scenario->name, run->what,
             run->forever ? "from call" : "call", (unsigned long long)run->n, faults->last, run->cause, how, rc,
             error->text);
}

/* Codes that say what happened. A sentence is part of each. */
static bool clear_error(const struct run *run, int rc, const struct amp_error *error)
{
    bool memory = (run->what & FAULTS_MEMORY) != 0;
    bool code = memory ? rc == AMP_ENOMEM : rc == AMP_EIO || rc == AMP_EEXHAUSTED;
    if ((run->what & FAULTS_READ) != 0) /* SQLite says so of a file system that cannot read */
        code = code || rc == AMP_EDATALOSS;
    return code && error->code == rc && strlen(error->text) > 8;
}

/* After a failed act: it was not done, or it was; it can be done now. */
static void again(const struct run *run, int first, const struct text *before, const struct text *whole)
{
    const struct scenario *scenario = run->scenario;
    struct amp_error error = {0};
    struct text now = state_of(scenario);
    bool untouched = same(&now, before), done = same(&now, whole);
    if (!untouched && !done && !scenario->grows_old) {
        (void)printf("before:\n%s\nnow:\n%s\n", before->data, now.data);
        broken(run, "the state is neither that before nor that after", first, &error);
    }
    text_clear(&now);
    if (first != AMP_ENOMEM && first != AMP_EEXHAUSTED && scenario->reopen != NULL)
        scenario->reopen();
    int rc = scenario->act(&error);
    if (rc != 0 && !(done && rc == scenario->done))
        broken(run, "the second try fails", rc, &error);
    now = state_of(scenario);
    if (!same(&now, whole) && !scenario->advances) {
        (void)printf("whole:\n%s\nnow:\n%s\n", whole->data, now.data);
        broken(run, "the second try has another effect", rc, &error);
    }
    text_clear(&now);
}

/* False: nothing failed. */
static bool one_run(const struct run *run, const struct text *before, const struct text *whole)
{
    const struct scenario *scenario = run->scenario;
    struct amp_error error = {0};
    scenario->before();
    faults_arm(run->what, run->n, run->forever, run->cause);
    int rc = scenario->act(&error);
    uint64_t failed = faults_disarm();
    if (failed == 0 && rc != 0)
        broken(run, "an error without a fault", rc, &error);
    if (rc == 0) {
        struct text now = state_of(scenario);
        if (!same(&now, whole)) {
            (void)printf("whole:\n%s\nnow:\n%s\n", whole->data, now.data);
            broken(run, "a false success", rc, &error);
        }
        text_clear(&now);
    } else {
        if (!clear_error(run, rc, &error))
            broken(run, "no clear error", rc, &error);
        again(run, rc, before, whole);
    }
    scenario->after();
    return failed > 0;
}

static uint64_t sample(void)
{
    const char *text = getenv("AMPD_TEST_SAMPLE");
    if (getenv("AMPD_TEST_LONG") != NULL)
        return 1;
    uint64_t each = text != NULL ? strtoull(text, NULL, 10) : SAMPLE;
    return each > 0 ? each : 1;
}

uint64_t scenario_run(const struct scenario *scenario, unsigned what, bool forever, int cause)
{
    struct amp_error error = {0};
    struct run run = {.scenario = scenario, .what = what, .forever = forever, .cause = cause, .n = 1};
    scenario->before();
    struct text before = state_of(scenario);
    int rc = scenario->act(&error);
    if (rc != 0)
        broken(&run, "it fails by itself", rc, &error);
    struct text whole = state_of(scenario);
    scenario->after();
    uint64_t runs = 0;
    while (one_run(&run, &before, &whole)) {
        run.n += run.n < ALL_UP_TO ? 1 : sample();
        runs++;
    }
    text_clear(&before);
    text_clear(&whole);
    return runs;
}

void scenario_memory(const struct scenario *scenario)
{
    uint64_t once = scenario_run(scenario, FAULTS_MEMORY, false, 0);
    uint64_t forever = scenario_run(scenario, FAULTS_MEMORY, true, 0);
    (void)printf("%s: %llu + %llu runs without memory\n", scenario->name, (unsigned long long)once,
                 (unsigned long long)forever);
}

void scenario_disk(const struct scenario *scenario)
{
    static const int causes[] = {EIO, ENOSPC};
    uint64_t runs = 0;
    for (size_t i = 0; i < sizeof causes / sizeof *causes; i++) {
        runs += scenario_run(scenario, FAULTS_DISK, false, causes[i]);
        runs += scenario_run(scenario, FAULTS_DISK, true, causes[i]);
    }
    runs += scenario_run(scenario, FAULTS_OPEN, false, EMFILE);
    atomic_store(&faults->half, 1u);
    runs += scenario_run(scenario, FAULTS_WRITE, false, ENOSPC);
    runs += scenario_run(scenario, FAULTS_WRITE, true, EIO);
    atomic_store(&faults->half, 0u);
    (void)printf("%s: %llu runs with a failing disk\n", scenario->name, (unsigned long long)runs);
}
