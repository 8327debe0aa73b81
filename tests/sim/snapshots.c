/*
 * A shard's disk is put back to an older copy (a snapshot) while all processes, or its own, are down. Its checkpoint
 * files are in a directory of all shards, and stay, as does what etcd knows: fences, and how often it has started.
 * Either nothing is lost that was durable, or the model waits until the right disk is back. With a journal the copy may
 * lack steps, or votes on them: they may be lost, but no two states are mixed.
 */
#include "tests/sim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sim_snapshots {
    uint32_t shard;
    struct sim_store copy, right; /* without what stays: files, fences, boots */
};

/*
 * No act is on shard 0 alone, no checkpoint is durable of which no verdict or epoch says so, and nothing else is away
 * at the same time.
 */
bool sim_snapshots_fit(uint64_t seed)
{
    return !sim_has_operator(seed) && !sim_has(seed, SIM_FLOORS) && !sim_ends_in_order(seed) && !sim_loses_disks(seed);
}

void sim_snapshots_init(struct sim *sim)
{
    sim->snapshots_left = sim->shards > 1 ? 1 + (uint32_t)sim_more(sim, 3) : 0;
}

void sim_snapshots_close(struct sim *sim)
{
    if (sim->snapshot_taken)
        sim_journal_forget(&sim->snapshots->copy);
    if (sim->snapshot_until_ms != 0)
        sim_journal_forget(&sim->snapshots->right);
    free(sim->snapshots);
}

static void put(struct sim_store *store, const struct sim_store *other)
{
    struct sim_store before = *store;
    *store = *other;
    store->boots = before.boots;
    store->undo = before.undo;
    store->full_until_ms = before.full_until_ms;
    store->unreadable_until_ms = before.unreadable_until_ms;
    memcpy(store->fences, before.fences, sizeof store->fences);
    memcpy(store->files, before.files, sizeof store->files);
}

static void take(struct sim *sim)
{
    struct sim_snapshots *snapshots = sim->snapshots;
    uint32_t k = (uint32_t)sim_more(sim, sim->shards);
    if (!sim->told || !sim->shard[k].store.has_model)
        return;
    if (snapshots == NULL)
        sim->snapshots = snapshots = calloc(1, sizeof *snapshots);
    if (sim->snapshot_taken)
        sim_journal_forget(&snapshots->copy);
    snapshots->shard = k;
    snapshots->copy = sim->shard[k].store;
    sim_journal_copy(&snapshots->copy);
    sim->snapshot_taken = true;
}

/* Another shard knows of all that was durable, and the files that the copy names are those that it had then. */
static bool may_put(const struct sim *sim)
{
    const struct sim_snapshots *snapshots = sim->snapshots;
    const struct sim_store *copy = &snapshots->copy, *now = &sim->shard[snapshots->shard].store;
    bool known = false, same = sim->shard[SIM_ZOMBIE].core == NULL && now->has_model && !now->deleting;
    for (uint32_t k = 0; k < sim->shards; k++) {
        const struct sim_store *store = &sim->shard[k].store;
        bool decided = store->last_step > store->base_step;
        uint64_t durable = decided ? store->rows[store->last_step].durable_step : store->base_step;
        bool journals = sim->model.spec.durability == AMPD_DURABILITY_STEP;
        bool all = journals ? store->last_step == sim->model.decided : durable >= sim->durable_told;
        known = known || (k != snapshots->shard && store->epoch == sim->epochs_newest && all);
    }
    for (uint32_t i = 0; i < copy->checkpoints_count; i++) {
        const struct ampd_checkpoint_record *record = &copy->checkpoints[i];
        const struct sim_file *file = &now->files[record->step];
        same = same && file->used && !file->gone && !file->torn &&
               memcmp(file->manifest, record->manifest, sizeof record->manifest) == 0;
    }
    return known && same;
}

static void put_copy(struct sim *sim)
{
    static const uint64_t times[] = {3000, 30000, 100000};
    struct sim_snapshots *snapshots = sim->snapshots;
    struct sim_shard *shard = &sim->shard[snapshots->shard];
    if (!may_put(sim))
        return;
    bool all = sim_more(sim, 3) != 0;
    for (uint32_t k = 0; k < sim->shards; k++) {
        if ((all || k == snapshots->shard) && sim->shard[k].core != NULL)
            sim_server_kill(sim, &sim->shard[k]);
    }
    sim_disk_synced(&shard->store);
    snapshots->right = shard->store;
    put(&shard->store, &snapshots->copy);
    shard->seen_epoch = shard->store.epoch;
    shard->seen_step = shard->store.last_step;
    shard->seen_applied = 0;
    sim->snapshot_taken = false;
    sim->snapshots_left--;
    if (sim->model.spec.durability == AMPD_DURABILITY_STEP) { /* the copy lacks steps, or votes on them */
        sim->durable_told = 0;
        sim->lost_epoch = sim->epochs_newest;
    }
    sim->snapshot_until_ms = sim->now_ms + times[sim_more(sim, 3)];
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu shard %u: its disk is that of step %llu of epoch %llu\n",
                      (unsigned long long)sim->now_ms, shard->index, (unsigned long long)shard->store.last_step,
                      (unsigned long long)shard->store.epoch);
}

void sim_snapshots_fault(struct sim *sim)
{
    if (sim->snapshots_left == 0 || sim->snapshot_until_ms != 0)
        return;
    if (sim_more(sim, 60) == 0)
        take(sim);
    if (sim->snapshot_taken && sim_more(sim, 60) == 0)
        put_copy(sim);
}

/* The model has gone on from the copy: it has lost nothing that matters, and the right disk is of no use any more. */
void sim_snapshots_stored(struct sim *sim, const struct sim_shard *shard)
{
    if (sim->snapshot_until_ms == 0 || shard != &sim->shard[sim->snapshots->shard])
        return;
    sim->snapshot_until_ms = 0;
    sim_journal_forget(&sim->snapshots->right);
}

bool sim_snapshots_away(const struct sim *sim, const struct sim_store *store)
{
    return sim->snapshot_until_ms != 0 && store == &sim->shard[sim->snapshots->shard].store;
}

void sim_snapshots_run(struct sim *sim)
{
    if (sim->snapshot_until_ms == 0 || sim->snapshot_until_ms > sim->now_ms)
        return;
    struct sim_shard *shard = &sim->shard[sim->snapshots->shard];
    sim->snapshot_until_ms = 0;
    if (shard->core != NULL)
        sim_server_kill(sim, shard);
    sim_disk_synced(&shard->store);
    sim_journal_forget(&shard->store);
    put(&shard->store, &sim->snapshots->right);
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu shard %u: its own disk is back\n", (unsigned long long)sim->now_ms, shard->index);
}
