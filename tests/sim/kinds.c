/*
 * Faults that a second generator draws. Each kind can be left out, so that one that fails can be told from the others; what the first
 * generator draws of a seed is then what it was before there was any of them.
 */
#include "server/core/base/model.h"
#include "server/core/coordinator/coord.h"
#include "server/core/base/process.h"
#include "server/core/shard/shard.h"
#include "tests/sim/sim.h"

#include <stdio.h>
#include <string.h>

#define KIND_NAME(name, text) text,

static const char *const names[SIM_KINDS_COUNT] = {SIM_KINDS(KIND_NAME)};
static uint64_t left_out; /* bits */

#define KIND_BIT(kind) ((uint64_t)1 << (kind))

bool sim_without(const char *name)
{
    uint64_t bits = strcmp(name, "all") == 0 ? UINT64_MAX : 0;
    for (uint32_t i = 0; i < SIM_KINDS_COUNT; i++)
        bits |= strcmp(name, names[i]) == 0 ? KIND_BIT(i) : 0;
    left_out |= bits;
    return bits != 0;
}

/* A third of the seeds has each kind, whichever others it has; none needs a disk that is lost at the same time. */
bool sim_has(uint64_t seed, enum sim_kind kind)
{
    struct amp_random random;
    amp_random_init(&random, seed * 0x9e3779b97f4a7c15u + kind + 0x6b696e64);
    bool apart = (kind == SIM_AWAY || kind == SIM_MEMORY) && sim_loses_disks(seed);
    apart = apart || (kind == SIM_SNAPSHOTS && !sim_snapshots_fit(seed));
    bool drawn = kind == SIM_ROWS || (amp_random_below(&random, 3) == 0 && !apart);
    return drawn && (left_out & KIND_BIT(kind)) == 0;
}

uint64_t sim_more(struct sim *sim, uint64_t bound)
{
    return amp_random_below(&sim->more, bound);
}

static bool has(const struct sim *sim, enum sim_kind kind)
{
    return (sim->kinds & KIND_BIT(kind)) != 0;
}

/* Before the first shard starts. */
void sim_kinds_init(struct sim *sim, bool disturbed)
{
    amp_random_init(&sim->more, sim->seed ^ 0x6d6f7265);
    for (uint32_t i = 0; i < SIM_KINDS_COUNT; i++)
        sim->kinds |= sim_has(sim->seed, (enum sim_kind)i) ? KIND_BIT(i) : 0;
    if (has(sim, SIM_LOADS))
        sim->early_pulls = 8;
    if (has(sim, SIM_ASKS))
        sim->asks = 100;
    if (has(sim, SIM_LEAVES) && sim_has_operator(sim->seed))
        sim->operator.left += 3;
    if (!disturbed)
        return;
    sim->leaves = has(sim, SIM_LEAVES) ? 1 + (uint32_t)sim_more(sim, 6) : 0;
    uint32_t shards = sim->shards;
    bool headers = has(sim, SIM_WEIGHTS) || has(sim, SIM_RATES);
    sim->unlike = headers && shards > 1 ? (uint32_t)sim_more(sim, 3) : 0;
    const struct ampd_model_spec *spec = &sim->model.spec;
    bool all = spec->world_size > 1 && spec->sync == AMPD_SYNC_ALL && spec->on_loss == AMPD_ON_LOSS_WAIT;
    sim->wrong = has(sim, SIM_RATES) && all ? (uint32_t)sim_more(sim, 3) : 0; /* others are right, so it cannot count */
    sim->load_breaks = has(sim, SIM_LOADS) ? (uint32_t)sim_more(sim, 4) : 0;
    sim->aways = has(sim, SIM_AWAY) ? 1 + (uint32_t)sim_more(sim, 2) : 0;
    sim->read_faults = has(sim, SIM_READS) ? 1 + (uint32_t)sim_more(sim, 3) : 0;
    sim->read_cuts = has(sim, SIM_READS) ? 6 : 0;
    sim->starts = has(sim, SIM_STARTS) ? 1 + (uint32_t)sim_more(sim, 2) : 0;
    sim->moments = has(sim, SIM_STARTS) && shards > 1 ? (uint32_t)sim_more(sim, 5) : 0;
    sim->silent = has(sim, SIM_SILENCE) && sim_model_shrinks(sim->seed) ? 1 + (uint32_t)sim_more(sim, 2) : 0;
    if (has(sim, SIM_SNAPSHOTS) && !has(sim, SIM_AWAY))
        sim_snapshots_init(sim);
    static const uint64_t times[] = {2000, 30000, 400000};
    if (!has(sim, SIM_MEMORY))
        return;
    sim->limited = KIND_BIT(sim_more(sim, shards));
    sim->more_memory_ms = sim->now_ms + (sim_ends_deleted(sim->seed) ? 3000000 : times[sim_more(sim, 3)]);
}

/* ---- memory ---- */

uint64_t sim_memory_max(const struct sim *sim, const struct sim_shard *shard)
{
    return (sim->limited & KIND_BIT(shard->index)) != 0 ? 1 : 0;
}

bool sim_is_limited(const struct sim *sim)
{
    return sim->limited != 0;
}

#define RESTORE_AGAIN_MS 6000 /* by then it has read again */
#define MAKING_MS        120000 /* that takes longer than any of its messages, and than any of the times that the core waits */

/* Whether the model could be made on all shards, or be taken back, without any wait. */
static bool can_make(const struct sim *sim)
{
    bool can = sim->shard[0].core != NULL && !sim_disk_is_full(sim, &sim->shard[0]);
    for (uint32_t k = 1; k < sim->shards; k++) {
        const struct sim_shard *shard = &sim->shard[k];
        can = can && shard->up && shard->peer == 0 && !sim_disk_is_full(sim, shard) && sim_net_session_up(sim, k) &&
              sim_net_session_down(sim, k);
    }
    return can;
}

/* A model that a shard has no memory for does not stay half made. */
static void check_making(struct sim *sim)
{
    const struct sim_shard *zero = &sim->shard[0];
    bool makes = sim_server_knows(zero) && zero->core->models[0]->coord->state == AMPD_COORD_CREATING;
    if (!makes || !can_make(sim))
        sim->creating_ms = sim->now_ms;
    if (sim->now_ms - sim->creating_ms > MAKING_MS)
        sim_fail(sim, SIM_PROGRESS, "the model has been neither made nor taken back since %llu ms",
                 (unsigned long long)sim->creating_ms);
}

/* Whoever runs these processes starts them again. */
static void start_anew(struct sim *sim, uint64_t shards)
{
    for (uint32_t k = 0; k < sim->shards; k++) {
        if ((shards & KIND_BIT(k)) != 0 && sim->shard[k].core != NULL)
            sim_server_kill(sim, &sim->shard[k]);
    }
}

/* ---- files that are away ---- */

static uint64_t oldest_held(const struct sim *sim)
{
    const struct sim_store *store = &sim->shard[0].store;
    return store->checkpoints_count == 0 ? 0 : store->checkpoints[0].step;
}

/*
 * All files of one shard or of all, or those above the oldest checkpoint, as of an older directory. The model waits for them.
 */
static void take_away(struct sim *sim)
{
    static const uint64_t times[] = {1000, 20000, 100000};
    uint64_t one = sim_more(sim, sim->shards);
    bool all_shards = sim_more(sim, 2) == 0, all_files = sim_more(sim, 4) != 0 || sim_has_one_result(sim->seed);
    sim->aways--;
    sim->away = all_shards ? (KIND_BIT(sim->shards) - 1) : KIND_BIT(one);
    sim->away_until_ms = sim->now_ms + times[sim_more(sim, 3)];
    uint64_t oldest = oldest_held(sim);
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu files of shards %llx are away, %s, until %llu\n", (unsigned long long)sim->now_ms,
                      (unsigned long long)sim->away, all_files ? "all" : "the newer ones",
                      (unsigned long long)sim->away_until_ms);
    start_anew(sim, sim->away);
    for (uint32_t k = 0; k < sim->shards; k++) {
        for (uint64_t s = 0; s <= SIM_STEPS_MAX && (sim->away & KIND_BIT(k)) != 0; s++)
            sim->shard[k].store.files[s].away = sim->shard[k].store.files[s].used && (all_files || s > oldest);
    }
}

static void bring_back(struct sim *sim)
{
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu files of shards %llx are back\n", (unsigned long long)sim->now_ms,
                      (unsigned long long)sim->away);
    for (uint32_t k = 0; k < sim->shards; k++) {
        for (uint64_t s = 0; s <= SIM_STEPS_MAX; s++)
            sim->shard[k].store.files[s].away = false;
    }
    start_anew(sim, sim->away);
    sim->away = 0;
}

/* ---- the others ---- */

static void break_load(struct sim *sim)
{
    for (unsigned i = 0; i < SIM_CALLS_MAX; i++) {
        struct sim_call *call = &sim->calls[i];
        if (!call->used || call->kind != SIM_LOAD || call->lost || call->client_gone || sim_more(sim, 3) == 0)
            continue;
        sim->load_breaks--;
        sim_call_lose(sim, call);
        return;
    }
}

static bool is_loading(const struct sim *sim)
{
    bool loads = false;
    for (unsigned i = 0; i < SIM_CALLS_MAX; i++)
        loads = loads || (sim->calls[i].used && sim->calls[i].kind == SIM_LOAD);
    return loads;
}

static void pull_early(struct sim *sim)
{
    if (!is_loading(sim))
        return;
    sim->early_pulls--;
    sim->observers++;
    sim_observe(sim);
}

static void fail_reads(struct sim *sim)
{
    static const uint64_t times[] = {3000, 20000, 60000};
    struct sim_shard *shard = &sim->shard[sim_more(sim, sim->shards)];
    sim->read_faults--;
    shard->store.unreadable_until_ms = sim->now_ms + times[sim_more(sim, 3)];
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu shard %u cannot read until %llu\n", (unsigned long long)sim->now_ms, shard->index,
                      (unsigned long long)shard->store.unreadable_until_ms);
    if (sim_more(sim, 3) != 0)
        start_anew(sim, KIND_BIT(shard->index));
}

/* The session breaks while a shard cannot read, or when it has just begun to again. */
static void cut_who_cannot_read(struct sim *sim)
{
    struct sim_shard *shard = &sim->shard[sim_more(sim, sim->shards)];
    if (!shard->up || shard->store.unreadable_until_ms == 0 ||
        shard->store.unreadable_until_ms + RESTORE_AGAIN_MS < sim->now_ms)
        return;
    sim->read_cuts--;
    sim_session_cut(sim, shard);
    if (sim_more(sim, 2) == 0) /* and none begins before it has read again */
        sim->peers[shard->index].up_until_ms = shard->store.unreadable_until_ms + RESTORE_AGAIN_MS;
}

/* One that was replaced may be among those that go on meanwhile; a place may be taken by a process with another disk. */
static void start_all(struct sim *sim)
{
    static const uint64_t times[] = {1, 100, 2000, 30000, 700000};
    sim->starts--;
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu all processes die\n", (unsigned long long)sim->now_ms);
    start_anew(sim, KIND_BIT(sim->shards) - 1);
    if (sim->disks > 0 && sim_more(sim, 2) == 0)
        (void)sim_disk_lose(sim, &sim->shard[sim_more(sim, sim->shards)]);
    for (uint32_t k = 0; k < sim->shards; k++)
        sim->shard[k].restart_ms = sim->now_ms + 1 + sim_more(sim, times[sim_more(sim, 5)]);
}

/* An epoch begins, or another shard ends a part of a checkpoint: SYNC comes in between. */
static bool is_a_moment(const struct sim *sim, const struct sim_shard *shard)
{
    const struct sim_shard *zero = &sim->shard[0];
    if (sim_server_knows(zero)) {
        enum ampd_coord_state state = zero->core->models[0]->coord->state;
        if (state == AMPD_COORD_RESTORING || state == AMPD_COORD_STORING)
            return true;
    }
    bool stores = false;
    for (uint32_t k = 0; k < sim->shards; k++) {
        const struct sim_shard *other = &sim->shard[k];
        stores = stores || (other != shard && sim_server_knows(other) &&
                            other->core->models[0]->shard->part.state == AMPD_PART_STORING);
    }
    return stores;
}

static void kill_at_a_moment(struct sim *sim)
{
    struct sim_shard *shard = &sim->shard[sim_more(sim, sim->shards)];
    if (shard->core == NULL || !is_a_moment(sim, shard))
        return;
    sim->moments--;
    sim_server_kill(sim, shard);
}

void sim_kinds_fault(struct sim *sim)
{
    if (sim->read_cuts > 0 && sim_more(sim, 40) == 0)
        cut_who_cannot_read(sim);
    if (sim->moments > 0 && sim_more(sim, 20) == 0)
        kill_at_a_moment(sim);
    if (sim->limited != 0)
        check_making(sim);
    if (sim->load_breaks > 0 && sim_more(sim, 15) == 0)
        break_load(sim);
    if (sim->early_pulls > 0 && sim_more(sim, 15) == 0)
        pull_early(sim);
    if (sim->asks > 0 && sim_more(sim, 12) == 0)
        sim_asks_act(sim);
    bool goes_on = sim->loaded && sim->end < SIM_DELETING;
    if (sim->aways > 0 && sim->away == 0 && goes_on && sim_more(sim, 400) == 0)
        take_away(sim);
    if (sim->read_faults > 0 && sim_more(sim, 400) == 0)
        fail_reads(sim);
    if (sim->starts > 0 && sim_more(sim, 500) == 0)
        start_all(sim);
    sim_snapshots_fault(sim);
}

uint64_t sim_kinds_next(const struct sim *sim)
{
    uint64_t away = sim->away != 0 ? sim->away_until_ms : UINT64_MAX;
    uint64_t limited = sim->limited != 0 ? sim->more_memory_ms : UINT64_MAX;
    uint64_t copy = sim->snapshot_until_ms != 0 ? sim->snapshot_until_ms : UINT64_MAX;
    uint64_t next = away < limited ? away : limited;
    return copy < next ? copy : next;
}

void sim_kinds_run(struct sim *sim)
{
    if (sim->away != 0 && sim->away_until_ms <= sim->now_ms)
        bring_back(sim);
    if (sim->limited != 0 && sim->more_memory_ms <= sim->now_ms) {
        uint64_t limited = sim->limited;
        sim->limited = 0;
        start_anew(sim, limited);
    }
    sim_snapshots_run(sim);
}
