/*
 * Two kinds of workers are named in the status and the log: stragglers, for which all others wait again and again, and
 * workers whose own pushes are not finite while others' are. Only the latter has a consequence, since such a worker
 * could have every step skipped for ever. Where steps can go on without a worker (SHRINK, QUORUM) and enough are left,
 * the worker is put in quarantine: after AMPD_QUARANTINE_PUSHES such pushes in a row, or AMPD_QUARANTINE_SHARE of the
 * newest 64, for a finite push now and then would make the count in a row begin again. After the quarantine its first
 * such push is enough for the next one, and its first finite push clears the count.
 *
 * While a step is open, the ranks whose pushes are missing are named, too, once another rank's push has been complete
 * for a while. A step that takes long on all ranks keeps none of them waiting.
 */
#include "server/core/coordinator/health.h"

#include "base/assert.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/base/worker.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/workers.h"

#include <stdio.h>
#include <string.h>

/* ---- stragglers ---- */

/* The contributor that was complete last, and how long the one before it had waited then. */
static uint32_t last_of(const struct ampd_model *model, const struct ampd_step_row *row, uint64_t *margin_ms)
{
    const uint64_t *times = model->coord->step.completed_ms;
    uint32_t last = row->contributors[0].rank;
    uint64_t before = 0;
    for (uint32_t i = 1; i < row->contributors_count; i++) {
        uint32_t rank = row->contributors[i].rank;
        if (times[rank] >= times[last]) {
            before = times[last];
            last = rank;
        } else if (times[rank] > before) {
            before = times[rank];
        }
    }
    *margin_ms = times[last] - before;
    return last;
}

static void name_straggler(struct ampd_model *model, uint32_t rank, bool straggles)
{
    struct ampd_worker *worker = &model->workers[rank];
    AMP_ASSERT(rank < model->spec.world_size);
    if (worker->health.straggles == straggles)
        return;
    worker->health.straggles = straggles;
    if (straggles)
        ampd_out_log(model->core, AMP_LOG_WARN, model,
                     "straggler: all others have waited for rank %u (%s) in %d steps in a row, for most of each", rank,
                     worker->record.name, AMPD_STRAGGLER_STEPS);
    else
        ampd_out_log(model->core, AMP_LOG_INFO, model, "rank %u (%s) keeps up again", rank, worker->record.name);
}

static void watch_times(struct ampd_model *model, const struct ampd_step_row *row)
{
    uint64_t margin_ms = 0;
    uint32_t last = last_of(model, row, &margin_ms);
    uint64_t whole_ms = model->coord->step.completed_ms[last] - model->coord->step.opened_ms;
    bool waited = margin_ms >= AMPD_STRAGGLER_MS && 2 * margin_ms > whole_ms;
    for (uint32_t i = 0; i < row->contributors_count; i++) {
        struct ampd_worker *worker = &model->workers[row->contributors[i].rank];
        bool slow = waited && row->contributors[i].rank == last;
        if (slow) {
            worker->health.slow_in_row += worker->health.slow_in_row < AMPD_STRAGGLER_STEPS;
            worker->health.slow_steps++;
            worker->health.slow_ms += margin_ms;
        } else {
            worker->health.slow_in_row = 0;
        }
        name_straggler(model, row->contributors[i].rank, worker->health.slow_in_row == AMPD_STRAGGLER_STEPS);
    }
}

/* ---- pushes that are not finite ---- */

/* Whether the worker's own gradient had an Inf or a NaN, as far as the rows that are kept tell. */
static bool is_bad(const struct ampd_step_row *row, uint32_t rank)
{
    for (uint32_t i = 0; i < row->rows_count; i++) {
        if (row->rows[i].rank == rank)
            return true;
    }
    return false;
}

static void name_nonfinite(struct ampd_model *model, uint32_t rank, bool nonfinite)
{
    struct ampd_worker *worker = &model->workers[rank];
    AMP_ASSERT(rank < model->spec.world_size);
    if (worker->health.nonfinite == nonfinite)
        return;
    worker->health.nonfinite = nonfinite;
    if (nonfinite)
        ampd_out_log(
            model->core, AMP_LOG_WARN, model,
            "rank %u (%s) has pushed Inf or NaN again and again while others had none: look at its data, or its "
            "machine",
            rank, worker->record.name);
    else
        ampd_out_log(model->core, AMP_LOG_INFO, model, "the gradients of rank %u (%s) are finite again", rank,
                     worker->record.name);
}

static void quarantine(struct ampd_model *model, uint32_t rank)
{
    struct ampd_worker *worker = &model->workers[rank];
    bool row = worker->health.bad_pushes == AMPD_QUARANTINE_PUSHES;
    AMP_ASSERT(rank < model->spec.world_size);
    if (!ampd_workers_quarantine(model, rank))
        return;
    worker->health.bad_pushes = AMPD_QUARANTINE_PUSHES - 1;
    worker->health.bad_window = 0;
    ampd_out_log(model->core, AMP_LOG_ERROR, model,
                 "rank %u (%s) is in quarantine for %d s: steps go on without it, for its pushes had Inf or NaN in %d "
                 "steps %s while others had none",
                 rank, worker->record.name, AMPD_QUARANTINE_MS / 1000,
                 row ? AMPD_QUARANTINE_PUSHES : AMPD_QUARANTINE_SHARE, row ? "in a row" : "of the newest 64");
}

_Static_assert(AMPD_QUARANTINE_WINDOW == 64, "a push is a bit of bad_window");

/* Counts one push of a step whose others were finite. */
static void count_push(struct ampd_worker *worker, bool bad, float scale)
{
    worker->health.bad_window = worker->health.bad_window << 1 | (bad && scale <= worker->health.finite_scale ? 1 : 0);
    if (!bad)
        worker->health.finite_scale = scale;
    if (!bad)
        worker->health.bad_pushes = 0;
    else if (worker->health.bad_pushes < AMPD_QUARANTINE_PUSHES)
        worker->health.bad_pushes++;
}

static void watch_values(struct ampd_model *model, const struct ampd_step_row *row)
{
    uint32_t bad = 0;
    for (uint32_t i = 0; i < row->contributors_count; i++)
        bad += is_bad(row, row->contributors[i].rank) ? 1 : 0;
    bool cut = row->overflow_params > row->rows_count;
    if (cut && row->rows_count > 0 && row->rows[0].parameter == row->rows[row->rows_count - 1].parameter)
        return; /* the rows were cut within one parameter: it is not known which ranks overflowed in it */
    bool others_clean = 2 * bad <= row->contributors_count; /* else the scale is to blame, not a worker */
    for (uint32_t i = 0; i < row->contributors_count; i++) {
        uint32_t rank = row->contributors[i].rank;
        struct ampd_worker *worker = &model->workers[rank];
        bool is = is_bad(row, rank);
        if (is ? others_clean : !cut)
            count_push(worker, is, row->scale);
        bool share = __builtin_popcountll(worker->health.bad_window) >= AMPD_QUARANTINE_SHARE;
        name_nonfinite(model, rank, share || worker->health.bad_pushes >= AMPD_NONFINITE_PUSHES);
        if (share || worker->health.bad_pushes == AMPD_QUARANTINE_PUSHES)
            quarantine(model, rank);
    }
}

/* ---- ranks that an open step waits for ---- */

/* Most ranks that one line of the log names. */
#define RANKS_NAMED 8

static bool has_joined(const struct ampd_model *model, uint32_t rank)
{
    const struct ampd_worker *worker = &model->workers[rank];
    AMP_ASSERT(rank < model->spec.world_size);
    return worker->joined_epoch == model->coord->epoch && worker->lease == AMPD_LEASE_LIVE;
}

/* Since when a worker has waited for others to join before the first step of an epoch; 0: none has joined. */
static uint64_t joins_awaited_ms(const struct ampd_model *model)
{
    uint64_t since = 0;
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        uint64_t at = has_joined(model, r) ? model->workers[r].joined_ms : 0;
        since = at != 0 && (since == 0 || at < since) ? at : since;
    }
    return since;
}

/*
 * The time of the first complete push, or of the first Join, while the step needs others; 0 if there is none, or if no
 * more are needed.
 */
uint64_t ampd_health_awaited_ms(const struct ampd_model *model)
{
    const struct ampd_coord *coord = model->coord;
    if (coord->state == AMPD_COORD_WAITING)
        return joins_awaited_ms(model);
    const struct ampd_open *open = &coord->step.open;
    bool is_open = coord->step.state == AMPD_STEP_OPEN || (coord->step.state == AMPD_STEP_CLOSED && open->closed);
    uint32_t needed = model->spec.sync == AMPD_SYNC_QUORUM ? model->spec.quorum : open->expected_count;
    if (!is_open || !ampd_coord_has_steps(coord) || coord->step.complete_count >= needed)
        return 0;
    uint64_t since = 0;
    for (uint32_t i = 0; i < open->expected_count; i++) {
        uint32_t rank = open->expected[i].rank;
        if (ampd_coord_is_complete(model, rank) && (since == 0 || coord->step.completed_ms[rank] < since))
            since = coord->step.completed_ms[rank];
    }
    return since;
}

uint64_t ampd_health_late_ms(const struct ampd_model *model)
{
    uint64_t since = ampd_health_awaited_ms(model), third_ms = model->core->config.lease_ms / 3;
    return since == 0 ? 0 : since + (third_ms > AMPD_AWAITED_MS ? third_ms : AMPD_AWAITED_MS);
}

bool ampd_health_awaits(const struct ampd_model *model, uint32_t rank)
{
    const struct ampd_open *open = &model->coord->step.open;
    if (ampd_health_awaited_ms(model) == 0)
        return false;
    if (model->coord->state == AMPD_COORD_WAITING)
        return !has_joined(model, rank);
    return !ampd_coord_is_complete(model, rank) && ampd_open_find(open, rank) != NULL;
}

/* Lines about one model are at least AMPD_AWAITED_MS apart. */
uint64_t ampd_health_next_ms(const struct ampd_model *model)
{
    const struct ampd_coord *coord = model->coord;
    uint64_t late = ampd_health_late_ms(model), again = coord->step.awaited_logged_ms + AMPD_AWAITED_MS;
    uint64_t began = coord->state == AMPD_COORD_WAITING ? ampd_health_awaited_ms(model) : coord->step.opened_ms;
    if (late == 0 || coord->step.awaited_logged_ms > began)
        return 0;
    return coord->step.awaited_logged_ms != 0 && again > late ? again : late;
}

void ampd_health_names(const struct ampd_model *model, char *text, size_t size)
{
    uint32_t count = 0;
    text[0] = 0;
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        size_t used = strlen(text);
        if (!ampd_health_awaits(model, r) || ++count > RANKS_NAMED + 1)
            continue;
        if (count <= RANKS_NAMED)
            (void)snprintf(text + used, size - used, "%srank %u (%.16s)", count > 1 ? ", " : "", r,
                           model->workers[r].has_holder ? model->workers[r].record.name : "never joined");
        else
            (void)snprintf(text + used, size - used, " and more");
    }
}

void ampd_health_tick(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    uint64_t due = ampd_health_next_ms(model), now = model->core->now_ms;
    char ranks[AMPD_AWAITED_NAMES_MAX];
    if (due == 0 || due > now)
        return;
    coord->step.awaited_logged_ms = now;
    ampd_health_names(model, ranks, sizeof ranks);
    ampd_out_log(model->core, AMP_LOG_WARN, model, "step %llu waits for %s: others have waited for %llu s",
                 (unsigned long long)coord->decided + 1, ranks,
                 (unsigned long long)(now - ampd_health_awaited_ms(model)) / 1000);
}

/* ---- both ---- */

void ampd_health_count(struct ampd_model *model, const struct ampd_step_row *row)
{
    for (uint32_t i = 0; i < row->contributors_count; i++) {
        struct ampd_worker *worker = &model->workers[row->contributors[i].rank];
        worker->health.pushes++;
        worker->health.last_step = row->step;
        worker->health.overflow_pushes += is_bad(row, row->contributors[i].rank) ? 1 : 0;
    }
    if (row->contributors_count < 2)
        return; /* no other worker waits, or can be compared with */
    watch_times(model, row);
    watch_values(model, row);
}
