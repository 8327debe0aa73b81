/*
 * Ranks, and the workers that have lost them: whose calls are refused, and what the log and the status say about it.
 *
 * Two processes under one rank would take it from each other for ever if each of them joined again whenever it is
 * refused. So a call whose incarnation was replaced by another process's Join is answered RANK_TAKEN, with the name and
 * address of that process, and the caller stops. A call whose lease has ended, or whose own process has joined again,
 * is answered FENCED, and the caller joins again. A worker that an operator has evicted is answered RANK_TAKEN, too.
 * `instance` of a Join names its process; a Join without it counts as another process's. Instances are not stored.
 */
#include "server/core/base/ranks.h"

#include "base/assert.h"
#include "server/core/base/calls.h"
#include "server/core/base/local.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/base/worker.h"

#include <stdio.h>
#include <string.h>

/*
 * At most one line of the log for each rank in this time. What was left out is counted, and logged in one line after
 * it.
 */
#define LOG_AGAIN_MS 10000

/* ---- lines of the log ---- */

/* Whether a line may be written now; then none is for a while. */
static bool may_log(const struct ampd_model *model, struct ampd_worker *worker)
{
    if (model->core->now_ms < worker->quiet_until_ms)
        return false;
    worker->quiet_until_ms = model->core->now_ms + LOG_AGAIN_MS;
    return true;
}

static bool has_suppressed(const struct ampd_worker *worker)
{
    return worker->suppressed.joins + worker->suppressed.leaves + worker->suppressed.fences > 0;
}

uint64_t ampd_ranks_next_ms(const struct ampd_worker *worker)
{
    return has_suppressed(worker) ? worker->quiet_until_ms : 0;
}

void ampd_ranks_tick(struct ampd_model *model, uint32_t rank)
{
    struct ampd_worker *worker = &model->workers[rank];
    AMP_ASSERT(rank < model->spec.world_size);
    if (!has_suppressed(worker) || !may_log(model, worker))
        return;
    bool unusual = worker->suppressed.replacements + worker->suppressed.fences > 0;
    ampd_out_log(
        model->core, unusual ? AMP_LOG_WARN : AMP_LOG_INFO, model,
        "rank %u (%s, %s): in the last %d s %llu more Joins, of these %llu by another process while the lease ran, "
        "%llu Leaves, and %llu refused calls of workers that held it before",
        rank, worker->record.name, worker->peer, LOG_AGAIN_MS / 1000, (unsigned long long)worker->suppressed.joins,
        (unsigned long long)worker->suppressed.replacements, (unsigned long long)worker->suppressed.leaves,
        (unsigned long long)worker->suppressed.fences);
    memset(&worker->suppressed, 0, sizeof worker->suppressed);
}

void ampd_ranks_joined(struct ampd_model *model, const struct ampd_pending *join)
{
    uint32_t rank = join->worker.rank;
    struct ampd_worker *worker = &model->workers[rank];
    /* Which process had the rank before this one started is not known: it may be the one that joins now. */
    bool other = worker->counts.joins > 0 && (join->instance == 0 || join->instance != worker->instance);
    bool replaced = other && worker->lease == AMPD_LEASE_LIVE && worker->lease_until_ms > model->core->now_ms;
    worker->counts.joins++;
    worker->counts.replacements += replaced ? 1 : 0;
    if (!may_log(model, worker)) {
        worker->suppressed.joins++;
        worker->suppressed.replacements += replaced ? 1 : 0;
    } else if (replaced) {
        ampd_out_log(
            model->core, AMP_LOG_WARN, model,
            "rank %u (%s): a Join from %s has taken it from another process, at %s, whose lease had not ended. If two "
            "workers run under one rank, stop one of them, or give it another RANK and worker_name",
            rank, join->worker.name, join->peer, worker->peer[0] != 0 ? worker->peer : "an unknown address");
    } else {
        ampd_out_log(model->core, AMP_LOG_INFO, model, "rank %u (%s) has joined from %s", rank, join->worker.name,
                     join->peer);
    }
    if (other)
        worker->others = worker->record.incarnation;
    worker->instance = join->instance;
    memcpy(worker->peer, join->peer, sizeof worker->peer);
    worker->joined_ms = model->core->now_ms;
}

void ampd_ranks_left(struct ampd_model *model, uint32_t rank)
{
    struct ampd_worker *worker = &model->workers[rank];
    AMP_ASSERT(rank < model->spec.world_size);
    worker->counts.leaves++;
    if (may_log(model, worker))
        ampd_out_log(model->core, AMP_LOG_INFO, model, "rank %u (%s) has left", rank, worker->record.name);
    else
        worker->suppressed.leaves++;
}

/* ---- whose calls are refused ---- */

bool ampd_ranks_is_running(const struct ampd_model *model, const struct ampd_worker *worker)
{
    return worker->lease == AMPD_LEASE_LIVE && worker->lease_until_ms > model->core->now_ms;
}

void ampd_ranks_taken(const struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation, char *text,
                      size_t size)
{
    const struct ampd_worker *worker = &model->workers[rank];
    AMP_ASSERT(rank < model->spec.world_size);
    text[0] = 0;
    if (worker->evicted.counter != 0 && ampd_incarnation_same(worker->evicted, incarnation)) {
        (void)snprintf(text, size,
                       "rank %u was evicted by an operator, %llu s ago; start the worker again if it may join", rank,
                       (unsigned long long)(model->core->now_ms - worker->evicted_ms) / 1000);
        return;
    }
    if (worker->others.counter == 0 || ampd_incarnation_newer(incarnation, worker->others))
        return;
    (void)snprintf(
        text, size,
        "rank %u was taken by %s at %s, %llu s ago: two workers run under one rank; stop one of them, or give "
        "it another RANK and worker_name",
        rank, worker->record.name, worker->peer[0] != 0 ? worker->peer : "an unknown address",
        (unsigned long long)(model->core->now_ms - worker->joined_ms) / 1000);
}

static void why_fenced(const struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation,
                       struct amp_error *error)
{
    const struct ampd_worker *worker = &model->workers[rank];
    char taken[AMP_ERROR_TEXT_MAX];
    AMP_ASSERT(rank < model->spec.world_size);
    ampd_ranks_taken(model, rank, incarnation, taken, sizeof taken);
    if (taken[0] != 0)
        (void)amp_error_set(error, AMP_EABORTED, "RANK_TAKEN", "%s", taken);
    else if (!ampd_incarnation_same(worker->record.incarnation, incarnation))
        (void)amp_error_set(error, AMP_EABORTED, "FENCED", "rank %u %s; join again", rank,
                            ampd_incarnation_newer(worker->record.incarnation, incarnation)
                                ? "has a newer incarnation"
                                : "belongs to another incarnation");
    else if (worker->record.left)
        (void)amp_error_set(error, AMP_EABORTED, "FENCED", "rank %u has left; join again", rank);
    else if (worker->joined_epoch == 0)
        (void)amp_error_set(error, AMP_EABORTED, "FENCED", "rank %u has not joined since shard 0 started; join again",
                            rank);
    else
        (void)amp_error_set(
            error, AMP_EABORTED, "FENCED",
            "the lease of rank %u has ended; join again, and send KeepAlive at least every %llu ms while "
            "no other call of the worker is open",
            rank, (unsigned long long)model->core->config.lease_ms / 3);
}

/*
 * Shards other than 0 know neither Joins nor leases, only what each OPEN lists: the newest incarnation of each rank,
 * under SHRINK until its lease ends. A rank that is not listed any more comes back only by a Join, with a newer
 * incarnation. So an incarnation that is newer than any listed is not refused: it may have joined since.
 */
static bool is_fenced_by_lists(const struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation,
                               struct amp_error *error)
{
    const struct ampd_worker *worker = &model->workers[rank];
    uint64_t without = ampd_local_goes_without(model, rank);
    AMP_ASSERT(rank < model->spec.world_size);
    if (ampd_incarnation_newer(incarnation, worker->listed))
        return false;
    if (!ampd_incarnation_same(worker->listed, incarnation))
        (void)amp_error_set(error, AMP_EABORTED, "FENCED", "rank %u has a newer incarnation; join again", rank);
    else if (without != 0)
        (void)amp_error_set(error, AMP_EABORTED, "FENCED", "step %llu goes on without rank %u; join again",
                            (unsigned long long)without, rank);
    else
        return false;
    return true;
}

bool ampd_ranks_holds(const struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation)
{
    const struct ampd_worker *worker = &model->workers[rank];
    AMP_ASSERT(rank < model->spec.world_size);
    if (model->core->config.shard != 0)
        return ampd_incarnation_same(worker->listed, incarnation);
    return ampd_ranks_is_running(model, worker) && ampd_incarnation_same(worker->record.incarnation, incarnation);
}

static bool is_fenced(const struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation,
                      struct amp_error *error)
{
    AMP_ASSERT(rank < model->spec.world_size);
    if (model->core->config.shard != 0)
        return is_fenced_by_lists(model, rank, incarnation, error);
    if (ampd_ranks_holds(model, rank, incarnation))
        return false;
    why_fenced(model, rank, incarnation, error);
    return true;
}

bool ampd_ranks_refuse(struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation,
                       struct amp_error *error)
{
    struct ampd_worker *worker = &model->workers[rank];
    AMP_ASSERT(rank < model->spec.world_size);
    if (!is_fenced(model, rank, incarnation, error))
        return false;
    worker->counts.fences++;
    if (model->core->config.shard != 0)
        return true; /* shard 0 logs it */
    if (may_log(model, worker))
        ampd_out_log(model->core, AMP_LOG_WARN, model, "a call was refused: %s", error->text);
    else
        worker->suppressed.fences++;
    return true;
}

/* ---- signs of life ---- */

/*
 * ALIVE messages in the time of a lease: by them the other shards report to shard 0, which has the leases, which
 * workers they hear from (shard/alive.c).
 */
#define ALIVE_PER_LEASE 8

void ampd_ranks_heard(struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation)
{
    struct ampd_worker *worker = &model->workers[rank];
    bool is_listed = worker->alive.counter != 0 && ampd_incarnation_same(worker->alive, worker->listed);
    AMP_ASSERT(rank < model->spec.world_size);
    if (is_listed || ampd_incarnation_newer(worker->listed, incarnation))
        return; /* if several claim the rank, the incarnation that the steps list counts */
    worker->alive = incarnation;
    uint64_t next = model->alive_sent_ms + model->core->config.lease_ms / ALIVE_PER_LEASE;
    if (model->alive_due_ms == 0)
        model->alive_due_ms = next > model->core->now_ms ? next : model->core->now_ms;
}

bool ampd_ranks_renew(struct ampd_model *model, uint32_t rank, struct ampd_incarnation incarnation)
{
    struct ampd_worker *worker = &model->workers[rank];
    AMP_ASSERT(rank < model->spec.world_size);
    if (model->core->config.shard != 0) {
        ampd_ranks_heard(model, rank, incarnation);
        return true;
    }
    if (!worker->has_holder || !ampd_incarnation_same(worker->record.incarnation, incarnation))
        return true; /* not the holder: push.c and pull.c refuse its calls */
    if (!ampd_ranks_is_running(model, worker))
        return false;
    worker->lease_until_ms = model->core->now_ms + model->core->config.lease_ms;
    return true;
}
