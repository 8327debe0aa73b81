/*
 * Workers on the servers' host, which read a version where the servers write it: what a worker computes on must not
 * change before its push counts.
 *
 * A cast copy is there as long as a process or a worker has it mapped, also when the process is gone. What a worker has
 * mapped of all shards is put together whenever the worker looks.
 */
#include "base/crc32c.h"
#include "client/core/client_memory.h"
#include "client/core/machine.h"
#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "tests/sim/sim.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 64

struct copy {
    uint32_t users;
    size_t size;
    _Alignas(ALIGN) uint8_t data[];
};

/* What a worker has mapped. */
struct sim_map {
    bool on;                                /* its calls of AttachMemory are open */
    struct ampd_incarnation incarnation;    /* of the worker when it attached */
    struct copy *copies[SIM_SHARDS_MAX][2]; /* of even and of odd versions */
    uint8_t *views[2];                      /* the copies of all shards as one flat space, by parity of the version */
    uint32_t begun;                         /* a CRC32C of the version in hand when the step began */
    bool changed;                           /* what was read was not the version in hand, or not all the time */
};

/* ---- copies ---- */

static struct copy *copy_of(const void *memory)
{
    return (struct copy *)((uintptr_t)memory - offsetof(struct copy, data));
}

static void *new_copy(void *arg, size_t size, void *before)
{
    (void)arg;
    if (before != NULL && copy_of(before)->users == 1)
        return before; /* no worker has it mapped */
    struct copy *copy = aligned_alloc(ALIGN, (sizeof *copy + size + ALIGN - 1) / ALIGN * ALIGN);
    memset(copy, 0, sizeof *copy + size);
    copy->users = 1;
    copy->size = size;
    return copy->data;
}

static void let_go(struct copy *copy)
{
    if (copy != NULL && --copy->users == 0)
        free(copy);
}

static void free_copy(void *arg, void *memory, size_t size)
{
    (void)arg;
    (void)size;
    let_go(copy_of(memory));
}

const struct ampd_copy_memory sim_copy_memory = {new_copy, free_copy, NULL};

static const struct ampd_tensors *tensors_of(const struct sim_shard *shard)
{
    return sim_server_knows(shard) ? &shard->core->models[0]->tensors : NULL;
}

/* ---- maps ---- */

static struct ampd_incarnation incarnation_of(const struct sim_worker *worker)
{
    struct ampclient_incarnation incarnation = ampclient_core_incarnation(worker->core);
    return (struct ampd_incarnation){incarnation.fence, incarnation.counter};
}

void sim_map_free(struct sim_worker *worker)
{
    struct sim_map *map = worker->map;
    worker->map = NULL;
    if (map == NULL)
        return;
    for (unsigned c = 0; c < 2; c++) {
        for (uint32_t k = 0; k < SIM_SHARDS_MAX; k++)
            let_go(map->copies[k][c]);
        free(map->views[c]);
    }
    free(map);
}

/* Whether all shards would give memory to this worker now. */
static bool can_attach(const struct sim *sim, uint32_t w)
{
    const struct sim_worker *worker = &sim->workers[w];
    struct amp_error error;
    bool can = ampclient_core_state(worker->core) == AMPCLIENT_STATE_READY && incarnation_of(worker).counter != 0;
    for (uint32_t k = 0; k < sim->shards && can; k++)
        can = tensors_of(&sim->shard[k]) != NULL && sim->links[w][k].up_until_ms <= sim->now_ms &&
              sim->links[w][k].down_until_ms <= sim->now_ms &&
              !ampd_core_refuse(sim->shard[k].core, 0, w, incarnation_of(worker), &error);
    return can;
}

static void attach(struct sim *sim, struct sim_worker *worker)
{
    struct sim_map *map = calloc(1, sizeof *map);
    *map = (struct sim_map){.on = true, .incarnation = incarnation_of(worker)};
    for (unsigned c = 0; c < 2; c++) {
        for (uint32_t k = 0; k < sim->shards; k++) {
            map->copies[k][c] = copy_of(tensors_of(&sim->shard[k])->copies[c]);
            map->copies[k][c]->users++;
        }
        map->views[c] = calloc(sim->model.layout->elements, sizeof(float));
    }
    worker->map = map;
}

/* Before a step begins: as ampclient_attach does it. */
void sim_map_begin(struct sim *sim, uint32_t w)
{
    struct sim_worker *worker = &sim->workers[w];
    if (!sim_has(sim->seed, SIM_SHARED) || (worker->map != NULL && worker->map->on))
        return;
    sim_map_free(worker);
    ampclient_core_set_in_memory(worker->core, false, false);
    if (!can_attach(sim, w) || sim_more(sim, 8) == 0)
        return;
    attach(sim, worker);
    ampclient_core_set_in_memory(worker->core, true, sim->model.spec.sync == AMPD_SYNC_ALL);
}

void sim_map_lost(struct sim_worker *worker)
{
    if (worker->map == NULL || !worker->map->on)
        return;
    worker->map->on = false;
    ampclient_core_leave_memory(worker->core);
}

static bool is_of(const struct sim_map *map, const struct sim_shard *shard)
{
    const struct ampd_tensors *tensors = tensors_of(shard);
    return map != NULL && map->on && tensors != NULL && map->copies[shard->index][0] == copy_of(tensors->copies[0]);
}

void sim_map_process_ends(struct sim *sim, const struct sim_shard *shard)
{
    for (uint32_t w = 0; w < sim->model.spec.world_size; w++) {
        if (is_of(sim->workers[w].map, shard))
            sim_map_lost(&sim->workers[w]);
    }
}

bool sim_map_serves(struct sim *sim, const struct sim_call *call, struct ampd_incarnation incarnation)
{
    const struct sim_worker *worker = &sim->workers[call->worker];
    return call->life == worker->life && is_of(worker->map, sim_process(sim, call)) &&
           ampd_incarnation_same(worker->map->incarnation, incarnation);
}

/* ---- what a worker sees ---- */

static void look(const struct sim *sim, struct sim_map *map, unsigned c)
{
    size_t size = amp_dtype_size(sim->model.spec.cast);
    for (uint32_t k = 0; k < sim->shards; k++) {
        const struct sim_shard *shard = &sim->shard[k];
        memcpy(map->views[c] + shard->element * size, map->copies[k][c]->data, shard->elements * size);
    }
}

const void *sim_map_place(const struct sim_worker *worker, uint64_t version)
{
    return worker->map != NULL && worker->map->on ? worker->map->views[version % 2] : NULL;
}

/* The view that holds the version in hand; NULL: it lies in memory of the worker's own. */
static const uint8_t *view_in_hand(const struct sim *sim, const struct sim_worker *worker)
{
    for (unsigned c = 0; worker->map != NULL && c < 2; c++) {
        if (worker->core->values != worker->map->views[c])
            continue;
        look(sim, worker->map, c);
        return worker->map->views[c];
    }
    return NULL;
}

static uint32_t crc_of(const struct sim *sim, const uint8_t *view)
{
    return amp_crc32c(0, view, sim->model.layout->elements * amp_dtype_size(sim->model.spec.cast));
}

bool sim_map_took(struct sim *sim, struct sim_worker *worker)
{
    const uint8_t *view = view_in_hand(sim, worker);
    if (view == NULL)
        return false;
    worker->map->begun = crc_of(sim, view);
    worker->map->changed = sim_pulled_differs(sim, worker);
    return true;
}

void sim_map_looks(struct sim *sim, struct sim_worker *worker)
{
    const uint8_t *view = view_in_hand(sim, worker);
    if (view != NULL)
        worker->map->changed = worker->map->changed || crc_of(sim, view) != worker->map->begun;
}

void sim_map_counted(const struct sim *sim, const struct sim_worker *worker)
{
    if (view_in_hand(sim, worker) != NULL && worker->map->changed)
        sim_fail(sim, SIM_BITWISE,
                 "the push of rank %u for step %llu counted, but version %llu changed while it was read", worker->rank,
                 (unsigned long long)worker->step, (unsigned long long)worker->version);
}
