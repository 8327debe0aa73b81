/*
 * How a coordinator that has started, or whose RESTORE came to nothing, goes on in the same epoch
 * (docs/step-protocol.md section 6, `durability: step`). All shards have answered SYNC, and none has lost anything. The
 * newest verdict that any of them holds is adopted: stored here if it is not, and sent again. Then the next step opens
 * in a new try, with the incarnations that are stored. Workers that had joined under the epoch need not join again:
 * they count as live until a lease has passed. A coordinator that has not started still knows its workers, and the step
 * that was open.
 */
#include "server/core/coordinator/adopt.h"

#include "base/assert.h"
#include "base/failpoint.h"
#include "server/core/base/local.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/coordinator/actions.h"
#include "server/core/coordinator/checkpoints.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/verdict.h"
#include "server/core/coordinator/workers.h"
#include "server/core/wire/verdict_rows.h"

#include <stdlib.h>
#include <string.h>

static const struct ampd_sync_state *answer_of(const struct ampd_model *model, uint32_t shard)
{
    AMP_ASSERT(shard < AMPD_COUNT(model->core));
    return &model->coord->sync.answers[shard]->u.sync;
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
        voted = voted || answer_of(model, k)->voted != 0;
    return voted;
}

/*
 * Takes the steps up to shard 0's last one as decided; its verdict is sent again to shards that it may not have
 * reached.
 */
static void take_decided(struct ampd_model *model, const struct ampd_sync_state *mine)
{
    struct ampd_coord *coord = model->coord;
    coord->decided = mine->decided;
    coord->parent_step = mine->has_last ? mine->decided : 0;
    coord->version = mine->version;
    struct ampd_found found = ampd_local_found(model);
    if (!coord->has_record)
        ampd_coord_record(coord, found.has_carry ? &found.carry : &mine->carry);
    ampd_coord_set_decision(coord, AMPD_DECIDED_NONE);
    coord->decision.applied_bits = 0;
    if (!mine->has_last)
        return;
    coord->decision.warnings = (struct ampd_applied){0};
    struct ampd_verdict_message *had = coord->decision.verdict; /* the same, or the actions that the start has found */
    coord->decision.verdict = ampd_need(calloc(1, sizeof *coord->decision.verdict));
    coord->decision.verdict->row = mine->last;
    if (had != NULL && had->row.step == mine->decided) {
        coord->decision.verdict->acts_count = had->acts_count;
        memcpy(coord->decision.verdict->acts, had->acts, sizeof had->acts);
    }
    free(had);
    ampd_coord_set_decision(coord, AMPD_DECIDED_APPLYING);
}

/* Another shard holds a verdict that this store has lost: stores it, then sends it, as if it had just been made. */
static void adopt_verdict(struct ampd_model *model, const struct ampd_sync_state *theirs)
{
    struct ampd_coord *coord = model->coord;
    coord->step.open = (struct ampd_open){.step = theirs->decided, .try_number = theirs->last.tries - 1};
    ampd_coord_set_step(coord, AMPD_STEP_VOTED);
    ampd_coord_set_decision(coord,
                            AMPD_DECIDED_NONE); /* all have voted on this one, so all have applied the one before */
    coord->decision.made_us = coord->decision.applied_us = 0;
    free(coord->decision.verdict);
    coord->decision.verdict = ampd_need(calloc(1, sizeof *coord->decision.verdict));
    coord->decision.verdict->row = theirs->last;
    ampd_actions_take(coord, coord->decision.verdict);
    coord->newest = theirs->last.after;
    ampd_out_log(model->core, AMP_LOG_WARN, model, "the verdict of step %llu is adopted from another shard",
                 (unsigned long long)theirs->decided);
    ampd_coord_store_verdict(model);
}

static enum ampd_coord_state state_of(const struct ampd_model *model, bool begun)
{
    const struct ampd_coord *coord = model->coord;
    if (!coord->checkpoint.exists)
        return AMPD_COORD_LOADED;
    if (model->spec.max_steps != 0 && coord->decided >= model->spec.max_steps)
        return coord->checkpoint.durable_step == coord->decided ? AMPD_COORD_DONE : AMPD_COORD_FINISHING;
    return begun ? AMPD_COORD_RUNNING : AMPD_COORD_WAITING;
}

static void hold_scale(struct ampd_model *model, bool late_act)
{
    struct ampd_coord *coord = model->coord;
    struct ampd_found found = ampd_local_found(model);
    coord->step.open = (struct ampd_open){.step = coord->decided + 1,
                                          .scale = late_act ? found.open_scale : coord->carry.scaler.scale,
                                          .scale_id = late_act ? found.open_scale_id : coord->carry.scaler.scale_id};
}

bool ampd_adopt_can(const struct ampd_model *model)
{
    if (model->spec.durability != AMPD_DURABILITY_STEP)
        return false;
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++) {
        if (model->coord->sync.answers[k] == NULL || !answer_of(model, k)->ready)
            return false;
    }
    /*
     * No shard can be more than one step ahead, for each step needs a vote of shard 0: else this store is an older one.
     */
    return newest(model)->decided <= answer_of(model, 0)->decided + 1;
}

void ampd_adopt(struct ampd_model *model, const struct ampd_checkpoint_record *checkpoint)
{
    struct ampd_coord *coord = model->coord;
    const struct ampd_sync_state *mine = answer_of(model, 0), *best = newest(model);
    AMP_ASSERT(model->core->config.shard == 0);
    AMP_FAILPOINT("journal.adopt");
    struct ampd_found found = ampd_local_found(model);
    coord->base_epoch = found.base_epoch;
    coord->base_step = found.base_step;
    coord->checkpoint.exists = checkpoint->epoch != 0;
    uint64_t known = ampd_checkpoints_adopt(model, checkpoint);
    coord->checkpoint.durable_step = known != 0 ? known - 1 : 0;
    bool started = !coord->has_record; /* if not, it still knows the step that was open */
    take_decided(model, mine);
    bool late_act = started && found.late_action; /* an action came while a step was open, perhaps the epoch's first */
    bool open = !started && coord->step.state != AMPD_STEP_NONE;
    bool begun = best->has_last || anybody_voted(model) || late_act || open;
    ampd_workers_adopt(model, started, begun);
    coord->sync.before = state_of(model, begun);
    coord->checkpoint.writing_count = 0; /* a restore has ended those, or an earlier process wrote them */
    coord->checkpoint.wanted = false;
    if (coord->sync.before == AMPD_COORD_LOADED || coord->sync.before == AMPD_COORD_FINISHING)
        ampd_checkpoints_expect(coord, coord->decided);
    if (started && (late_act || !ampd_floor_stops(&model->spec, &coord->carry.scaler)))
        hold_scale(model, late_act); /* the next step may have been open: its gradients carry this scale */
    if (best->decided > mine->decided) {
        coord->sync.before = AMPD_COORD_RUNNING;
        adopt_verdict(model, best);
    }
    ampd_out_log(model->core, AMP_LOG_INFO, model, "epoch %llu goes on after step %llu",
                 (unsigned long long)coord->epoch, (unsigned long long)coord->decided);
    AMP_FAILPOINT("journal.adopted");
    ampd_coord_resume(model);
}
