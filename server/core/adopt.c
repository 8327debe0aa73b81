/*
 * How a coordinator goes on in the same epoch that has started, or whose RESTORE came to nothing (STEP section 6, `durability:
 * step`): all shards have answered SYNC, none has lost anything. The newest verdict that any of them holds is adopted: stored here if it is
 * not, and sent again. Then the next step opens in a new try, with the incarnations that are stored. Workers that had
 * joined under the epoch need not join again: they are taken for live until a lease has passed. Who has not started knows them, and
 * the step that was open.
 */
#include "base/assert.h"
#include "base/failpoint.h"
#include "server/core/model.h"

#include <stdlib.h>
#include <string.h>

static const struct ampd_sync_state *answer_of(const struct ampd_model *model, uint32_t shard)
{
    return &model->coord.synced[shard]->u.sync;
}

/* The answer of the shard that has decided most. */
static const struct ampd_sync_state *newest(const struct ampd_model *model)
{
    const struct ampd_sync_state *best = answer_of(model, 0);
    for (uint32_t k = 1; k < AMPD_COUNT(model->core); k++) {
        if (answer_of(model, k)->decided > best->decided)
            best = answer_of(model, k);
    }
    return best;
}

static bool anybody_voted(const struct ampd_model *model)
{
    bool voted = false;
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++)
        voted = voted || answer_of(model, k)->voted;
    return voted;
}

/* The steps up to shard 0's last one: decided, and its verdict is sent again to whom it may not have reached. */
static void take_decided(struct ampd_model *model, const struct ampd_sync_state *mine)
{
    struct ampd_coord *coord = &model->coord;
    coord->decided = mine->decided;
    coord->parent_step = mine->has_last ? mine->decided : 0;
    coord->version = mine->version;
    if (!coord->has_record)
        ampd_coord_record(coord, model->shard.found_scaler ? &model->shard.newest_scaler : &mine->scaler);
    coord->decided_state = AMPD_STEP_NONE;
    coord->applied_bits = 0;
    coord->applying = (struct ampd_applied){0};
    if (!mine->has_last)
        return;
    struct ampd_verdict_message *had = coord->verdict; /* the same one, or what the start has found of it */
    coord->verdict = ampd_need(calloc(1, sizeof(*coord->verdict)));
    ampd_verdict_of_row(model, &mine->last, coord->verdict);
    if (had != NULL && had->row.step == mine->decided) {
        coord->verdict->acts_count = had->acts_count;
        memcpy(coord->verdict->acts, had->acts, sizeof(had->acts));
    }
    free(had);
    coord->decided_state = AMPD_STEP_DECIDED;
}

/* A verdict that this store has lost, and another shard holds: it is stored, then sent, as if it had just been made. */
static void adopt_verdict(struct ampd_model *model, const struct ampd_sync_state *theirs)
{
    struct ampd_coord *coord = &model->coord;
    coord->open = (struct ampd_open){.step = theirs->decided, .try_number = theirs->last.tries - 1};
    coord->step = AMPD_STEP_VOTED;
    coord->opened_before = false;
    coord->decided_state = AMPD_STEP_NONE; /* all have voted on this one, so all have applied the one before */
    free(coord->verdict);
    coord->verdict = ampd_need(calloc(1, sizeof(*coord->verdict)));
    ampd_verdict_of_row(model, &theirs->last, coord->verdict);
    ampd_acts_take(coord, coord->verdict);
    coord->newest = theirs->last.after;
    ampd_out_log(model->core, AMPD_LOG_WARN, model, "the verdict of step %llu is adopted from another shard",
                 (unsigned long long)theirs->decided);
    ampd_coord_store_verdict(model);
}

static enum ampd_coord_state state_of(const struct ampd_model *model, bool begun)
{
    const struct ampd_coord *coord = &model->coord;
    if (!coord->has_checkpoint)
        return AMPD_COORD_LOADED;
    if (model->spec.max_steps != 0 && coord->decided >= model->spec.max_steps)
        return coord->durable_step == coord->decided ? AMPD_COORD_DONE : AMPD_COORD_FINISHING;
    if (!begun)
        return AMPD_COORD_WAITING;
    return ampd_floor_stops(&model->spec, &coord->scaler) ? AMPD_COORD_FROZEN : AMPD_COORD_RUNNING;
}

static void hold_scale(struct ampd_model *model, bool late_act)
{
    struct ampd_coord *coord = &model->coord;
    coord->opened_before = true;
    coord->open = (struct ampd_open){.step = coord->decided + 1,
                                     .scale = late_act ? model->shard.open_scale : coord->scaler.scale,
                                     .scale_id = late_act ? model->shard.open_scale_id : coord->scaler.scale_id};
}

bool ampd_adopt_can(const struct ampd_model *model)
{
    if (model->spec.durability != AMPD_DURABILITY_STEP)
        return false;
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++) {
        if (model->coord.synced[k] == NULL || !answer_of(model, k)->ready)
            return false;
    }
    /* More than one step ahead cannot be: each needs a vote of shard 0. Then the store here is another one's. */
    return newest(model)->decided <= answer_of(model, 0)->decided + 1;
}

void ampd_adopt(struct ampd_model *model, const struct ampd_checkpoint_record *checkpoint)
{
    struct ampd_coord *coord = &model->coord;
    const struct ampd_sync_state *mine = answer_of(model, 0), *best = newest(model);
    AMP_FAILPOINT("journal.adopt");
    coord->base_epoch = model->shard.base_epoch;
    coord->base_step = model->shard.base_step;
    coord->has_checkpoint = checkpoint->epoch != 0;
    uint64_t known = ampd_cuts_adopt(model, checkpoint);
    coord->durable_step = known != 0 ? known - 1 : 0;
    bool started = !coord->has_record; /* else it knows the step that was open, if one was */
    take_decided(model, mine);
    coord->unstable = coord->scaler.consecutive_overflows >= model->spec.max_consecutive_overflows;
    bool late_act = started && model->shard.late_act; /* so a step was open, perhaps the epoch's first */
    bool open = !started && coord->step != AMPD_STEP_NONE;
    bool begun = best->has_last || anybody_voted(model) || late_act || open;
    ampd_workers_adopt(model, started, begun);
    coord->before = state_of(model, begun);
    coord->cuts_count = 0; /* a restore has ended them, or they were another process's */
    coord->cut_wanted = false;
    if (coord->before == AMPD_COORD_LOADED || coord->before == AMPD_COORD_FINISHING)
        ampd_cuts_expect(coord, coord->decided);
    if (started && (late_act || !ampd_floor_stops(&model->spec, &coord->scaler)))
        hold_scale(model, late_act); /* the next step may have been opened: its gradients carry this one */
    if (best->decided > mine->decided) {
        coord->before = AMPD_COORD_RUNNING;
        adopt_verdict(model, best);
    }
    ampd_out_log(model->core, AMPD_LOG_INFO, model, "epoch %llu goes on after step %llu",
                 (unsigned long long)coord->epoch, (unsigned long long)coord->decided);
    AMP_FAILPOINT("journal.adopted");
    ampd_coord_resume(model);
}
