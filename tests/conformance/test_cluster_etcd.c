/* Places in a real etcd that is killed, stopped, wiped and slow, and which process takes which. */
#include "tests/conformance/cluster_fixture.h"

#include "proto/msg_etcd.h"
#include "server/io/etcd/etcd_lease.h"
#include "server/io/etcd/etcd_watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

static void take_any(struct cluster_fixture *fixture, uint32_t index)
{
    cluster_open(fixture, index, &(struct part_options){.shard = IO_CLUSTER_ANY});
}

/* As a process that is started again on its data. */
static void take_again(struct cluster_fixture *fixture, uint32_t index, const struct part_options *options)
{
    cluster_open(fixture, index, options);
    cluster_until(fixture, &fixture->parts[index].taken, 1);
}

/* ---- keys that others write ---- */

static void on_answer(void *arg, const struct amp_error *error, const uint8_t *answer, size_t size)
{
    if (error->code != 0)
        fail_msg("%s", error->text);
    ++*(int *)arg;
}

static void on_none(void *arg)
{
    ++*(int *)arg;
}

static void change(struct cluster_fixture *fixture, const struct ampd_etcd_request_op *op)
{
    struct ampd_etcd_txn_request request = {.success = {(struct ampd_etcd_request_op *)(uintptr_t)op, 1}};
    struct io_etcd *etcd;
    struct amp_error error;
    struct amp_buf buf;
    int done = 0;
    amp_buf_init(&buf, IO_ETCD_MESSAGE_MAX);
    assert_int_equal(io_etcd_new(&fixture->loop, fixture->url.endpoints, NULL, &fixture->log, &etcd, &error), 0);
    assert_int_equal(ampd_etcd_txn_request_encode(&request, &buf), 0);
    assert_int_equal(io_etcd_call(etcd, IO_ETCD_TXN, &buf, on_answer, &done), 0);
    amp_buf_close(&buf);
    cluster_until(fixture, &done, 1);
    io_etcd_close(etcd, NULL, NULL);
}

static struct ampd_msg_bytes bytes(const char *text)
{
    return (struct ampd_msg_bytes){(uint8_t *)(uintptr_t)text, strlen(text)};
}

/* A key of this test's cluster, by its end. */
static const char *key_of(const struct cluster_fixture *fixture, const char *end)
{
    static char key[128];
    (void)snprintf(key, sizeof key, "ampd/%s%s", fixture->url.name, end);
    return key;
}

static void put(struct cluster_fixture *fixture, const char *end, const char *value)
{
    struct ampd_etcd_request_op op = {.has_request_put = true};
    op.request_put.key = bytes(key_of(fixture, end));
    op.request_put.value = bytes(value);
    change(fixture, &op);
}

static void delete (struct cluster_fixture *fixture, const char *end)
{
    struct ampd_etcd_request_op op = {.has_request_delete_range = true};
    op.request_delete_range.key = bytes(key_of(fixture, end));
    change(fixture, &op);
}

/* ---- one at a time ---- */

static void a_place_that_is_held_is_waited_for(void **state)
{
    struct cluster_fixture *fixture = *state;
    cluster_join(fixture, 0, 1);
    cluster_open(fixture, 1, &(struct part_options){.shard = 1});
    cluster_until(fixture, &fixture->parts[1].waiting, 1);
    assert_non_null(strstr(fixture->parts[1].why_waiting.text, fixture->parts[0].address));
    cluster_run_ms(fixture, 3 * LONG_LEASE_MS / 2); /* however long */
    assert_int_equal(fixture->parts[1].taken, 0);
    assert_true(io_cluster_holds(fixture->parts[0].cluster));
    cluster_leave(fixture, 0);
    cluster_until(fixture, &fixture->parts[1].taken, 1);
    assert_true(fixture->parts[1].fence > fixture->parts[0].fence);
}

static void of_two_that_claim_at_once_one_gets_the_place(void **state)
{
    struct cluster_fixture *fixture = *state;
    for (int round = 0; round < 5; round++) {
        for (uint32_t i = 0; i < 4; i++)
            cluster_open(fixture, i, &(struct part_options){.shard = 2, .local = 4});
        int taken = 0;
        while (taken == 0) {
            cluster_turn(fixture);
            for (uint32_t i = 0; i < 4; i++)
                taken += fixture->parts[i].taken;
        }
        cluster_run_ms(fixture, 100);
        taken = 0;
        for (uint32_t i = 0; i < 4; i++)
            taken += io_cluster_holds(fixture->parts[i].cluster);
        assert_int_equal(taken, 1);
        for (uint32_t i = 0; i < 4; i++)
            cluster_leave(fixture, i);
    }
}

static void the_place_of_a_process_that_was_killed_is_free_when_its_lease_ends(void **state)
{
    struct cluster_fixture *fixture = *state;
    fixture->lease_ms = LEASE_MS;
    cluster_join(fixture, 0, 0);
    fixture->lease_ms = LONG_LEASE_MS;
    cluster_open(fixture, 1, &(struct part_options){.shard = 0});
    cluster_until(fixture, &fixture->parts[1].waiting, 1);
    cluster_kill(fixture, 0);
    cluster_until(fixture, &fixture->parts[1].taken, 1);
    assert_true(fixture->parts[1].fence > fixture->parts[0].fence);
}

static void any_free_index_is_taken_and_one_more_stands_by(void **state)
{
    struct cluster_fixture *fixture = *state;
    for (uint32_t i = 0; i < SHARDS; i++) {
        fixture->lease_ms = i == 1 ? LEASE_MS : LONG_LEASE_MS; /* that one is killed */
        take_any(fixture, i);
        cluster_until(fixture, &fixture->parts[i].taken, 1);
        assert_int_equal(fixture->parts[i].shard, i); /* the lowest */
    }
    cluster_until_held(fixture, 0, SHARDS - 1, SHARDS - 1); /* who waits before is shown, too */
    take_any(fixture, SHARDS);
    struct part *standby = &fixture->parts[SHARDS];
    cluster_until(fixture, &standby->waiting, 1);
    while (io_cluster_standbys(fixture->parts[0].cluster) == 0)
        cluster_turn(fixture);
    assert_string_equal(io_cluster_standby(fixture->parts[0].cluster, 0), standby->address);
    cluster_kill(fixture, 1);
    cluster_until(fixture, &standby->taken, 1);
    assert_int_equal(standby->shard, 1);
    for (uint32_t i = 0; i < SHARDS; i += 2) { /* each sees it by a watch of its own */
        cluster_until_held(fixture, i, 1, SHARDS);
        while (io_cluster_standbys(fixture->parts[i].cluster) > 0)
            cluster_turn(fixture);
    }
}

static void a_place_whose_data_are_here_is_preferred(void **state)
{
    struct cluster_fixture *fixture = *state;
    cluster_open(fixture, 0, &(struct part_options){.shard = IO_CLUSTER_ANY, .local = 1 << 2});
    cluster_until(fixture, &fixture->parts[0].taken, 1);
    assert_int_equal(fixture->parts[0].shard, 2);
    /* And of two that wait, the one with data gets it. */
    cluster_open(fixture, 1, &(struct part_options){.shard = 2});
    cluster_open(fixture, 3, &(struct part_options){.shard = 2, .local = 1 << 2});
    cluster_until(fixture, &fixture->parts[1].waiting, 1);
    cluster_until(fixture, &fixture->parts[3].waiting, 1);
    cluster_leave(fixture, 0);
    cluster_until(fixture, &fixture->parts[3].taken, 1);
    assert_int_equal(fixture->parts[1].taken, 0);
}

static void data_of_before_the_last_process_let_those_of_it_go_first(void **state)
{
    struct cluster_fixture *fixture = *state;
    cluster_join(fixture, 0, 2);
    uint64_t before = fixture->parts[0].fence;
    cluster_serve(fixture, 0);
    cluster_leave(fixture, 0);
    cluster_join(fixture, 0, 2);
    cluster_serve(fixture, 0);
    uint64_t last = fixture->parts[0].fence;
    cluster_open(fixture, 1, &(struct part_options){.shard = 2, .local = 1 << 2, .served = before});
    cluster_until(fixture, &fixture->parts[1].waiting, 1);
    cluster_open(fixture, 3, &(struct part_options){.shard = 2, .local = 1 << 2, .served = last});
    cluster_until(fixture, &fixture->parts[3].waiting, 1);
    cluster_leave(fixture, 0);
    cluster_until(fixture, &fixture->parts[3].taken, 1);
    assert_int_equal(fixture->parts[1].taken, 0);
    assert_int_equal(io_cluster_last(fixture->parts[3].cluster), last);
    /* Where nobody has those, the ones of before are better than nothing: who takes the place is told. */
    cluster_leave(fixture, 3);
    cluster_until(fixture, &fixture->parts[1].taken, 1);
    assert_int_equal(io_cluster_last(fixture->parts[1].cluster), last);
}

static void who_serves_does_not_give_its_place_back(void **state)
{
    struct cluster_fixture *fixture = *state;
    cluster_join(fixture, 0, 2);
    cluster_serve(fixture, 0);
    /* Its data are the newest ones, though those of who comes are said to be as new: a copy of the directory. */
    cluster_open(fixture, 1, &(struct part_options){.shard = 2, .local = 1 << 2, .served = fixture->parts[0].fence});
    cluster_run_ms(fixture, LEASE_MS / 2);
    assert_int_equal(fixture->parts[1].taken, 0);
    assert_int_equal(fixture->parts[0].lost, 0);
    assert_true(io_cluster_holds(fixture->parts[0].cluster));
}

static void a_place_is_given_back_to_who_comes_with_its_data_until_it_is_kept(void **state)
{
    struct cluster_fixture *fixture = *state;
    for (int kept = 0; kept < 2; kept++) {
        cluster_join(fixture, 0, 2);
        uint64_t served = fixture->parts[0].fence;
        cluster_serve(fixture, 0);
        cluster_leave(fixture, 0);
        cluster_join(fixture, 1, 2); /* without data */
        if (kept)
            io_cluster_keep(fixture->parts[1].cluster);
        cluster_open(fixture, 3, &(struct part_options){.shard = 2, .local = 1 << 2, .served = served});
        if (kept) {
            cluster_run_ms(fixture, LEASE_MS / 2);
            assert_int_equal(fixture->parts[1].lost + fixture->parts[3].taken, 0);
            cluster_leave(fixture, 1);
        }
        cluster_until(fixture, &fixture->parts[3].taken, 1);
        if (!kept) { /* it has held it no more since before; that it is told so waits for etcd's answer to it */
            assert_false(io_cluster_holds(fixture->parts[1].cluster));
            cluster_until(fixture, &fixture->parts[1].lost, 1);
            assert_int_equal(fixture->parts[1].why_lost.code, AMP_EUNAVAILABLE);
            assert_non_null(strstr(fixture->parts[1].why_lost.text, fixture->parts[3].address));
        }
        if (!kept)
            cluster_kill(fixture, 1);
        cluster_leave(fixture, 3);
    }
}

static void what_etcd_has_forgotten_is_told_when_all_places_are_held(void **state)
{
    struct cluster_fixture *fixture = *state;
    cluster_open(fixture, 0, &(struct part_options){.shard = 0, .local = 1, .models = 1, .served = 10});
    cluster_until_held(fixture, 0, 0, 0);
    /* The newest data of its own shard, which can fill the others. */
    cluster_open(fixture, 1, &(struct part_options){.shard = 1, .local = 2, .models = 2, .served = 50, .floor = 50});
    cluster_until_held(fixture, 1, 1, 1);
    assert_int_equal(fixture->parts[0].taken + fixture->parts[1].taken, 0);
    cluster_open(fixture, 2, &(struct part_options){.shard = 2});
    for (int i = 0; i < 3; i++)
        cluster_until(fixture, &fixture->parts[i].taken, 1);
    for (int i = 0; i < 3; i++) { /* by one of them */
        assert_int_equal(io_cluster_last(fixture->parts[i].cluster), 50);
        assert_true(fixture->parts[i].fence > 50);
    }
}

static void the_lease_of_a_process_that_is_gone_is_ended_by_the_next_one(void **state)
{
    struct cluster_fixture *fixture = *state;
    cluster_join(fixture, 0, 1);
    cluster_serve(fixture, 0);
    struct part_options again = {.shard = 1, .local = 2, .served = fixture->parts[0].fence};
    again.lease_before = fixture->parts[0].lease;
    assert_true(again.lease_before != 0);
    cluster_kill(fixture, 0);
    int64_t began_ms = io_etcd_now_ms();
    take_again(fixture, 0, &again);
    assert_true(io_etcd_now_ms() - began_ms < LONG_LEASE_MS / 2);
    assert_true(fixture->parts[0].fence > again.served);
    assert_true(fixture->parts[0].lease != again.lease_before);
}

static void a_place_under_a_lease_that_took_long_to_grant_is_kept(void **state)
{
    struct cluster_fixture *fixture = *state;
    fixture->lease_ms = LEASE_MS;
    int lost = 1;
    for (int tries = 0; tries < 5 && lost > 0;
         tries++) { /* on a busy machine the grant may take longer than the lease */
        etcd_pause(fixture->etcd);
        cluster_open(fixture, 0, &(struct part_options){.shard = 2, .local = 4});
        cluster_run_ms(fixture, LEASE_MS - 150); /* a tenth of the lease, after which a keepalive is due, is longer */
        etcd_continue(fixture->etcd);
        cluster_until(fixture, &fixture->parts[0].taken, 1);
        cluster_run_ms(fixture, LEASE_MS / 2);
        lost = fixture->parts[0].lost;
        cluster_leave(fixture, 0);
    }
    assert_int_equal(lost, 0);
}

static void a_word_of_who_served_last_that_makes_no_sense_is_none(void **state)
{
    struct cluster_fixture *fixture = *state;
    put(fixture, "/who/last-1", "x");
    put(fixture, "/who/last-64", "5");
    cluster_join(fixture, 0, 1);
    assert_int_equal(io_cluster_last(fixture->parts[0].cluster), 0);
    cluster_serve(fixture, 0);
    cluster_leave(fixture, 0);
    cluster_join(fixture, 0, 1);
    assert_true(io_cluster_last(fixture->parts[0].cluster) > 0);
    delete (fixture, "/who/last-1"); /* costs nothing that holds */
    cluster_run_ms(fixture, 200);
    assert_true(io_cluster_holds(fixture->parts[0].cluster));
    cluster_leave(fixture, 0);
    cluster_join(fixture, 0, 1);
    assert_int_equal(io_cluster_last(fixture->parts[0].cluster), 0);
}

static void who_has_lost_the_place_serves_no_more(void **state)
{
    struct cluster_fixture *fixture = *state;
    int none = 0;
    cluster_join(fixture, 0, 0);
    delete (fixture, "/who/shard-0");
    if (fixture->parts[0].lost == 0) { /* it has not heard of it yet */
        int rc = io_cluster_serves(fixture->parts[0].cluster, false, on_none, &none);
        assert_true(rc == 0 || rc == AMP_ESTATE);
    }
    cluster_until(fixture, &fixture->parts[0].lost, 1);
    assert_int_equal(none, 0);
    cluster_kill(fixture, 0);
    cluster_join(fixture, 0, 0);
    assert_int_equal(io_cluster_last(fixture->parts[0].cluster), 0);
}

static void a_process_for_another_number_of_shards_is_refused(void **state)
{
    struct cluster_fixture *fixture = *state;
    cluster_join(fixture, 0, 0);
    cluster_open(fixture, 1, &(struct part_options){.shard = 1, .shards = 2, .local = 2});
    cluster_until(fixture, &fixture->parts[1].lost, 1);
    assert_int_equal(fixture->parts[1].why_lost.code, AMP_ESTATE);
    assert_non_null(strstr(fixture->parts[1].why_lost.text, "--shards"));
    /* Both at once: the later one. */
    cluster_leave(fixture, 0);
    cluster_kill(fixture, 1);
    for (int round = 0; round < 5; round++) {
        cluster_open(fixture, 0, &(struct part_options){.shard = 0, .local = 1});
        cluster_open(fixture, 1, &(struct part_options){.shard = 1, .shards = 2, .local = 2});
        while (fixture->parts[0].lost + fixture->parts[1].lost == 0)
            cluster_turn(fixture);
        cluster_run_ms(fixture, 100);
        assert_int_equal(fixture->parts[0].lost + fixture->parts[1].lost, 1);
        assert_int_equal(io_cluster_holds(fixture->parts[0].cluster) + io_cluster_holds(fixture->parts[1].cluster), 1);
        for (uint32_t i = 0; i < 2; i++)
            cluster_leave(fixture, i);
    }
}

static void models_are_noted_with_their_number_of_shards_until_there_are_none(void **state)
{
    struct cluster_fixture *fixture = *state;
    struct part *part = &fixture->parts[0];
    cluster_join(fixture, 0, 0);
    assert_int_equal(io_cluster_models(part->cluster), 0);
    cluster_serve(fixture, 0); /* without any */
    (void)cluster_raise(fixture, 0, "m", 1);
    cluster_leave(fixture, 0);
    cluster_open(fixture, 1, &(struct part_options){.shard = 1, .shards = 2, .local = 2}); /* nobody else is there */
    cluster_until(fixture, &fixture->parts[1].lost, 1);
    assert_int_equal(fixture->parts[1].why_lost.code, AMP_ESTATE);
    assert_non_null(strstr(fixture->parts[1].why_lost.text, "who/shards"));
    assert_int_equal(fixture->parts[1].taken, 0);
    const struct part_options again = {.shard = 0, .local = 1, .models = 1, .served = part->fence};
    take_again(fixture, 0, &again);
    assert_int_equal(io_cluster_models(part->cluster), SHARDS);
    io_cluster_no_models(part->cluster);
    (void)cluster_raise(fixture, 0, "n", 1); /* meanwhile another one */
    cluster_run_ms(fixture, 200);
    cluster_leave(fixture, 0);
    cluster_join(fixture, 0, 1);
    assert_int_equal(io_cluster_models(part->cluster), SHARDS);
    io_cluster_no_models(part->cluster); /* shard 0 alone can say so */
    cluster_run_ms(fixture, 200);
    cluster_leave(fixture, 0);
    take_again(fixture, 0, &again);
    assert_int_equal(io_cluster_models(part->cluster), SHARDS);
    io_cluster_no_models(part->cluster);
    cluster_run_ms(fixture, 200);
    cluster_leave(fixture, 0);
    cluster_join(fixture, 0, 0);
    assert_int_equal(io_cluster_models(part->cluster), 0);
    put(fixture, "/who/shards", "x");
    cluster_leave(fixture, 0);
    cluster_join(fixture, 0, 0);
    assert_int_equal(io_cluster_models(part->cluster), 0);
}

static void another_format_and_foreign_keys(void **state)
{
    struct cluster_fixture *fixture = *state;
    put(fixture, "/who/shard-99", "1 3 0 a:1");
    put(fixture, "/who/shard-x", "\xff\xfe");
    put(fixture, "/who/", "");
    put(fixture, "2/who/shard-1", "1 3 0 a:1"); /* of a cluster whose name begins with this one's */
    cluster_join(fixture, 0, 1);
    put(fixture, "/who/shard-2", "2 anything else");
    cluster_open(fixture, 1, &(struct part_options){.shard = 0});
    cluster_until(fixture, &fixture->parts[1].lost, 1);
    assert_int_equal(fixture->parts[1].why_lost.code, AMP_ESTATE);
    assert_non_null(strstr(fixture->parts[1].why_lost.text, "version"));
    assert_int_equal(fixture->parts[0].lost, 0); /* it was first */
}

/* ---- what is lost ---- */

static void a_place_whose_key_is_deleted_is_lost_at_once(void **state)
{
    struct cluster_fixture *fixture = *state;
    cluster_join(fixture, 0, 1);
    delete (fixture, "/who/shard-1");
    cluster_until(fixture, &fixture->parts[0].lost, 1);
    assert_int_equal(fixture->parts[0].why_lost.code, AMP_EUNAVAILABLE);
    assert_false(io_cluster_holds(fixture->parts[0].cluster));
    assert_int_equal(io_cluster_raise_epoch(fixture->parts[0].cluster, "m", 1, NULL, NULL), AMP_ESTATE);
}

static void who_has_lost_shard_0_raises_no_epoch(void **state)
{
    struct cluster_fixture *fixture = *state;
    cluster_join(fixture, 0, 0);
    (void)cluster_raise(fixture, 0, "m", 5);
    /* Another one has the place, though this process has not heard of it yet. */
    delete (fixture, "/who/shard-0");
    if (fixture->parts[0].lost == 0) {
        int rc =
            io_cluster_raise_epoch(fixture->parts[0].cluster, "m", 6, NULL, NULL); /* would crash if it were done */
        assert_true(rc == 0 || rc == AMP_ESTATE);
    }
    cluster_until(fixture, &fixture->parts[0].lost, 1);
    cluster_kill(fixture, 0);
    cluster_join(fixture, 0, 0);
    assert_int_equal(cluster_raise(fixture, 0, "m", 1), 6);
}

static void epochs_outlive_all_stores(void **state)
{
    struct cluster_fixture *fixture = *state;
    cluster_join(fixture, 0, 0);
    assert_int_equal(cluster_raise(fixture, 0, "m", 7), 7);
    cluster_leave(fixture, 0);
    cluster_join(fixture, 1, 0);
    assert_int_equal(cluster_raise(fixture, 1, "m", 1), 8); /* an empty store knows of none */
    assert_int_equal(io_cluster_raise_epoch(fixture->parts[1].cluster, "n", 1, NULL, NULL), 0);
    cluster_kill(fixture, 1);
}

static void only_shard_0_raises_epochs(void **state)
{
    struct cluster_fixture *fixture = *state;
    cluster_join(fixture, 0, 1);
    assert_int_equal(io_cluster_raise_epoch(fixture->parts[0].cluster, "m", 1, NULL, NULL), AMP_ESTATE);
}

static void an_etcd_that_is_slow_for_less_than_the_lease_costs_nothing(void **state)
{
    struct cluster_fixture *fixture = *state;
    fixture->lease_ms = LEASE_MS;
    cluster_join(fixture, 0, 0);
    for (int i = 0; i < 4; i++) { /* longer than the lease, in all */
        etcd_pause(fixture->etcd);
        cluster_run_ms(fixture, LEASE_MS / 4);
        etcd_continue(fixture->etcd);
        cluster_run_ms(fixture, LEASE_MS / 4);
    }
    assert_true(io_cluster_holds(fixture->parts[0].cluster));
    assert_int_equal(cluster_raise(fixture, 0, "m", 1), 1);
}

static void a_place_is_lost_when_etcd_is_away_for_longer_than_the_lease(void **state)
{
    struct cluster_fixture *fixture = *state;
    fixture->lease_ms = LEASE_MS;
    for (int paused = 0; paused < 2; paused++) {
        cluster_join(fixture, 0, 0);
        int64_t began_ms = (int64_t)uv_now(&fixture->loop);
        if (paused)
            etcd_pause(fixture->etcd);
        else
            etcd_kill(fixture->etcd);
        cluster_until(fixture, &fixture->parts[0].lost, 1);
        assert_false(io_cluster_holds(fixture->parts[0].cluster));
        /* Not before a good part of it has passed: keepalives are sent often. etcd's shortest lease is 2 s. */
        assert_true(fixture->parts[0].lost_ms - began_ms >= LEASE_MS / 2);
        cluster_kill(fixture, 0);
        if (paused)
            etcd_continue(fixture->etcd);
        else
            etcd_start(fixture->etcd);
        cluster_join(fixture, 0, 0); /* and it can be taken again */
        cluster_leave(fixture, 0);
    }
}

static void a_process_that_was_stopped_past_its_lease_knows_at_once(void **state)
{
    struct cluster_fixture *fixture = *state;
    fixture->lease_ms = LEASE_MS;
    cluster_join(fixture, 0, 0);
    int64_t until_ms = io_etcd_now_ms() + LEASE_MS + 100;
    while (io_etcd_now_ms() < until_ms) { /* as SIGSTOP does: the loop does not run */
        struct timespec pause = {0, 10000000};
        (void)nanosleep(&pause, NULL);
    }
    assert_int_equal(fixture->parts[0].lost, 0); /* the loop has not run */
    assert_false(io_cluster_holds(fixture->parts[0].cluster));
    cluster_until(fixture, &fixture->parts[0].lost, 1);
    assert_false(io_cluster_holds(fixture->parts[0].cluster));
}

static void a_wiped_etcd_ends_the_holders_and_later_fences_are_higher(void **state)
{
    struct cluster_fixture *fixture = *state;
    cluster_join(fixture, 0, 0);
    for (int i = 0; i < 200; i++) /* revisions that a new etcd has not */
        (void)cluster_raise(fixture, 0, "m", 1);
    cluster_leave(fixture, 0);
    cluster_join(fixture, 0, 0);
    uint64_t before = fixture->parts[0].fence;
    assert_true(before > 200);
    etcd_kill(fixture->etcd);
    etcd_wipe(fixture->etcd);
    etcd_start(fixture->etcd);
    cluster_until(fixture, &fixture->parts[0].lost, 1);
    cluster_kill(fixture, 0);
    /* One whose data know of nothing gets a low fence, ... */
    cluster_join(fixture, 1, 0);
    assert_true(fixture->parts[1].fence < before);
    cluster_leave(fixture, 1);
    /* ... one whose data know of the fence before a higher one, and so does everyone after it. */
    cluster_join(fixture, 4, 1);
    cluster_join(fixture, 5, 2);
    cluster_open(fixture, 2, &(struct part_options){.shard = 0, .floor = before});
    cluster_until(fixture, &fixture->parts[2].taken, 1);
    assert_true(fixture->parts[2].fence > before);
    cluster_leave(fixture, 2);
    cluster_join(fixture, 3, 0);
    assert_true(fixture->parts[3].fence > fixture->parts[2].fence);
}

static void one_waits_for_an_etcd_that_is_not_there_yet(void **state)
{
    struct cluster_fixture *fixture = *state;
    etcd_kill(fixture->etcd);
    take_any(fixture, 0);
    cluster_until(fixture, &fixture->parts[0].waiting, 1);
    assert_int_equal(fixture->parts[0].why_waiting.code, AMP_EUNAVAILABLE);
    cluster_run_ms(fixture, 1000);
    assert_int_equal(fixture->parts[0].waiting, 1); /* said once */
    etcd_start(fixture->etcd);
    cluster_until(fixture, &fixture->parts[0].taken, 1);
}

static void a_standby_outlives_an_etcd_that_is_away(void **state)
{
    struct cluster_fixture *fixture = *state;
    fixture->lease_ms = LEASE_MS;
    cluster_join(fixture, 0, 0);
    cluster_open(fixture, 1, &(struct part_options){.shard = 0});
    cluster_until(fixture, &fixture->parts[1].waiting, 1);
    etcd_kill(fixture->etcd);
    cluster_until(fixture, &fixture->parts[0].lost, 1);
    cluster_run_ms(fixture, LEASE_MS);
    etcd_start(fixture->etcd);
    cluster_until(fixture, &fixture->parts[1].taken, 1);
    assert_int_equal(fixture->parts[1].lost, 0);
}

static void endpoints_that_do_not_answer_are_passed_over(void **state)
{
    struct cluster_fixture *fixture = *state;
    char endpoints[sizeof fixture->url.endpoints];
    (void)snprintf(endpoints, sizeof endpoints, "127.0.0.1:1,127.0.0.1:2,%.200s", fixture->url.endpoints);
    memcpy(fixture->url.endpoints, endpoints, sizeof endpoints);
    cluster_join(fixture, 0, 0);
    cluster_run_ms(fixture, 3 * LONG_LEASE_MS / 2);
    assert_true(io_cluster_holds(fixture->parts[0].cluster));
    assert_int_equal(cluster_raise(fixture, 0, "m", 1), 1);
}

/* ---- what is remembered ---- */

static void epochs_of_a_model_only_rise(void **state)
{
    struct cluster_fixture *fixture = *state;
    cluster_join(fixture, 0, 0);
    uint64_t epoch = cluster_raise(fixture, 0, "m", 1);
    assert_int_equal(epoch, 1);
    epoch = cluster_raise(fixture, 0, "m", epoch + 1);
    assert_int_equal(epoch, 2);
    assert_int_equal(cluster_raise(fixture, 0, "m", 10), 10);
    assert_int_equal(cluster_raise(fixture, 0, "m.2", 1), 1);
    assert_int_equal(fixture->parts[0].lost, 0);
}

static void each_model_has_its_own_epoch(void **state)
{
    struct cluster_fixture *fixture = *state;
    struct part *part = &fixture->parts[0];
    char name[32];
    cluster_join(fixture, 0, 0);
    (void)cluster_raise(fixture, 0, "m", 1);
    for (int i = 0; i < 200; i++) {
        (void)snprintf(name, sizeof name, "model-%d", i);
        assert_int_equal(cluster_raise(fixture, 0, name, 1), 1);
        if (i % 20 != 0)
            continue;
        assert_int_equal(cluster_raise(fixture, 0, name, 2), 2);
    }
    assert_true(io_cluster_holds(part->cluster));
}

static void fences_that_are_given_later_are_above_the_one_that_is_named(void **state)
{
    struct cluster_fixture *fixture = *state;
    int done = 0;
    cluster_join(fixture, 0, 0);
    uint64_t above = fixture->parts[0].fence + 1000;
    io_cluster_raise_fences(fixture->parts[0].cluster, above, on_none, &done);
    cluster_until(fixture, &done, 1);
    assert_true(io_cluster_holds(fixture->parts[0].cluster));
    cluster_leave(fixture, 0);
    cluster_join(fixture, 0, 0);
    assert_true(fixture->parts[0].fence > above);
}

static void who_served_last_is_told_to_who_takes_the_place(void **state)
{
    struct cluster_fixture *fixture = *state;
    struct part *part = &fixture->parts[0];
    int none = 0;
    cluster_open(fixture, 0, &(struct part_options){.shard = 1});
    assert_int_equal(io_cluster_serves(part->cluster, false, on_none, &none), AMP_ESTATE); /* not before it has it */
    cluster_kill(fixture, 0);
    for (int round = 0; round < 3; round++) {
        cluster_join(fixture, 0, 1);
        uint64_t before = io_cluster_last(part->cluster), fence = part->fence;
        assert_true(before < fence && (round > 0 || before == 0));
        cluster_leave(fixture, 0);
        cluster_join(fixture, 0, 1);
        assert_int_equal(io_cluster_last(part->cluster), before); /* who has not begun to serve leaves no word */
        fence = part->fence;
        cluster_serve(fixture, 0);
        cluster_leave(fixture, 0);
        cluster_join(fixture, 0, 1);
        assert_int_equal(io_cluster_last(part->cluster), fence);
        cluster_leave(fixture, 0);
        cluster_join(fixture, 0, 2); /* each place has its own */
        assert_int_equal(io_cluster_last(part->cluster), 0);
        cluster_leave(fixture, 0);
    }
    assert_int_equal(none, 0);
}

#define TEST(name)                                                                                                     \
    {                                                                                                                  \
#name, name, cluster_setup, cluster_teardown, NULL                                                             \
    }

int main(void)
{
    if (!etcd_available()) {
        (void)printf("SKIPPED: test_cluster_etcd: no etcd (package etcd-server)\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        TEST(a_place_that_is_held_is_waited_for),
        TEST(of_two_that_claim_at_once_one_gets_the_place),
        TEST(the_place_of_a_process_that_was_killed_is_free_when_its_lease_ends),
        TEST(any_free_index_is_taken_and_one_more_stands_by),
        TEST(a_place_whose_data_are_here_is_preferred),
        TEST(data_of_before_the_last_process_let_those_of_it_go_first),
        TEST(who_serves_does_not_give_its_place_back),
        TEST(a_place_is_given_back_to_who_comes_with_its_data_until_it_is_kept),
        TEST(what_etcd_has_forgotten_is_told_when_all_places_are_held),
        TEST(the_lease_of_a_process_that_is_gone_is_ended_by_the_next_one),
        TEST(a_place_under_a_lease_that_took_long_to_grant_is_kept),
        TEST(a_word_of_who_served_last_that_makes_no_sense_is_none),
        TEST(who_has_lost_the_place_serves_no_more),
        TEST(a_process_for_another_number_of_shards_is_refused),
        TEST(models_are_noted_with_their_number_of_shards_until_there_are_none),
        TEST(another_format_and_foreign_keys),
        TEST(a_place_whose_key_is_deleted_is_lost_at_once),
        TEST(who_has_lost_shard_0_raises_no_epoch),
        TEST(epochs_of_a_model_only_rise),
        TEST(each_model_has_its_own_epoch),
        TEST(fences_that_are_given_later_are_above_the_one_that_is_named),
        TEST(who_served_last_is_told_to_who_takes_the_place),
        TEST(epochs_outlive_all_stores),
        TEST(only_shard_0_raises_epochs),
        TEST(an_etcd_that_is_slow_for_less_than_the_lease_costs_nothing),
        TEST(a_place_is_lost_when_etcd_is_away_for_longer_than_the_lease),
        TEST(a_process_that_was_stopped_past_its_lease_knows_at_once),
        TEST(a_wiped_etcd_ends_the_holders_and_later_fences_are_higher),
        TEST(one_waits_for_an_etcd_that_is_not_there_yet),
        TEST(a_standby_outlives_an_etcd_that_is_away),
        TEST(endpoints_that_do_not_answer_are_passed_over),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cluster_end();
    return failed;
}
