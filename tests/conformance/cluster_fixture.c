#include "tests/conformance/cluster_fixture.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define GUARD_MS    120000 /* a test that hangs fails here */
#define TEARDOWN_MS 10000  /* for what it leaves to be closed */
#define BEAT_MS     5

static struct etcd_process shared;
static int tests;

static void on_guard(uv_timer_t *timer)
{
    struct cluster_fixture *fixture = timer->data;
    if (fixture->hangs) {
        (void)fprintf(stderr, "the test hangs, and cannot be ended\n");
        abort();
    }
    fixture->hangs = true; /* its next turn fails: not from inside the loop */
    (void)uv_timer_start(timer, on_guard, TEARDOWN_MS, 0);
}

/* A turn of the loop ends soon: it would else sleep on after timers that were due at its beginning. */
static void on_beat(uv_timer_t *timer)
{
}

static void write_line(void *arg, enum amp_log_level level, const char *line)
{
    if (getenv("AMPD_TEST_VERBOSE") != NULL)
        (void)fprintf(stderr, "%s\n", line);
}

static int64_t log_now(void *arg)
{
    return 0;
}

int cluster_setup(void **state)
{
    struct cluster_fixture *fixture = calloc(1, sizeof *fixture);
    assert_non_null(fixture);
    fixture->lease_ms = LONG_LEASE_MS;
    fixture->log = (struct amp_log){.level = AMP_LOG_DEBUG, .write_cb = write_line, .now_us_cb = log_now};
    assert_int_equal(uv_loop_init(&fixture->loop), 0);
    (void)uv_timer_init(&fixture->loop, &fixture->guard);
    fixture->guard.data = fixture;
    (void)uv_timer_start(&fixture->guard, on_guard, GUARD_MS, 0);
    (void)uv_timer_init(&fixture->loop, &fixture->beat);
    (void)uv_timer_start(&fixture->beat, on_beat, BEAT_MS, BEAT_MS);
    fixture->etcd = &shared;
    if (shared.pid == 0)
        etcd_start(&shared);
    (void)snprintf(fixture->url.endpoints, sizeof fixture->url.endpoints, "127.0.0.1:%d", shared.port);
    (void)snprintf(fixture->url.name, sizeof fixture->url.name, "test-%d", ++tests);
    *state = fixture;
    return 0;
}

int cluster_teardown(void **state)
{
    struct cluster_fixture *fixture = *state;
    for (uint32_t i = 0; i < PARTS_MAX; i++)
        cluster_kill(fixture, i);
    uv_close((uv_handle_t *)&fixture->guard, NULL);
    uv_close((uv_handle_t *)&fixture->beat, NULL);
    (void)uv_run(&fixture->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&fixture->loop), 0);
    if (shared.stopped)
        etcd_continue(&shared);
    free(fixture);
    return 0;
}

void cluster_end(void)
{
    etcd_remove(&shared);
}

/* ---- what parts are told ---- */

static void on_taken(void *arg, uint32_t shard, const struct ampd_fence *fence)
{
    struct part *part = arg;
    part->taken++;
    part->shard = shard;
    part->fence = fence->counter;
}

static void on_waiting(void *arg, const struct amp_error *why)
{
    struct part *part = arg;
    part->why_waiting = *why;
    part->waiting++;
}

static void on_lost(void *arg, const struct amp_error *why)
{
    struct part *part = arg;
    part->why_lost = *why;
    part->lost_ms = (int64_t)uv_now(&part->fixture->loop);
    part->lost++;
}

static void on_moved(void *arg, uint32_t shard)
{
    struct part *part = arg;
    part->moved++;
}

static const struct io_cluster_events events = {
    .taken_cb = on_taken, .waiting_cb = on_waiting, .lost_cb = on_lost, .moved_cb = on_moved};

static void on_lease(void *arg, int64_t lease)
{
    ((struct part *)arg)->lease = lease;
}

/* ---- parts ---- */

void cluster_open(struct cluster_fixture *fixture, uint32_t index, const struct part_options *given)
{
    struct part *part = &fixture->parts[index];
    struct amp_error error = {0};
    assert_null(part->cluster);
    *part = (struct part){.fixture = fixture};
    (void)snprintf(part->address, sizeof part->address, "127.0.0.1:%" PRIu32, 7000 + index);
    struct io_cluster_options options = {.shards = given->shards != 0 ? given->shards : SHARDS,
                                         .shard = given->shard,
                                         .address = part->address,
                                         .log = &fixture->log,
                                         .events = &events,
                                         .arg = part,
                                         .url = &fixture->url,
                                         .lease_ms = fixture->lease_ms,
                                         .local = given->local,
                                         .models = given->models,
                                         .lease_before = given->lease_before,
                                         .lease_cb = on_lease};
    for (uint32_t k = 0; k < SHARDS; k++) {
        options.served[k] = (given->local >> k & 1) != 0 ? given->served : 0;
        options.known[k] = given->floor > options.served[k] ? given->floor : options.served[k];
    }
    assert_int_equal(io_cluster_new(&fixture->loop, &options, &part->cluster, &error), 0);
}

void cluster_join(struct cluster_fixture *fixture, uint32_t index, uint32_t shard)
{
    struct part *part = &fixture->parts[index];
    cluster_open(fixture, index, &(struct part_options){.shard = shard});
    cluster_until(fixture, &part->taken, 1);
    assert_int_equal(part->shard, shard);
}

static void on_closed(void *arg)
{
    struct part *part = arg;
    part->closed = true;
}

void cluster_kill(struct cluster_fixture *fixture, uint32_t index)
{
    struct part *part = &fixture->parts[index];
    if (part->cluster == NULL)
        return;
    io_cluster_close(part->cluster, on_closed, part);
    while (!part->closed)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    part->cluster = NULL;
}

static void on_left(void *arg)
{
    struct part *part = arg;
    part->left++;
}

void cluster_leave(struct cluster_fixture *fixture, uint32_t index)
{
    struct part *part = &fixture->parts[index];
    io_cluster_leave(part->cluster, on_left, part);
    cluster_until(fixture, &part->left, 1);
    cluster_kill(fixture, index);
}

static void print_part(const struct part *part)
{
    print_error("%s: taken %d, waiting %d (%s), lost %d (%s)\n", part->address, part->taken, part->waiting,
                part->why_waiting.text, part->lost, part->why_lost.text);
}

void cluster_turn(struct cluster_fixture *fixture)
{
    (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    if (!fixture->hangs)
        return;
    for (uint32_t i = 0; i < PARTS_MAX; i++)
        if (fixture->parts[i].cluster != NULL)
            print_part(&fixture->parts[i]);
    fail_msg("what the test waits for has not come within %d ms", GUARD_MS);
}

void cluster_until(struct cluster_fixture *fixture, const int *number, int least)
{
    while (*number < least)
        cluster_turn(fixture);
}

static void on_time(uv_timer_t *timer)
{
    *(int *)timer->data = 1;
}

void cluster_run_ms(struct cluster_fixture *fixture, int64_t ms)
{
    uv_timer_t timer;
    int over = 0;
    (void)uv_timer_init(&fixture->loop, &timer);
    timer.data = &over;
    uv_update_time(&fixture->loop);
    (void)uv_timer_start(&timer, on_time, (uint64_t)ms, 0);
    cluster_until(fixture, &over, 1);
    uv_close((uv_handle_t *)&timer, NULL);
    (void)uv_run(&fixture->loop, UV_RUN_NOWAIT); /* the handle is this function's */
}

static void on_raised(void *arg, const char *model, uint64_t epoch)
{
    struct part *part = arg;
    part->epoch = epoch;
    part->raised++;
}

uint64_t cluster_raise(struct cluster_fixture *fixture, uint32_t index, const char *model, uint64_t epoch)
{
    struct part *part = &fixture->parts[index];
    int before = part->raised;
    assert_int_equal(io_cluster_raise_epoch(part->cluster, model, epoch, on_raised, part), 0);
    assert_int_equal(part->raised, before); /* not from inside */
    cluster_until(fixture, &part->raised, before + 1);
    return part->epoch;
}

static void on_noted(void *arg)
{
    struct part *part = arg;
    part->noted++;
}

void cluster_serve(struct cluster_fixture *fixture, uint32_t index)
{
    struct part *part = &fixture->parts[index];
    assert_int_equal(io_cluster_serves(part->cluster, false, on_noted, part), 0);
    assert_int_equal(part->noted, 0); /* not from inside */
    cluster_until(fixture, &part->noted, 1);
}

void cluster_until_held(struct cluster_fixture *fixture, uint32_t index, uint32_t shard, uint32_t of)
{
    const struct io_cluster *cluster = fixture->parts[index].cluster;
    for (;;) {
        const struct io_cluster_member *member = io_cluster_member(cluster, shard);
        if (of == IO_CLUSTER_ANY ? !member->held
                                 : member->held && strcmp(member->address, fixture->parts[of].address) == 0)
            return;
        cluster_turn(fixture);
    }
}
