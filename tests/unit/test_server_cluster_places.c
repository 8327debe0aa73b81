/*
 * Processes that start, end and lose their directories in any order, beside an etcd that ends leases late and may lose its data: who
 * takes which place is decided by server/io/cluster/cluster_fit.c, what else a process does is done here as cluster.c, membership.c and
 * refill.c do it. Whatever has happened, only the newest data are ever served, and when all processes are there again, they are, with no
 * more ends on the way than there are processes: those who lack something stand by, and do not take a place, find that out and end, again
 * and again.
 */
#include "base/random.h"
#include "server/io/cluster/cluster_impl.h"
#include "server/io/cluster/cluster_fit.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define SHARDS_MAX    3
#define PROCESSES_MAX (2 * SHARDS_MAX)
#define LEASE_MS      5000
#define SEEDS         500
#define ROUNDS        3    /* a seed */
#define STEPS         80   /* with faults, a round */
#define STEPS_TO_END  6000 /* without: far more than all of them need */

enum state { DOWN, WAITS, HOLDS, JOINS, KEEPS, NOTED, SERVES };

/* A shard's directory of a process. */
struct data {
    bool there, models;
    uint64_t served, known[SHARDS_MAX];
    uint64_t step; /* the last one that it has */
};

struct process {
    enum state state;
    struct data data[SHARDS_MAX];
    uint64_t lease;
    bool shown, told, doubt, bare, has_models;
    uint64_t last, fence, without;
    uint32_t shard;
    struct io_cluster view;
};

/* What is bound to a lease, which may be that of a process that is gone. */
struct lease {
    uint64_t id;
    bool waits, has_data;
    uint64_t served[SHARDS_MAX], known[SHARDS_MAX];
};

static struct {
    struct amp_random random;
    uint32_t shards, count;
    struct process processes[PROCESSES_MAX];
    struct lease leases[64];
    uint32_t lease_count;
    uint64_t revision, lease_id, base, last[SHARDS_MAX], models;
    uint64_t holder[SHARDS_MAX], fence[SHARDS_MAX]; /* by lease; 0: nobody */
    uint64_t step;                                  /* that all shards have stored */
    bool wiped; /* etcd has lost its data, and not all shards have served since */
    uint32_t ends;                                  /* of processes, since the last fault */
} sim;

static uint64_t below(uint64_t count)
{
    return amp_random_below(&sim.random, count);
}

/* ---- etcd ---- */

static struct lease *lease_of(uint64_t id)
{
    for (uint32_t i = 0; i < sim.lease_count; i++)
        if (sim.leases[i].id == id)
            return &sim.leases[i];
    return NULL;
}

static void end_lease(uint64_t id)
{
    struct lease *lease = lease_of(id);
    if (lease == NULL)
        return;
    *lease = sim.leases[--sim.lease_count];
    for (uint32_t k = 0; k < sim.shards; k++)
        if (sim.holder[k] == id)
            sim.holder[k] = sim.fence[k] = 0;
    sim.revision++;
}

static bool is_live(uint64_t lease)
{
    for (uint32_t i = 0; i < sim.count; i++)
        if (sim.processes[i].state != DOWN && sim.processes[i].lease == lease)
            return true;
    return false;
}

/* Of a process that is gone; none is after LEASE_MS. */
static bool any_lease_is_left(void)
{
    for (uint32_t i = 0; i < sim.lease_count; i++)
        if (!is_live(sim.leases[i].id))
            return true;
    return false;
}

/* What a process reads of it; else its view is of before. */
static void look(struct process *process)
{
    struct io_cluster *view = &process->view;
    view->processes = 0;
    view->models = sim.models;
    view->showing = (int64_t)process->lease;
    view->revision = (int64_t)sim.revision;
    for (uint32_t k = 0; k < sim.shards; k++) {
        view->places[k] = (struct cluster_place){.held = sim.holder[k] != 0, .fence = sim.fence[k]};
        view->last[k] = sim.last[k];
        view->seen[k] = sim.last[k] > view->seen[k] ? sim.last[k] : view->seen[k];
    }
    for (uint32_t i = 0; i < sim.lease_count; i++) {
        const struct lease *lease = &sim.leases[i];
        struct cluster_process *there = &view->process[view->processes];
        view->processes += lease->waits || lease->has_data;
        (void)snprintf(there->id, sizeof there->id, "%" PRIx64, lease->id);
        there->waits = lease->waits;
        memcpy(there->served, lease->served, sizeof lease->served);
        memcpy(there->known, lease->known, sizeof lease->known);
    }
}

/* ---- a process ---- */

static void grant(struct process *process)
{
    assert_true(sim.lease_count < sizeof sim.leases / sizeof *sim.leases);
    process->lease = ++sim.lease_id;
    process->state = WAITS;
    process->shown = process->told = process->doubt = process->bare = false;
    process->without = 0;
    sim.leases[sim.lease_count++] = (struct lease){.id = process->lease};
}

static void start(struct process *process)
{
    struct io_cluster_options *options = &process->view.options;
    memset(process->view.seen, 0, sizeof process->view.seen);
    *options = (struct io_cluster_options){.shards = sim.shards, .shard = IO_CLUSTER_ANY, .lease_ms = LEASE_MS};
    process->has_models = false;
    for (uint32_t k = 0; k < sim.shards; k++) {
        const struct data *data = &process->data[k];
        if (!data->there)
            continue;
        options->local |= (uint64_t)1 << k;
        options->models |= (uint64_t)data->models << k;
        options->served[k] = data->served;
        process->has_models = process->has_models || data->models;
        for (uint32_t j = 0; j < sim.shards; j++)
            if (data->known[j] > options->known[j] && (j != k || data->models))
                options->known[j] = data->known[j];
    }
    grant(process);
    look(process);
}

/* Its lease ends at once, or later (LEASE is that of another boot). */
static void end(struct process *process, bool gives_back)
{
    process->state = DOWN;
    sim.ends++;
    if (gives_back)
        end_lease(process->lease);
}

static void start_over(struct process *process)
{
    end_lease(process->lease);
    grant(process);
}

static void show(struct process *process)
{
    const struct io_cluster_options *options = &process->view.options;
    struct lease *lease = lease_of(process->lease);
    lease->waits = process->shown = true;
    for (uint32_t k = 0; k < sim.shards; k++) {
        if (options->known[k] == 0)
            continue;
        lease->has_data = true;
        lease->served[k] = cluster_served(&process->view, k);
        lease->known[k] = options->known[k] > lease->served[k] ? options->known[k] : lease->served[k];
    }
}

static void claim(struct process *process, uint32_t shard)
{
    uint64_t floor = cluster_floor(&process->view);
    if (sim.holder[shard] != 0)
        return;
    lease_of(process->lease)->waits = false;
    sim.base = sim.base + (uint64_t)process->view.revision >= floor ? sim.base : floor;
    process->shard = shard;
    process->fence = sim.fence[shard] = sim.base + ++sim.revision;
    process->last = sim.last[shard];
    sim.holder[shard] = process->lease;
    process->view.seen[shard] = process->last > process->view.seen[shard] ? process->last : process->view.seen[shard];
    process->state = HOLDS;
}

/* As cluster.c's report_taken, and membership.c's doubt. */
static void take(struct process *process)
{
    uint64_t newest = cluster_newest(&process->view, process->shard);
    struct data *data = &process->data[process->shard];
    bool all_held = true;
    bool lacks = cluster_lacks(&process->view, process->shard);
    if (lacks && !cluster_can_be_filled(&process->view, process->shard)) {
        start_over(process);
        return;
    }
    for (uint32_t k = 0; k < sim.shards; k++)
        all_held = all_held && process->view.places[k].held;
    if (process->last == 0 && newest != 0 && !all_held)
        return;
    if (cluster_floor(&process->view) >= process->fence) {
        start_over(process);
        return;
    }
    process->last = newest > process->last ? newest : process->last;
    assert_true(data->served < process->fence);
    data->there = process->told = true;
    process->doubt = data->served < process->last && data->models;
    process->bare = data->served < process->last && !data->models && (lacks || process->view.models != 0);
    assert_true(sim.shards > 1 || !(process->doubt || process->bare));
    process->state = sim.shards > 1 && (process->doubt || !data->models) ? JOINS : KEEPS;
}

/* Asks another shard: its process, if there is one that answers. */
static void join(struct process *process)
{
    struct data *data = &process->data[process->shard];
    uint32_t shard = (uint32_t)below(sim.shards);
    struct process *source = NULL;
    for (uint32_t i = 0; i < sim.count; i++)
        if (sim.processes[i].state >= JOINS && sim.processes[i].shard == shard)
            source = &sim.processes[i];
    if (shard == process->shard || source == NULL || source->doubt || source->state == KEEPS || source->state == NOTED) {
        if ((process->doubt || process->bare) && below(50) == 0) /* nobody has answered for a minute */
            end(process, true);
        return;
    }
    const struct data *theirs = &source->data[shard];
    if (theirs->models || (process->doubt && source->state == SERVES)) {
        if (!process->doubt || theirs->step > data->step) {
            data->models = theirs->models;
            data->step = theirs->step;
            memcpy(data->known, theirs->known, sizeof data->known);
            data->served = data->known[process->shard];
        }
        process->state = KEEPS;
        return;
    }
    process->without |= (uint64_t)1 << shard | (uint64_t)1 << process->shard;
    if (process->without != ((uint64_t)1 << sim.shards) - 1)
        return;
    if (source->state != SERVES && (process->doubt || process->bare || process->has_models))
        end(process, true);
    else
        process->state = KEEPS;
}

static void serve(struct process *process)
{
    struct data *data = &process->data[process->shard];
    if (process->state == KEEPS) {
        data->served = data->known[process->shard] = process->fence;
        process->state = NOTED;
        return;
    }
    assert_true(sim.holder[process->shard] == process->lease);
    sim.last[process->shard] = process->fence;
    sim.models = data->models ? sim.shards : sim.models;
    sim.revision++;
    process->state = SERVES;
    assert_int_equal(data->step, sim.step); /* nothing older is ever served */
}

/*
 * Whether the process may be started. Where etcd has lost its data, one whose data are older or none comes after those that have the newest:
 * it does not remember that there are newer ones, as those do that wait already. The newest may come as late as they like.
 */
static bool may_start(const struct process *process)
{
    bool all = true;
    for (uint32_t k = 0; sim.wiped && k < sim.shards; k++) {
        const struct process *newest = process;
        for (uint32_t i = 0; i < sim.count; i++)
            if (sim.processes[i].data[k].served > newest->data[k].served)
                newest = &sim.processes[i];
        if (newest == process)
            return true;
        const struct lease *lease = newest->state != DOWN ? lease_of(newest->lease) : NULL;
        all = all && lease != NULL && lease->has_data;
    }
    return all;
}

static void go_on(struct process *process)
{
    int64_t patience_ms;
    if (process->state == DOWN && !may_start(process))
        return;
    if (process->state != DOWN && lease_of(process->lease) == NULL) {
        if (process->state == WAITS) {
            grant(process);
            look(process);
        } else
            end(process, true);
        return;
    }
    if (process->state != DOWN && below(2) == 0) {
        look(process);
        if (process->state == HOLDS || process->state == JOINS) {
            const struct cluster_process *owner = cluster_owner(&process->view, process->shard);
            if (owner != NULL && !process->told)
                start_over(process);
            else if (owner != NULL)
                end(process, true);
            else if (process->state == HOLDS)
                take(process);
            return;
        }
    }
    if (process->state == DOWN) {
        start(process);
    } else if (process->state == WAITS && !process->shown) {
        show(process);
    } else if (process->state == WAITS) {
        uint32_t shard = cluster_candidate(&process->view, &patience_ms);
        if (shard != IO_CLUSTER_ANY && (patience_ms < LEASE_MS || !any_lease_is_left()))
            claim(process, shard);
    } else if (process->state == JOINS) {
        join(process);
    } else if (process->state == KEEPS || process->state == NOTED) {
        serve(process);
    }
}

/* ---- all of them ---- */

static struct process *server_of(uint32_t shard)
{
    for (uint32_t i = 0; i < sim.count; i++)
        if (sim.processes[i].state == SERVES && sim.holder[shard] == sim.processes[i].lease)
            return &sim.processes[i];
    return NULL;
}

static bool all_serve(void)
{
    for (uint32_t k = 0; k < sim.shards; k++)
        if (server_of(k) == NULL)
            return false;
    return true;
}

/* The shards meet, and store a step. */
static void train(void)
{
    if (!all_serve())
        return;
    sim.step++;
    sim.models = sim.shards;
    for (uint32_t k = 0; k < sim.shards; k++) {
        struct data *data = &server_of(k)->data[k];
        data->step = sim.step;
        data->models = true;
        for (uint32_t j = 0; j < sim.shards; j++)
            data->known[j] = server_of(j)->fence;
    }
}

/* A lease of a process that is gone, or of any, as an etcd that changes its leader may. */
static void lose_lease(bool any)
{
    uint64_t id = sim.lease_count > 0 ? sim.leases[below(sim.lease_count)].id : 0;
    if (id != 0 && (any || !is_live(id)))
        end_lease(id);
}

/* A directory that is not needed: what its shards were last is served now. */
static void lose_directory(void)
{
    struct process *process = &sim.processes[below(sim.count)];
    if (process->state != DOWN || !all_serve())
        return;
    memset(process->data, 0, sizeof process->data);
}

/* etcd's data. The processes that wait have read them before, and every fence in a store is noted in them. */
static void lose_etcd(void)
{
    if (sim.models == 0 || sim.step == 0)
        return;
    for (uint32_t i = 0; i < sim.count; i++)
        for (uint32_t k = 0; k < sim.shards; k++)
            if (sim.processes[i].data[k].served > sim.last[k])
                return;
    for (uint32_t i = 0; i < sim.count; i++)
        if (sim.processes[i].state != DOWN)
            look(&sim.processes[i]);
    sim.wiped = true;
    sim.lease_count = 0;
    sim.revision = sim.base = sim.models = 0;
    memset(sim.last, 0, sizeof sim.last);
    memset(sim.holder, 0, sizeof sim.holder);
    memset(sim.fence, 0, sizeof sim.fence);
}

static void disturb(void)
{
    struct process *process = &sim.processes[below(sim.count)];
    switch (below(24)) {
    case 0:
    case 1:
        if (process->state != DOWN)
            end(process, below(2) == 0);
        break;
    case 2:
        lose_lease(true);
        break;
    case 3:
        lose_directory();
        break;
    case 4:
        for (uint32_t i = 0; i < sim.count && below(3) == 0; i++) /* power */
            end(&sim.processes[i], false);
        break;
    case 5:
    case 6:
        train();
        break;
    case 7:
    case 8:
        lose_lease(false);
        break;
    default:
        go_on(process);
    }
}

static void begin(uint64_t seed)
{
    memset(&sim, 0, sizeof sim);
    amp_random_init(&sim.random, seed);
    sim.shards = 1 + (uint32_t)below(SHARDS_MAX);
    sim.count = sim.shards + (uint32_t)below(sim.shards + 1);
}

static void until_all_serve(uint64_t seed)
{
    sim.ends = 0;
    for (uint32_t steps = 0; !all_serve() && steps < STEPS_TO_END; steps++) {
        if (steps % 32 == 0)
            lose_lease(false);
        go_on(&sim.processes[below(sim.count)]);
    }
    uint32_t most = sim.count + (sim.wiped ? sim.shards : 0); /* where etcd has lost its data, all members end */
    sim.wiped = false;
    if (!all_serve())
        fail_msg("seed %" PRIu64 ": %" PRIu32 " shards, %" PRIu32 " processes: not all places are served", seed, sim.shards,
                 sim.count);
    if (sim.ends > most)
        fail_msg("seed %" PRIu64 ": %" PRIu32 " shards, %" PRIu32 " processes: %" PRIu32 " were ended on the way", seed, sim.shards,
                 sim.count, sim.ends);
}

static void run_seed(uint64_t seed)
{
    begin(seed);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        until_all_serve(seed);
        train();
        for (uint32_t i = 0; i < STEPS; i++)
            disturb();
        if (below(4) == 0)
            lose_etcd();
    }
    until_all_serve(seed);
}

static void whatever_has_happened_the_newest_data_are_served_in_the_end_and_never_older_ones(void **state)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        run_seed(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_has_happened_the_newest_data_are_served_in_the_end_and_never_older_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
