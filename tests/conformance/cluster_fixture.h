/* Some processes of a cluster as objects on one loop, and what each was told. Test only. */
#ifndef TESTS_CONFORMANCE_CLUSTER_FIXTURE_H
#define TESTS_CONFORMANCE_CLUSTER_FIXTURE_H

#include "server/io/cluster/cluster.h"
#include "tests/conformance/etcd_process.h"

#include <uv.h>

#define SHARDS    3
#define PARTS_MAX 8

/* Of who is to keep it: a machine that is busy for a while costs nobody a place. */
#define LONG_LEASE_MS 6000

/* Of who is to lose it: short, so that its end comes soon, and above the 2 s that etcd grants at least. */
#define LEASE_MS 3000

struct cluster_fixture;

/* One process. */
struct part {
    struct cluster_fixture *fixture;
    struct io_cluster *cluster;
    char address[IO_CLUSTER_ADDRESS_MAX];
    int taken, waiting, lost, moved, left, raised, fenced, noted;
    uint32_t shard;
    uint64_t fence;
    int64_t lost_ms; /* uv_now */
    struct amp_error why_waiting, why_lost;
    uint64_t epoch; /* raised last */
    int64_t lease;
    bool closed;
};

struct cluster_fixture {
    uv_loop_t loop;
    uv_timer_t guard, beat;
    bool hangs; /* the guard has fired */
    struct amp_log log;
    struct io_cluster_url url;
    int64_t lease_ms;          /* of parts that are made from here on: LONG_LEASE_MS, unless a test sets it */
    struct etcd_process *etcd; /* one for all tests of a program; each has a cluster of its own in it */
    struct part parts[PARTS_MAX];
};

/* What a part is made with, besides its number. */
struct part_options {
    uint32_t shard; /* or IO_CLUSTER_ANY */
    uint32_t shards;
    uint64_t local, models;
    uint64_t served; /* by the data of each shard that is local */
    uint64_t floor;  /* a fence of each shard of which they know */
    int64_t lease_before;
};

/* Sets *state to a new struct cluster_fixture, which cluster_teardown frees. */
int cluster_setup(void **state);
int cluster_teardown(void **state);

/* At the end of the program. */
void cluster_end(void);

/* Makes part `index`, which begins to take its place; and waits until it has it. */
void cluster_open(struct cluster_fixture *fixture, uint32_t index, const struct part_options *options);
void cluster_join(struct cluster_fixture *fixture, uint32_t index, uint32_t shard);

/* Ends a part: without giving its place back, as kill -9 does; or with. */
void cluster_kill(struct cluster_fixture *fixture, uint32_t index);
void cluster_leave(struct cluster_fixture *fixture, uint32_t index);

/* One turn of the loop; of a test that has waited too long it is the end. */
void cluster_turn(struct cluster_fixture *fixture);

/* Runs the loop until the number is at least `least`; or for a time. */
void cluster_until(struct cluster_fixture *fixture, const int *number, int least);
void cluster_run_ms(struct cluster_fixture *fixture, int64_t ms);

/* Raises the epoch of a model and waits for it. */
uint64_t cluster_raise(struct cluster_fixture *fixture, uint32_t index, const char *model, uint64_t epoch);

/* Notes that part `index` serves as the shard that it is, and waits for it. */
void cluster_serve(struct cluster_fixture *fixture, uint32_t index);

/* Runs until `index` knows that part `of` holds the place of `shard`; or that nobody does (IO_CLUSTER_ANY). */
void cluster_until_held(struct cluster_fixture *fixture, uint32_t index, uint32_t shard, uint32_t of);

#endif
