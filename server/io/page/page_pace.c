/*
 * /api/pace?model=NAME: how many steps a second the model does now, and did some minutes, an hour and a day ago. The
 * store has no index by time, but later steps were decided later. So the step of a time is found by binary search,
 * which reads one row for each try.
 */
#include "server/io/base/clock.h"
#include "server/io/base/server.h"
#include "server/io/page/page_read.h"
#include "storage/store.h"

#include <stdio.h>
#include <string.h>

/* A pace is measured over at least PACE_STEPS steps and PACE_US, as far as the history goes; a shorter one is noise. */
#define PACE_STEPS 100
#define PACE_US    ((int64_t)10 * 1000000)
/* The pace `before` is that of so long ago, or of half of the time since the first step: then both are of one run. */
#define BEFORE_US ((int64_t)300 * 1000000)
/* Rows that are read at a time to find that of a step; usually few rows of acts and epochs come before it. */
#define PROBE_ROWS 8
#define HOUR_US    ((int64_t)3600 * 1000000)

struct pace {
    struct io_page_read read;
    uint64_t decided;
};

struct probe {
    uint64_t step;
    int64_t at_us;                /* UTC time at which the step was decided; 0: no step was found */
    struct ampd_history_key next; /* key from which the next rows are read */
    uint32_t rows;                /* how many rows were read the last time */
};

static int take_point(void *arg, const struct ampd_history_point *point)
{
    struct probe *probe = arg;
    probe->rows++;
    probe->next = point->key;
    probe->next.sequence++;
    if (probe->at_us == 0 && point->kind == AMPD_ROW_STEP) {
        probe->step = point->key.step;
        probe->at_us = point->at_us;
    }
    return 0;
}

/* Finds the first step from `step` on that has a row. */
static struct probe step_at(struct io_page_read *read, uint64_t step)
{
    struct probe probe = {.rows = PROBE_ROWS};
    while (probe.at_us == 0 && probe.rows == PROBE_ROWS && read->error.code == 0) {
        const struct ampd_history_key from = probe.next;
        probe.rows = 0;
        (void)ampd_store_page_points(read->page->server->data.reader, read->spec->name, &from, step, UINT64_MAX,
                                     PROBE_ROWS, &probe, &read->error, take_point);
    }
    return probe;
}

/* Finds the last step, up to `decided`, that was decided at or before at_us; 0: none was. */
static uint64_t step_of(struct io_page_read *read, uint64_t decided, int64_t at_us)
{
    uint64_t low = 0, high = decided; /* low was decided by at_us, or is 0 */
    while (low < high && read->error.code == 0) {
        uint64_t middle = low + (high - low + 1) / 2;
        struct probe probe = step_at(read, middle);
        if (probe.at_us != 0 && probe.at_us <= at_us)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Finds the step from which the pace of the steps up to `last` is measured. */
static struct probe begin_of(struct io_page_read *read, struct probe last)
{
    uint64_t by_steps = last.step > PACE_STEPS ? last.step - PACE_STEPS : 1;
    uint64_t begin = step_of(read, by_steps, last.at_us - PACE_US);
    return step_at(read, begin > 0 ? begin : 1);
}

/* Writes the pace of the steps up to `last` as an object, or null if there are fewer than two steps. */
static void write_pace(struct io_page_read *read, const char *name, uint64_t last)
{
    struct probe from = {0}, to = {0};
    if (last > 1) {
        to = step_at(read, last);
        from = begin_of(read, to);
    }
    if (from.at_us == 0 || to.at_us <= from.at_us) {
        io_json_none(&read->json, name);
        return;
    }
    double seconds = (double)(to.at_us - from.at_us) / 1e6;
    io_json_open(&read->json, name, '{');
    io_json_count(&read->json, "steps", to.step - from.step);
    io_json_number(&read->json, "per_second", (double)(to.step - from.step) / seconds);
    io_json_count(&read->json, "at_ms", (uint64_t)to.at_us / 1000);
    io_json_shut(&read->json, '}');
}

/* The last step of the pace `before`, for comparison if there is none of an hour ago; 0: the run is too short. */
static uint64_t earlier_step(struct io_page_read *read, uint64_t last)
{
    struct probe newest = step_at(read, last), first = step_at(read, 1);
    int64_t back_us = (newest.at_us - first.at_us) / 2;
    back_us = back_us < BEFORE_US ? back_us : BEFORE_US;
    if (back_us < PACE_US)
        return 0;
    uint64_t begin = begin_of(read, newest).step, at = step_of(read, last, newest.at_us - back_us);
    return at < begin ? at : begin; /* no step is part of both paces */
}

static void pace_run(struct io_page_read *read)
{
    struct pace *pace = AMP_CONTAINER(read, struct pace, read);
    int64_t now_us = io_clock_utc_us();
    io_json_open(&read->json, NULL, '{');
    io_json_text(&read->json, "model", read->spec->name);
    uint64_t last = step_of(read, pace->decided, INT64_MAX);
    write_pace(read, "now", last);
    write_pace(read, "before", earlier_step(read, last));
    write_pace(read, "hour", step_of(read, pace->decided, now_us - HOUR_US));
    write_pace(read, "day", step_of(read, pace->decided, now_us - 24 * HOUR_US));
    io_json_shut(&read->json, '}');
}

void io_page_pace(struct io_page_ask *ask, const struct io_page_request *request)
{
    struct ampd_model_info info;
    char key[IO_PAGE_KEY_MAX];
    uint32_t model;
    if (!io_page_model(ask, request->argument_cb(request->arg, "model"), &model, &info))
        return;
    (void)snprintf(key, sizeof key, "pace %s", info.spec->name);
    if (io_page_remembered(ask, key))
        return;
    struct io_page_read *read = io_page_read_of(ask, sizeof(struct pace), model, &info);
    if (read == NULL)
        return;
    AMP_CONTAINER(read, struct pace, read)->decided = info.decided_step;
    read->run_cb = pace_run;
    memcpy(read->key, key, sizeof read->key);
    io_page_read_begin(read);
}
