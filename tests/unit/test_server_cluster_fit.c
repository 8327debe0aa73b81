/* Who is to take which place of a cluster in etcd, by what is known of all data (server/io/cluster/cluster_fit.c). */
#include "server/io/cluster/cluster_impl.h"
#include "server/io/cluster/cluster_fit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define SHARDS   3
#define ADDRESS  "1 3 0 10.0.0.7:7420"
#define MODELS   SHARDS
#define LEASE_MS 2000

/* This process waits, and is shown as number 1. */
static struct io_cluster *new_cluster(void)
{
    static struct io_cluster cluster;
    static const struct io_cluster_url url = {.name = "c"};
    memset(&cluster, 0, sizeof cluster);
    memcpy(cluster.prefix, "ampd/c/", sizeof "ampd/c/");
    cluster.options =
        (struct io_cluster_options){.url = &url, .shards = SHARDS, .shard = IO_CLUSTER_ANY, .lease_ms = LEASE_MS};
    cluster.showing = cluster.shown = 1;
    return &cluster;
}

static struct ampd_msg_bytes bytes(const char *text)
{
    return (struct ampd_msg_bytes){(uint8_t *)(uintptr_t)text, strlen(text)};
}

/* etcd tells of a key; `revision` has made it. */
static void put(struct io_cluster *cluster, const char *key, const char *value, int64_t revision)
{
    char whole[CLUSTER_KEY_MAX];
    (void)snprintf(whole, sizeof whole, "ampd/c/who/%s", key);
    const struct ampd_etcd_key_value kv = {.key = bytes(whole), .value = bytes(value), .create_revision = revision};
    cluster_map_put(cluster, &kv);
}

static void delete (struct io_cluster *cluster, const char *key)
{
    char whole[CLUSTER_KEY_MAX];
    (void)snprintf(whole, sizeof whole, "ampd/c/who/%s", key);
    cluster_map_remove(cluster, (const uint8_t *)whole, strlen(whole));
}

/* This process's data. */
static void has(struct io_cluster *cluster, uint32_t shard, uint64_t served, bool models)
{
    struct io_cluster_options *options = &cluster->options;
    options->local |= (uint64_t)1 << shard;
    options->models |= (uint64_t)models << shard;
    options->served[shard] = options->known[shard] = served;
}

static void expect(const struct io_cluster *cluster, uint32_t shard, int64_t patience_ms)
{
    int64_t given_ms = 0;
    assert_int_equal(cluster_candidate(cluster, &given_ms), shard);
    assert_int_equal(given_ms, patience_ms);
}

static void of_data_of_several_shards_those_count_that_no_other_process_has_been_since(void **state)
{
    struct io_cluster *cluster = new_cluster();
    has(cluster, 0, 10, true);
    has(cluster, 2, 12, true);
    put(cluster, "last-0", "50", 1);
    put(cluster, "last-1", "11", 1);
    put(cluster, "last-2", "12", 2);
    put(cluster, "shards", "3", 3);
    expect(cluster, 2, 0);
    put(cluster, "shard-2", ADDRESS, 60);
    expect(cluster, IO_CLUSTER_ANY, 0);
}

static void data_of_before_or_none_take_a_place_only_where_a_shard_serves_that_can_fill_them(void **state)
{
    struct io_cluster *cluster = new_cluster();
    put(cluster, "shards", "3", 1);
    put(cluster, "last-0", "10", 2);
    put(cluster, "last-1", "11", 3);
    put(cluster, "last-2", "12", 4);
    expect(cluster, IO_CLUSTER_ANY, 0);
    has(cluster, 0, 9, true);
    expect(cluster, IO_CLUSTER_ANY, 0);
    put(cluster, "shard-1", ADDRESS, 20); /* it has its place, and does not serve yet */
    expect(cluster, IO_CLUSTER_ANY, 0);
    put(cluster, "last-1", "20", 21);
    expect(cluster, 0, 250);
    delete (cluster, "shard-1");
    expect(cluster, IO_CLUSTER_ANY, 0);
}

static void nobody_takes_the_place_of_a_process_that_waits_with_its_data(void **state)
{
    struct io_cluster *cluster = new_cluster();
    for (int k = 0; k < SHARDS; k++) {
        char key[16];
        (void)snprintf(key, sizeof key, "last-%d", k);
        put(cluster, key, "10", 1);
    }
    put(cluster, "standby-7", ADDRESS, 2);
    expect(cluster, 0, 250);
    put(cluster, "data-7", "1 3 0:10:10 2:10:10", 2);
    expect(cluster, 1, 250);
    assert_non_null(cluster_owner(cluster, 0));
    assert_null(cluster_owner(cluster, 1));
    delete (cluster, "standby-7"); /* it has taken one of them */
    assert_null(cluster_owner(cluster, 0));
    expect(cluster, 0, 250);
    put(cluster, "standby-8", ADDRESS, 3);
    put(cluster, "data-8", "1 3 0:9:9", 3); /* of before */
    assert_null(cluster_owner(cluster, 0));
    put(cluster, "data-8", "1 3 0:10:10", 4);
    has(cluster, 0, 10, true); /* as good as those: the first one gets it */
    assert_null(cluster_owner(cluster, 0));
    expect(cluster, 0, 0);
}

static void what_etcd_has_forgotten_the_data_know_together(void **state)
{
    struct io_cluster *cluster = new_cluster();
    has(cluster, 0, 10, true);
    assert_true(cluster_forgotten(cluster, 0));
    expect(cluster, 0, 5000); /* others may have newer data, and may still have to start */
    /* Data of another shard, which has met the process that was shard 0 last. */
    put(cluster, "data-7", "1 3 1:11:11 0:0:50", 1);
    assert_int_equal(cluster_newest(cluster, 0), 50);
    assert_int_equal(cluster_floor(cluster), 50);
    assert_false(cluster_is_own(cluster, 0));
    assert_true(cluster_lacks(cluster, 0));
    expect(cluster, 0, 5000);
    put(cluster, "standby-8", ADDRESS, 2);
    put(cluster, "data-8", "1 3 0:50:50", 2); /* the process itself */
    assert_string_equal(cluster_owner(cluster, 0)->address, "10.0.0.7:7420");
    expect(cluster, 1, 5000);
}

static void what_etcd_has_told_before_it_lost_all_is_remembered_until_an_operator_deletes_it(void **state)
{
    struct io_cluster *cluster = new_cluster();
    char value[CLUSTER_DATA_MAX];
    put(cluster, "shards", "3", 1);
    put(cluster, "last-0", "10", 2);
    put(cluster, "last-1", "11", 3);
    cluster_map_reset(cluster); /* a standby without data, which no other process has told anything yet */
    assert_true(cluster_forgotten(cluster, 0));
    assert_int_equal(cluster_floor(cluster), 11);
    expect(cluster, 2, 250); /* of which nobody has ever been the shard */
    put(cluster, "shard-2", ADDRESS, 1);
    expect(cluster, IO_CLUSTER_ANY, 0);
    assert_false(cluster_data_value(cluster, value)); /* its data know nothing */
    put(cluster, "standby-8", ADDRESS, 1);
    put(cluster, "data-8", "1 3 0:10:10", 1);
    expect(cluster, 1, 5000);
    delete (cluster, "last-1");
    assert_false(cluster_forgotten(cluster, 1));
    expect(cluster, 1, 250);
}

static void an_only_shard_is_not_begun_without_the_data_that_etcd_has_told_of_before_it_lost_all(void **state)
{
    struct io_cluster *cluster = new_cluster();
    char text[AMP_ERROR_TEXT_MAX];
    cluster->options.shards = 1;
    put(cluster, "shards", "1", 1);
    put(cluster, "last-0", "10", 2);
    cluster_map_reset(cluster);
    expect(cluster, IO_CLUSTER_ANY, 0);
    cluster_what_lacks(cluster, 0, text, sizeof text);
    assert_non_null(strstr(text, "has no model, but a process has held the shard, under fence 10"));
    assert_non_null(strstr(text, "start this process again"));
    assert_null(strstr(text, "delete"));
    has(cluster, 0, 9, true); /* a copy of before */
    expect(cluster, IO_CLUSTER_ANY, 0);
    cluster_what_lacks(cluster, 0, text, sizeof text);
    assert_non_null(strstr(text, "does not have the last data of shard 0"));
    assert_non_null(strstr(text, "start this process again"));
    put(cluster, "last-0", "5", 6); /* somebody who knew nothing has begun a new one, and ended */
    expect(cluster, IO_CLUSTER_ANY, 0);
    cluster_what_lacks(cluster, 0, text, sizeof text);
    assert_non_null(strstr(text, "delete ampd/c/who/last-0"));
    cluster_map_reset(cluster);
    cluster->seen[0] = 0; /* it was started again */
    expect(cluster, 0, 5000);
}

static void shards_whose_data_etcd_has_told_of_are_not_begun_before_one_of_them_is_there(void **state)
{
    struct io_cluster *cluster = new_cluster();
    for (int k = 0; k < SHARDS; k++) {
        char key[16];
        (void)snprintf(key, sizeof key, "last-%d", k);
        put(cluster, key, "10", 1);
    }
    cluster_map_reset(cluster);
    has(cluster, 0, 9, true);
    put(cluster, "standby-1", ADDRESS, 1); /* this process itself, and another one that lacks them as well */
    put(cluster, "data-1", "1 3 0:9:9", 1);
    put(cluster, "standby-7", ADDRESS, 2);
    put(cluster, "data-7", "1 3 1:9:9", 2);
    expect(cluster, IO_CLUSTER_ANY, 0);
    put(cluster, "standby-8", ADDRESS, 3);
    put(cluster, "data-8", "1 3 2:10:10", 3);
    expect(cluster, 0, 5000);
    delete (cluster, "standby-8"); /* it has its place, and waits for holders of the others */
    put(cluster, "shard-2", ADDRESS, 11);
    expect(cluster, 0, 5000);
    delete (cluster, "data-8");
    delete (cluster, "shard-2");
    expect(cluster, IO_CLUSTER_ANY, 0);
}

static void fences_are_above_that_of_a_store_without_models_too(void **state)
{
    struct io_cluster *cluster = new_cluster();
    has(cluster, 1, 63, false);
    cluster->options.known[1] = 0; /* as io_membership_open has it */
    assert_int_equal(cluster_newest(cluster, 1), 0);
    assert_int_equal(cluster_floor(cluster), 63);
}

static void a_cluster_without_models_is_begun_by_whoever_comes(void **state)
{
    struct io_cluster *cluster = new_cluster();
    expect(cluster, 0, 250);
    put(cluster, "last-0", "10", 1); /* it had some, which were deleted */
    put(cluster, "last-1", "11", 1);
    has(cluster, 1, 9, false);
    expect(cluster, 0, 250);
    put(cluster, "shards", "3", 2);
    expect(cluster, 2, 250); /* of which nobody has ever been the shard */
}

static void a_store_without_models_that_only_held_a_place_is_no_newer_than_the_data(void **state)
{
    struct io_cluster *cluster = new_cluster();
    put(cluster, "shards", "3", 1);
    put(cluster, "last-1", "11", 1);
    cluster->options.shard = 1;
    has(cluster, 1, 30, false);
    cluster->options.known[1] = 0;
    assert_int_equal(cluster_served(cluster, 1), 0);
    expect(cluster, IO_CLUSTER_ANY, 0);
    has(cluster, 1, 11, false); /* the first model was noted in etcd, and never stored */
    expect(cluster, 1, 0);
    has(cluster, 1, 30, true); /* it ended before etcd heard that it serves */
    expect(cluster, 1, 0);
}

static void newer_data_than_those_that_are_served_are_told(void **state)
{
    struct io_cluster *cluster = new_cluster();
    has(cluster, 1, 30, true);
    put(cluster, "shard-1", ADDRESS, 7);
    assert_int_equal(cluster_served_older(cluster), IO_CLUSTER_ANY); /* it does not serve yet, and gives it back */
    put(cluster, "last-1", "7", 8);
    assert_int_equal(cluster_served_older(cluster), 1);
    put(cluster, "shard-1", ADDRESS, 30);
    put(cluster, "last-1", "30", 31); /* this process's own, of before it was started anew */
    assert_int_equal(cluster_served_older(cluster), IO_CLUSTER_ANY);
}

static void who_gets_its_own_place_soon_takes_no_other_at_once(void **state)
{
    struct io_cluster *cluster = new_cluster();
    has(cluster, 1, 11, true);
    put(cluster, "last-1", "11", 1);
    put(cluster, "shard-1", ADDRESS, 11); /* this process's own, of before it was started anew */
    expect(cluster, 0, 5000);
    put(cluster, "shard-1", ADDRESS, 30); /* another one's, which does not serve yet and gives it back */
    expect(cluster, 0, 5000);
    put(cluster, "last-1", "30", 31); /* and serves */
    expect(cluster, 0, 250);
    cluster->options.lease_ms = 20000;
    has(cluster, 1, 30, true);
    expect(cluster, 0, 20000); /* its own again: until the lease ends */
    cluster->options.shard = 2;
    expect(cluster, 2, 250); /* it would not take that one */
}

static void what_a_process_says_of_its_data_is_read_again(void **state)
{
    static const char *const wrong[] = {
        "",          "1",           "1 ",        "1 2 0:1:1",  "2 3 0:1:1",
        "1 3 3:1:1", "1 3 0:1",     "1 3 0:1:",  "1 3  0:1:1", "1 3 0:1:1 ",
        "1 3 0:x:1", "1 3 0:1:1:1", "1 3 0,1,1", "1 3 -1:1:1", "1 3 0:9223372036854775808:1"};
    static const uint8_t zero[] = {'1', ' ', '3', 0};
    struct io_cluster *cluster = new_cluster();
    static struct cluster_process process;
    char value[CLUSTER_DATA_MAX];
    assert_false(cluster_data_value(cluster, value));
    has(cluster, 0, 10, true);
    has(cluster, 2, INT64_MAX, true);
    cluster->options.known[1] = 7;
    assert_true(cluster_data_value(cluster, value));
    assert_string_equal(value, "1 3 0:10:10 1:0:7 2:9223372036854775807:9223372036854775807");
    struct ampd_msg_bytes as_bytes = bytes(value);
    assert_true(cluster_data_parse(&as_bytes, SHARDS, &process));
    assert_int_equal(process.served[0], 10);
    assert_int_equal(process.known[1], 7);
    assert_int_equal(process.served[2], INT64_MAX);
    cluster->options.shard = 2; /* it takes no other place, but it knows of them */
    assert_true(cluster_data_value(cluster, value));
    assert_string_equal(value, "1 3 0:0:10 1:0:7 2:9223372036854775807:9223372036854775807");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        as_bytes = bytes(wrong[i]);
        assert_false(cluster_data_parse(&as_bytes, SHARDS, &process));
        assert_int_equal(process.served[0] + process.known[0], 0);
    }
    as_bytes = (struct ampd_msg_bytes){(uint8_t *)(uintptr_t)zero, sizeof zero};
    assert_false(cluster_data_parse(&as_bytes, SHARDS, &process));
}

static void the_longest_value_has_room(void **state)
{
    struct io_cluster *cluster = new_cluster();
    static struct cluster_process process;
    char value[CLUSTER_DATA_MAX];
    cluster->options.shards = IO_CLUSTER_SHARDS_MAX;
    for (uint32_t k = 0; k < IO_CLUSTER_SHARDS_MAX; k++)
        has(cluster, k, INT64_MAX, true);
    assert_true(cluster_data_value(cluster, value));
    struct ampd_msg_bytes as_bytes = bytes(value);
    assert_true(cluster_data_parse(&as_bytes, IO_CLUSTER_SHARDS_MAX, &process));
    assert_int_equal(process.known[IO_CLUSTER_SHARDS_MAX - 1], INT64_MAX);
}

static void processes_come_and_go(void **state)
{
    struct io_cluster *cluster = new_cluster();
    char key[32];
    for (int i = 0; i < 2 * CLUSTER_PROCESSES_MAX; i++) {
        (void)snprintf(key, sizeof key, "standby-%x", 16 + i);
        put(cluster, key, ADDRESS, 1);
    }
    assert_int_equal(cluster->processes, CLUSTER_PROCESSES_MAX);
    put(cluster, "data-10", "1 3 0:10:10", 2);
    delete (cluster, "standby-10");
    assert_int_equal(cluster->processes, CLUSTER_PROCESSES_MAX);
    put(cluster, "data-10", "9 anything", 3); /* of another version: as if it had none */
    assert_int_equal(cluster->processes, CLUSTER_PROCESSES_MAX - 1);
    assert_int_equal(cluster_newest(cluster, 0), 0);
    put(cluster, "data-10", "1 3 0:10:10", 4);
    delete (cluster, "data-10");
    assert_int_equal(cluster_newest(cluster, 0), 0);
    for (int i = 0; i < 2 * CLUSTER_PROCESSES_MAX; i++) {
        (void)snprintf(key, sizeof key, "standby-%x", 16 + i);
        delete (cluster, key);
    }
    assert_int_equal(cluster->processes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_data_of_several_shards_those_count_that_no_other_process_has_been_since),
        cmocka_unit_test(data_of_before_or_none_take_a_place_only_where_a_shard_serves_that_can_fill_them),
        cmocka_unit_test(nobody_takes_the_place_of_a_process_that_waits_with_its_data),
        cmocka_unit_test(what_etcd_has_forgotten_the_data_know_together),
        cmocka_unit_test(what_etcd_has_told_before_it_lost_all_is_remembered_until_an_operator_deletes_it),
        cmocka_unit_test(an_only_shard_is_not_begun_without_the_data_that_etcd_has_told_of_before_it_lost_all),
        cmocka_unit_test(shards_whose_data_etcd_has_told_of_are_not_begun_before_one_of_them_is_there),
        cmocka_unit_test(fences_are_above_that_of_a_store_without_models_too),
        cmocka_unit_test(a_cluster_without_models_is_begun_by_whoever_comes),
        cmocka_unit_test(a_store_without_models_that_only_held_a_place_is_no_newer_than_the_data),
        cmocka_unit_test(newer_data_than_those_that_are_served_are_told),
        cmocka_unit_test(who_gets_its_own_place_soon_takes_no_other_at_once),
        cmocka_unit_test(what_a_process_says_of_its_data_is_read_again),
        cmocka_unit_test(the_longest_value_has_room),
        cmocka_unit_test(processes_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
