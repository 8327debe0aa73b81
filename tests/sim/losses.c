/*
 * A disk that is lost: the store of one shard and its journal. Its checkpoint files are in a directory that the shards
 * share, and stay. A process with an empty disk begins with what the store of another one has (server/io/cluster/refill.c): fences, epochs,
 * rows, and of the catalogue what is known of its own parts and lies there (server/io/host/take_up.c). Numbers of epochs are kept
 * elsewhere (etcd): no store can know which of them were given out.
 */
#include "tests/sim/sim.h"
#include "server/core/shard/shard.h"

#include <stdio.h>
#include <string.h>

bool sim_loses_disks(uint64_t seed)
{
    return seed % 11 == 0;
}

void sim_raise_epoch(struct sim *sim, struct sim_shard *shard, const struct sim_task *task)
{
    uint64_t next = sim->raised + 1 + sim_below(sim, 2); /* another one's, which nobody has used */
    sim->raised = task->output.u.raise.epoch > next ? task->output.u.raise.epoch : next;
    struct ampd_event event = {.type = AMPD_EVENT_EPOCH_RAISED, .u.raised = {task->output.u.raise.token, sim->raised}};
    sim_server_event(sim, shard, &event);
}

/* ---- what must be there before ---- */

static bool holds(const struct sim *sim, const struct sim_store *store, const struct ampd_checkpoint_record *record)
{
    for (uint32_t i = 0; i < store->checkpoints_count; i++) {
        if (store->checkpoints[i].epoch == record->epoch && store->checkpoints[i].step == record->step)
            return true;
    }
    return store->lost || sim_snapshots_away(sim, store);
}

/* Whether who is filled from this store finds a checkpoint there that all others hold. */
static bool knows_enough(const struct sim *sim, const struct sim_store *store)
{
    bool enough = false;
    for (uint32_t i = 0; i < store->checkpoints_count; i++) {
        bool all = store->checkpoints[i].parts_count == sim->shards;
        for (uint32_t k = 0; k < sim->shards; k++)
            all = all && holds(sim, &sim->shard[k].store, &store->checkpoints[i]);
        enough = enough || all;
    }
    return enough;
}

void sim_disk_check(struct sim *sim)
{
    for (uint32_t k = 0; sim->shards > 1 && sim->told && sim->end < SIM_DELETING && k < sim->shards; k++) {
        const struct sim_store *store = &sim->shard[k].store;
        if (store->has_model && !sim_snapshots_away(sim, store) && !knows_enough(sim, store))
            sim_fail(sim, SIM_DURABLE, "shard %u knows the parts of no checkpoint that all others hold", k);
    }
}

/* ---- the loss ---- */

/* What an operator has set is on the disk of shard 0 alone until the next verdict: it may be lost with it. */
static bool may_lose(const struct sim *sim, const struct sim_shard *shard)
{
    for (uint32_t k = 0; k < sim->shards; k++) {
        if (sim->shard[k].store.lost)
            return false; /* one at a time */
    }
    return sim->told && sim->end < SIM_DELETING && sim->shard[SIM_ZOMBIE].core == NULL && shard->store.has_model &&
           (shard->index != 0 || !(sim_has_operator(sim->seed) || sim_has(sim->seed, SIM_FLOORS)));
}

bool sim_disk_lose(struct sim *sim, struct sim_shard *shard)
{
    struct sim_store *store = &shard->store;
    if (!may_lose(sim, shard))
        return false;
    sim_trace(sim, 907, shard->index);
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu shard %u: its disk is lost\n", (unsigned long long)sim->now_ms, shard->index);
    if (shard->core != NULL)
        sim_server_kill(sim, shard);
    sim_journal_forget(store);
    sim_disk_synced(store);
    store->lost = true;
    store->has_model = store->deleting = false;
    store->lost_base_step = store->base_step;
    store->lost_last_step = store->last_step;
    store->epoch = store->base_epoch = store->base_step = store->last_step = 0;
    store->checkpoints_count = store->acts_count = store->act_rows_count = 0;
    memset(store->has_worker, 0, sizeof(store->has_worker));
    memset(store->fences, 0, sizeof(store->fences));
    store->full_until_ms = 0;
    if (sim->model.spec.durability == AMPD_DURABILITY_STEP)
        sim->durable_told = 0, sim->lost_epoch = sim->epochs_newest; /* what is left is what checkpoints hold */
    return true;
}

/* ---- another disk ---- */

static void take_catalogue(struct sim *sim, struct sim_shard *shard, const struct sim_store *from)
{
    struct sim_store *store = &shard->store;
    for (uint32_t i = 0; i < from->checkpoints_count; i++) {
        struct ampd_checkpoint_record record = from->checkpoints[i];
        const struct sim_file *file = &store->files[record.step];
        bool known = record.parts_count == sim->shards && file->used && !file->gone && !file->torn;
        if (!known || memcmp(file->manifest, record.parts[shard->index], sizeof(file->manifest)) != 0)
            continue;
        memcpy(record.manifest, file->manifest, sizeof(record.manifest));
        store->checkpoints[store->checkpoints_count++] = record;
    }
    if (store->checkpoints_count == 0)
        sim_fail(sim, SIM_DURABLE, "shard %u has lost its disk, and no other one knows its parts", shard->index);
}

static void take(struct sim *sim, struct sim_shard *shard, const struct sim_store *from)
{
    struct sim_store *store = &shard->store;
    store->has_model = true;
    store->deleting = from->deleting;
    store->no_journal = true;
    store->epoch = from->epoch;
    store->base_epoch = from->base_epoch;
    store->base_step = from->base_step;
    store->last_step = from->last_step;
    memcpy(store->rows, from->rows, sizeof(store->rows));
    memcpy(store->acts, from->acts, sizeof(store->acts));
    memcpy(store->act_rows, from->act_rows, sizeof(store->act_rows));
    store->acts_count = from->acts_count;
    store->act_rows_count = from->act_rows_count;
    memcpy(store->fences, from->fences, sizeof(store->fences));
    store->fences[shard->index] = (struct ampd_fence){0};
    take_catalogue(sim, shard, from);
}

bool sim_disk_refill(struct sim *sim, struct sim_shard *shard)
{
    uint32_t start = (uint32_t)sim_below(sim, sim->shards);
    bool all = true; /* the others have answered */
    for (uint32_t i = 0; i < sim->shards; i++) {
        const struct sim_shard *other = &sim->shard[(start + i) % sim->shards];
        all = all && (other == shard || other->core != NULL);
        if (other == shard || other->core == NULL || !other->store.has_model)
            continue;
        take(sim, shard, &other->store);
        shard->store.lost = false;
        return true;
    }
    shard->store.lost = !all; /* there is no model any more */
    return all;
}
