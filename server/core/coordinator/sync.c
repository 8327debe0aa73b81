/*
 * SYNC: how a coordinator finds out what the shards hold, and where each model goes on (docs/step-protocol.md section
 * 6).
 *
 * It begins whenever shard 0 starts, or sees a higher fence of any shard. Its rounds are numbered within shard 0's
 * fence, and an answer to an older round does not count. Each shard answers what its store and its memory hold of each
 * model, as soon as nothing of that is being stored any more. Then, model by model:
 *
 *   a memory is lost, or the epochs differ   RESTORE of the newest checkpoint that all hold, read and verified into
 *                                            memory on all of them (a damaged one is passed over for the one before);
 *                                            then a new epoch, 1 + the highest that any has stored. A model that never
 *                                            had a durable checkpoint is CREATED again and waits for Load; one whose
 *                                            checkpoints are all out of reach is refused until another SYNC.
 *   nothing is lost                          the last verdict is sent again, and the open step is opened in a new try
 *
 * With `durability: checkpoint` the memory is lost at every restart. With `durability: step` a shard answers when it
 * has replayed its journal (journal.c), after a start or because a RESTORE came to nothing (memory.c), and a
 * coordinator that has no state to go on with takes it from the answers (adopt.c).
 */
#include "server/core/coordinator/sync.h"

#include "base/assert.h"
#include "server/core/base/calls.h"
#include "server/core/base/limits.h"
#include "server/core/base/local.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/coordinator/adopt.h"
#include "server/core/coordinator/checkpoints.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/coord_load.h"
#include "server/core/coordinator/delete.h"
#include "server/core/coordinator/epochs.h"
#include "server/core/coordinator/rollback.h"
#include "server/core/model/spec.h"
#include "server/core/wire/bus.h"
#include "server/core/wire/fits.h"
#include "server/core/wire/messages.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the coordinator asks ---- */

static void forget_answers(struct ampd_model *model)
{
    model->coord->sync.misfits = 0;
    model->coord->restore.unread = 0;
    model->coord->sync.untried = 0;
    if (model->coord->state != AMPD_COORD_DELETING) /* its CreateModel calls are still to be answered with this */
        model->coord->trouble[0] = 0;
    for (uint32_t k = 0; k < AMPD_SHARDS_MAX; k++) {
        ampd_message_free(model->coord->sync.answers[k]);
        model->coord->sync.answers[k] = NULL;
    }
}

void ampd_sync_start(struct ampd_core *core)
{
    struct ampd_sync_round *sync = &core->sync;
    AMP_ASSERT(core->config.shard == 0);
    sync->current = ++sync->round;
    sync->running = true;
    sync->unlearned = false;
    sync->done = 0;
    for (uint32_t i = 0; i < core->models_count; i++) {
        forget_answers(core->models[i]);
        if (!core->models[i]->gone)
            ampd_coord_interrupt(core->models[i]);
    }
    struct ampd_message *message = ampd_bus_plain(core, AMPD_MESSAGE_SYNC, 0);
    message->round = sync->round;
    ampd_bus_send_all_take(core, message);
}

bool ampd_sync_hello(struct ampd_core *core, const struct ampd_message *message)
{
    struct ampd_sync_round *sync = &core->sync;
    uint32_t k = message->from;
    bool again = sync->synced_with[k] == message->from_fence.counter;
    AMP_ASSERT(core->config.shard == 0);
    if (!core->started)
        return false;
    /*
     * A SYNC that is running begins again, unless the answer of this very process counts already. Otherwise the shard
     * may have answered as another process, which held more; or answers that came while its fence was being stored were
     * dropped, and then its SYNC_DONE must not count.
     */
    bool starts = !again || (sync->running && (sync->done & AMPD_BIT(k)) == 0);
    if (starts)
        ampd_sync_start(core);
    return !starts;
}

/* ---- the coordinator decides ---- */

/* Makes a model that another shard knows and this coordinator does not, since its store is new. */
static struct ampd_model *learn(struct ampd_core *core, const struct ampd_sync_state *state)
{
    const struct ampd_model_spec *spec = &state->spec;
    struct ampd_model *model;
    struct amp_error error = {0};
    if (ampd_spec_check(spec, &error) != 0 || ampd_model_new(core, spec, &model, &error) != 0) {
        ampd_out_log(core, AMP_LOG_ERROR, NULL, "%s cannot be brought back: %s", spec->name, error.text);
        core->sync.unlearned = true;
        return NULL;
    }
    model->created_us = state->created_us;
    ampd_coord_set(model, AMPD_COORD_SYNCING);
    return model;
}

const struct ampd_checkpoint_record *ampd_sync_record_of(const struct ampd_coord *coord, uint32_t k, uint64_t epoch,
                                                         uint64_t step)
{
    if (coord->sync.answers[k] == NULL)
        return NULL;
    const struct ampd_sync_state *sync = &coord->sync.answers[k]->u.sync;
    for (uint32_t i = 0; i < sync->checkpoints_count; i++) {
        if (sync->checkpoints[i].epoch == epoch && sync->checkpoints[i].step == step)
            return &sync->checkpoints[i];
    }
    return NULL;
}

bool ampd_sync_holds(const struct ampd_coord *coord, uint32_t k, uint64_t epoch, uint64_t step)
{
    return ampd_sync_record_of(coord, k, epoch, step) != NULL;
}

static bool all_hold(const struct ampd_model *model, const struct ampd_checkpoint_record *record)
{
    bool all = true;
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++)
        all = all && ampd_sync_holds(model->coord, k, record->epoch, record->step);
    return all;
}

/*
 * The newest checkpoint of shard 0's answer that all shards hold and that was not tried yet. If there is none: false,
 * and epoch and step are 0.
 */
static bool take_newest(struct ampd_model *model, struct ampd_checkpoint_record *newest)
{
    struct ampd_coord *coord = model->coord;
    while (coord->sync.untried > 0) {
        *newest = coord->sync.answers[0]->u.sync.checkpoints[--coord->sync.untried];
        if (all_hold(model, newest))
            return true;
    }
    *newest = (struct ampd_checkpoint_record){0};
    return false;
}

/*
 * A shard without the model while another one holds checkpoints: its part of them is gone, which nothing can replace.
 */
static uint32_t shard_without_store(const struct ampd_model *model)
{
    const struct ampd_coord *coord = model->coord;
    uint32_t empty = AMPD_NO_RANK;
    bool checkpoints = false;
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++) {
        if (coord->sync.answers[k] == NULL)
            empty = k;
        else
            checkpoints = checkpoints || coord->sync.answers[k]->u.sync.checkpoints_count > 0;
    }
    return checkpoints ? empty : AMPD_NO_RANK;
}

/* RESTORE makes a shard end what it does with the tensors, then read the checkpoint, if there is one. */
static void send_restore(struct ampd_model *model, uint32_t shard)
{
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_RESTORE, shard);
    AMP_ASSERT(shard < AMPD_COUNT(model->core));
    message->round = model->coord->restore.round;
    message->u.restore.epoch = model->coord->base_epoch;
    message->u.restore.step = model->coord->base_step;
    if (model->coord->base_epoch == 0) {
        message->u.restore.version = model->coord->begins.version;
        message->u.restore.carry = model->coord->begins.carry;
    }
    ampd_bus_send_take(model->core, message);
}

void ampd_sync_resend(struct ampd_model *model, uint32_t shard)
{
    AMP_ASSERT(shard < AMPD_COUNT(model->core));
    if ((model->coord->answered & AMPD_BIT(shard)) != 0 || model->coord->begins.token != 0)
        return;
    if (shard != 0 && model->coord->sync.answers[shard] == NULL)
        ampd_epochs_create(model, shard); /* it did not know the model, and CREATE may be lost, too */
    if (model->coord->state == AMPD_COORD_RESTORING) {
        ampd_checkpoints_resend_parts(model, shard);
        send_restore(model, shard);
    } else {
        ampd_epochs_send(model, shard);
    }
}

/*
 * Begins RESTORE of a checkpoint that all shards hold, and then a new epoch for this reason. With epoch 0 there is no
 * checkpoint: the step, begins.version and begins.carry say what a load has to go on from.
 */
static void restore_from(struct ampd_model *model, uint64_t epoch, uint64_t step, const char *reason)
{
    struct ampd_coord *coord = model->coord;
    ampd_epochs_reason(coord, reason);
    coord->answered = 0;
    coord->restore.failed = false;
    coord->restore.absent = false;
    coord->restore.unread = 0;
    coord->checkpoint.exists = epoch != 0;
    coord->base_epoch = epoch;
    coord->base_step = step;
    ampd_coord_set(model, AMPD_COORD_RESTORING);
    for (uint32_t k = AMPD_COUNT(model->core); k-- > 0;)
        send_restore(model, k);
}

/* Whether a rollback that SYNC has interrupted goes on. If its checkpoint is not there any more, the rollback fails. */
static bool roll_back_again(struct ampd_model *model)
{
    const struct ampd_coord *coord = model->coord;
    if (coord->rollback.state != AMPD_ROLLBACK_BEGUN)
        return false;
    struct ampd_checkpoint_record record = {.epoch = coord->rollback.epoch, .step = coord->rollback.step};
    bool all = all_hold(model, &record);
    if (!all)
        ampd_rollback_fail(model, AMP_ENOTFOUND, "CHECKPOINT_NOT_FOUND",
                           "a shard has lost its part of this checkpoint; the model goes on as after a restart");
    return all;
}

/*
 * Whether the model has had a durable checkpoint, whatever became of its files: all shards name one, or the store of a
 * shard knows all parts of one, as it does of every durable checkpoint.
 */
static bool had_checkpoint(const struct ampd_model *model)
{
    const struct ampd_coord *coord = model->coord;
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++) {
        const struct ampd_sync_state *sync = coord->sync.answers[k] == NULL ? NULL : &coord->sync.answers[k]->u.sync;
        for (uint32_t i = 0; sync != NULL && i < sync->checkpoints_count; i++) {
            if (sync->checkpoints[i].parts_count > 0 || all_hold(model, &sync->checkpoints[i]))
                return true;
        }
    }
    return false;
}

/*
 * Refuses to serve the model until another SYNC finds what is missing now. Calls that wait for it end with the
 * sentence. What the shards hold stays as it is.
 */
static void refuse(struct ampd_model *model, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void refuse(struct ampd_model *model, const char *format, ...)
{
    struct ampd_coord *coord = model->coord;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(coord->trouble, sizeof coord->trouble, format, arguments);
    va_end(arguments);
    ampd_out_log(model->core, AMP_LOG_ERROR, model, "%s", coord->trouble);
    if (coord->state != AMPD_COORD_SYNCING) {
        coord->sync.before = coord->state;
        ampd_coord_set(model, AMPD_COORD_SYNCING);
    }
    ampd_coord_send_state(model);
    ampd_calls_refuse(model, coord->trouble);
}

/*
 * Whether the model can go on from `newest`, or, where that has epoch 0, from nothing. An epoch without a base is only
 * for a model that never had a durable checkpoint. If there was one and none can be read on all shards, a directory is
 * not mounted or files are lost: a new epoch without a base would void what is left, so the model is refused.
 */
static bool has_base(struct ampd_model *model, struct ampd_checkpoint_record *newest)
{
    if (take_newest(model, newest) || !had_checkpoint(model))
        return true;
    refuse(
        model,
        "no checkpoint of %s can be read on all shards, though there are some: is the checkpoint directory mounted "
        "(here it is %s)? The log of each shard names what it lacks; bring that back, and start the shard again. "
        "Nothing has been deleted. Only if all checkpoints are lost for good, give the model up: ampctl delete --force",
        model->spec.name, ampd_checkpoint_dir(model->core));
    return false;
}

static void without_base(struct ampd_model *model, const struct ampd_load_base *load, const char *reason)
{
    model->coord->begins.version = load->version;
    model->coord->begins.carry = load->carry;
    restore_from(model, 0, load->step, reason);
}

static void restore_next(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    struct ampd_checkpoint_record newest = {0};
    coord->restore.round = model->core->sync.round;
    if (!has_base(model, &newest))
        return;
    ampd_checkpoints_send_synced(model, &newest);
    const struct ampd_load_base first = ampd_load_base_first(&model->spec);
    if (newest.epoch == 0)
        without_base(model, &first, "RESTART");
    else
        restore_from(model, newest.epoch, newest.step, "RESTART");
}

/* A RESTORE outside of SYNC gets a round of its own, so that no shard takes it for one that it has answered. */
static void new_round(struct ampd_model *model)
{
    model->coord->restore.round = ++model->core->sync.round;
}

void ampd_sync_begin_anew(struct ampd_model *model, const struct ampd_load_base *load, const char *reason)
{
    const struct ampd_coord *coord = model->coord;
    const struct ampd_load_base present = {coord->base_step, coord->begins.version, coord->begins.carry};
    AMP_ASSERT(model->core->config.shard == 0);
    AMP_ASSERT(coord->state == AMPD_COORD_CREATED);
    new_round(model);
    without_base(model, load != NULL ? load : &present, reason);
}

void ampd_sync_roll_back(struct ampd_model *model)
{
    AMP_ASSERT(model->core->config.shard == 0);
    new_round(model);
    restore_from(model, model->coord->rollback.epoch, model->coord->rollback.step, "ROLLBACK");
}

/*
 * A part cannot be used, and a memory was given up for it: the checkpoint before is taken. SYNC runs again if a shard
 * has dropped its part since it answered, as when it had completed a newer one meanwhile; and after a rollback has
 * failed.
 */
static void restore_failed(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    if (coord->rollback.state != AMPD_ROLLBACK_BEGUN && coord->restore.absent) {
        ampd_sync_start(model->core);
        return;
    }
    if (coord->rollback.state != AMPD_ROLLBACK_BEGUN) {
        restore_next(model);
        return;
    }
    bool journal = model->spec.durability == AMPD_DURABILITY_STEP;
    ampd_rollback_fail(model, AMP_EDATALOSS, "CHECKPOINT_DAMAGED",
                       journal ? "this checkpoint cannot be read; the model goes on from where it was"
                               : "this checkpoint cannot be read; the model goes on from the newest one that can");
    ampd_sync_start(model->core);
}

/*
 * A shard that has not stored the newest epoch that any checkpoint is of (*epoch). All shards had to store that epoch,
 * so this one's data directory is from before it. AMPD_NO_RANK: there is none.
 */
static uint32_t shard_of_before(const struct ampd_model *model, uint64_t *epoch)
{
    const struct ampd_coord *coord = model->coord;
    *epoch = 0;
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++) {
        const struct ampd_sync_state *sync = coord->sync.answers[k] == NULL ? NULL : &coord->sync.answers[k]->u.sync;
        for (uint32_t i = 0; sync != NULL && i < sync->checkpoints_count; i++)
            *epoch = sync->checkpoints[i].epoch > *epoch ? sync->checkpoints[i].epoch : *epoch;
    }
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++) {
        if (coord->sync.answers[k] != NULL && coord->sync.answers[k]->u.sync.highest_epoch < *epoch)
            return k;
    }
    return AMPD_NO_RANK;
}

/* The newest checkpoint that a shard knows to be durable, and of which it still knows all parts; 0: there is none. */
static uint64_t durable_checkpoint(const struct ampd_model *model, uint32_t shard)
{
    const struct ampd_coord *coord = model->coord;
    const struct ampd_sync_state *given = &coord->sync.answers[shard]->u.sync;
    uint64_t durable = given->durable_step, newest = 0;
    AMP_ASSERT(shard < AMPD_COUNT(model->core));
    if (shard == 0 && coord->checkpoint.exists && durable < coord->checkpoint.durable_step)
        durable = coord->checkpoint.durable_step;
    for (uint32_t i = 0; i < given->checkpoints_count; i++) {
        const struct ampd_checkpoint_record *record = &given->checkpoints[i];
        if (record->parts_count == AMPD_COUNT(model->core) && record->step <= durable && record->step > newest)
            newest = record->step;
    }
    return newest;
}

static bool holds_from(const struct ampd_sync_state *sync, uint64_t step)
{
    bool holds = false;
    for (uint32_t i = 0; i < sync->checkpoints_count; i++)
        holds = holds || sync->checkpoints[i].step >= step;
    return holds;
}

/*
 * A shard that holds nothing from a durable checkpoint on (*step): all shards had stored that, and drop it for a newer
 * one alone, so this one's data directory is from before it. A shard that has stored a later epoch than the one that
 * knows the checkpoint may have given it up by that. AMPD_NO_RANK: there is none.
 */
static uint32_t shard_of_before_checkpoint(const struct ampd_model *model, uint64_t *step)
{
    const struct ampd_coord *coord = model->coord;
    for (uint32_t knows = 0; knows < AMPD_COUNT(model->core); knows++) {
        if (coord->sync.answers[knows] == NULL)
            continue;
        *step = durable_checkpoint(model, knows);
        for (uint32_t k = 0; *step != 0 && k < AMPD_COUNT(model->core); k++) {
            const struct ampd_message *answer = coord->sync.answers[k];
            if (answer != NULL && answer->u.sync.highest_epoch <= coord->sync.answers[knows]->u.sync.highest_epoch &&
                !holds_from(&answer->u.sync, *step))
                return k;
        }
    }
    return AMPD_NO_RANK;
}

/*
 * Whether a shard's store is missing, or from before an epoch or a checkpoint that all have stored. Then the model is
 * refused with what to do, since a new epoch would void what the other shards hold.
 */
static bool lacks_a_store(struct ampd_model *model)
{
    uint64_t epoch, step;
    uint32_t empty = shard_without_store(model), before = shard_of_before(model, &epoch);
    uint32_t behind = shard_of_before_checkpoint(model, &step);
    if (empty != AMPD_NO_RANK)
        refuse(model,
               "shard %u does not know %s, of which other shards hold checkpoints: bring back its data directory, or, "
               "where that is lost, start it with an empty one and --epoch-above or --cluster",
               empty, model->spec.name);
    else if (before != AMPD_NO_RANK)
        refuse(
            model,
            "shard %u has a data directory from before epoch %llu of %s: bring back the right one, or, where that is "
            "lost, start it with an empty one and --epoch-above or --cluster",
            before, (unsigned long long)epoch, model->spec.name);
    else if (behind != AMPD_NO_RANK)
        refuse(model,
               "shard %u has a data directory from before checkpoint %llu of %s, which was durable: bring back the "
               "right one, or, where that is lost, start it with an empty one and --epoch-above or --cluster",
               behind, (unsigned long long)step, model->spec.name);
    else
        return false;
    return true;
}

/*
 * The row of the newest verdict beyond *decided, which becomes its step; NULL: there is none. A verdict whose storing
 * SYNC has waited for may be in no answer: shard 0 may have answered before it heard of it.
 */
static const struct ampd_step_row *newest_verdict(const struct ampd_model *model, uint64_t *decided)
{
    const struct ampd_coord *coord = model->coord;
    const struct ampd_verdict_message *own = coord->decision.verdict;
    const struct ampd_step_row *newest = NULL;
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++) {
        const struct ampd_sync_state *other = &coord->sync.answers[k]->u.sync;
        if (other->decided > *decided) {
            *decided = other->decided;
            newest = &other->last;
        }
    }
    if (own != NULL && own->row.step == coord->decided && coord->decided > *decided) {
        *decided = coord->decided;
        newest = &own->row;
    }
    return newest;
}

/*
 * Whether a shard has neither the newest verdict nor its vote on that step: its disk has lost what was synced. Such a
 * shard could only refuse the verdict each time it comes. A vote on another list, as the record of an older try, is no
 * vote on that step either.
 */
static bool lacks_its_vote(const struct ampd_model *model, uint32_t shard)
{
    AMP_ASSERT(shard < AMPD_COUNT(model->core));
    const struct ampd_sync_state *given = &model->coord->sync.answers[shard]->u.sync;
    uint64_t decided = given->decided;
    const struct ampd_step_row *newest = newest_verdict(model, &decided);
    bool voted = newest != NULL && given->voted != 0 && given->voted == newest->contributors_hash;
    bool lacks = newest != NULL && (given->decided + 1 < decided || !voted);
    if (lacks)
        ampd_out_log(model->core, AMP_LOG_ERROR, model, "shard %u has lost its vote on step %llu, which is decided",
                     shard, (unsigned long long)given->decided + 1);
    return lacks;
}

static bool must_begin_anew(const struct ampd_model *model)
{
    const struct ampd_coord *coord = model->coord;
    bool anew = coord->sync.before <= AMPD_COORD_STORING && !ampd_adopt_can(model);
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++) {
        const struct ampd_message *answer = coord->sync.answers[k];
        anew = anew || answer == NULL || answer->u.sync.lost || answer->u.sync.highest_epoch != coord->epoch;
    }
    for (uint32_t k = 0; k < AMPD_COUNT(model->core) && !anew; k++) /* all answers are there, and of one epoch */
        anew = lacks_its_vote(model, k);
    return anew;
}

/*
 * A shard has stored an epoch whose beginning this coordinator has not seen: the step and the record that the
 * coordinator knows belong to an epoch before it.
 */
static void take_epoch(struct ampd_model *model, uint64_t epoch)
{
    ampd_coord_forget_step(model);
    model->coord->epoch = epoch;
    model->coord->has_record = false;
}

/*
 * A shard that has started again on an older disk may hold its vote on the last step and not the verdict, which it had
 * applied before. The verdict goes to all again, and all say again what they have applied. A CUT at that step would
 * come before the verdict, and be dropped there: another checkpoint is wanted (ampd_checkpoints_try).
 */
static void tell_verdict_again(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    bool behind = false;
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++)
        behind = behind || coord->sync.answers[k]->u.sync.decided < coord->decided;
    if (!behind || coord->decision.state == AMPD_DECIDED_NONE)
        return;
    coord->decision.applied_bits = 0;
    coord->decision.warnings = (struct ampd_applied){0};
    struct ampd_coord_checkpoints *checkpoint = &coord->checkpoint;
    uint32_t count = checkpoint->writing_count;
    if (count > 0 && checkpoint->writing[count - 1].step == coord->decided && !coord->decision.verdict->row.cut) {
        checkpoint->writing_count--;
        checkpoint->wanted = true;
    }
    if (coord->decision.state == AMPD_DECIDED_APPLIED)
        ampd_coord_set_decision(coord, AMPD_DECIDED_APPLYING);
}

/* Decides where a model goes on, from the answers of all shards. */
static void decide(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    if (coord->state == AMPD_COORD_DELETING) {
        ampd_delete_marked(model);
        return;
    }
    coord->sync.untried = coord->sync.answers[0] == NULL ? 0 : coord->sync.answers[0]->u.sync.checkpoints_count;
    if (lacks_a_store(model))
        return;
    bool again = roll_back_again(model), anew = must_begin_anew(model);
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++) {
        if (coord->sync.answers[k] == NULL)
            ampd_epochs_create(model, k);
        else if (coord->sync.answers[k]->u.sync.highest_epoch > coord->epoch)
            take_epoch(model, coord->sync.answers[k]->u.sync.highest_epoch);
    }
    if (again) {
        coord->restore.round = model->core->sync.round;
        ampd_checkpoints_send_synced(model, ampd_sync_record_of(coord, 0, coord->rollback.epoch, coord->rollback.step));
        restore_from(model, coord->rollback.epoch, coord->rollback.step, "ROLLBACK");
    } else if (anew) {
        restore_next(model);
    } else if (coord->sync.before <= AMPD_COORD_STORING) {
        struct ampd_checkpoint_record newest = {0};
        if (!has_base(model, &newest))
            return;
        ampd_checkpoints_send_synced(model, &newest);
        ampd_adopt(model, &newest);
    } else {
        ampd_checkpoints_lost(model, coord->sync.started);
        tell_verdict_again(model);
        ampd_coord_resume(model);
    }
    if (coord->trouble[0] == 0)
        coord->sync.started = 0;
}

static bool waits_for_disks(const struct ampd_coord *coord)
{
    bool waits = coord->restore.unread != 0;
    for (uint32_t k = 0; k < AMPD_SHARDS_MAX; k++)
        waits = waits || (coord->sync.answers[k] != NULL && coord->sync.answers[k]->u.sync.waits);
    return waits;
}

bool ampd_sync_troubled(const struct ampd_model *model)
{
    const struct ampd_coord *coord = model->coord;
    return coord->trouble[0] != 0 || (coord->state <= AMPD_COORD_STORING && waits_for_disks(coord));
}

/* SYNC is over: decides on a model, unless something stands against it, which holds up this model alone. */
static void try_decide(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    if (coord->sync.misfits != 0 && coord->state != AMPD_COORD_DELETING)
        refuse(model,
               "a shard has another model under the name %s; the log of shard 0 says which, and how they differ: bring "
               "back the data directory that the shard had, and start it again",
               model->spec.name);
    else if (!waits_for_disks(coord) || coord->state == AMPD_COORD_DELETING)
        decide(model);
    else
        ampd_coord_send_state(model);
}

/*
 * Whether an answer can be about the model. A step that another shard has decided in this shard's epoch must come with
 * its row, from which it is adopted if this store lacks it (adopt.c); only the step that the epoch began from has no
 * row.
 */
static bool sync_fits(const struct ampd_model *model, const struct ampd_message *message)
{
    const struct ampd_sync_state *sync = &message->u.sync;
    if (sync->has_last && !ampd_row_fits(model, &sync->last))
        return false;
    if (sync->ready && !ampd_spec_takes_carry(&model->spec, &sync->carry))
        return false;
    if (sync->decided > AMPD_NUMBER_PEER_MAX ||
        (sync->highest_epoch > AMPD_NUMBER_PEER_MAX && sync->highest_epoch > model->coord->epoch + AMPD_FENCE_LEAP))
        return false;
    if (message->from == 0 || !sync->ready || sync->highest_epoch != ampd_local_epoch(model))
        return true;
    bool has_row = sync->has_last && sync->last.step == sync->decided && sync->last.tries > 0;
    return has_row || sync->decided == ampd_local_found(model).base_step;
}

/*
 * Whether the parts of a shard are those that this store knows as that shard's (PARTS). If not, its data are of another
 * run with the same specification: restored together, the two would be a mixture that no number tells from a model.
 */
static bool parts_fit(const struct ampd_model *model, const struct ampd_message *message, struct amp_error *error)
{
    const struct ampd_sync_state *sync = &message->u.sync;
    for (uint32_t i = 0; i < sync->checkpoints_count; i++) {
        const struct ampd_checkpoint_record *told = &sync->checkpoints[i];
        const struct ampd_checkpoint_record *known = ampd_local_checkpoint(model, told->epoch, told->step);
        if (known == NULL || known->parts_count != AMPD_COUNT(model->core) ||
            memcmp(known->parts[message->from], told->manifest, sizeof told->manifest) == 0)
            continue;
        (void)amp_error_set(error, AMP_EEXIST, NULL, "for its part of checkpoint %llu is of another run of the model",
                            (unsigned long long)told->step);
        return false;
    }
    return true;
}

void ampd_sync_answer(struct ampd_core *core, const struct ampd_message *message)
{
    AMP_ASSERT(core->config.shard == 0);
    if (message->round != core->sync.current || strcmp(message->model, message->u.sync.spec.name) != 0)
        return;
    struct ampd_model *model = ampd_core_model_named(core, message->model);
    /*
     * A model that shard 0's own answer names and that is not here has been deleted since: only another shard can know
     * a model that the coordinator does not.
     */
    if (model == NULL && message->from != 0 && core->sync.running)
        model = learn(core, &message->u.sync);
    if (model == NULL)
        return;
    struct ampd_message **told = &model->coord->sync.answers[message->from];
    bool late = !core->sync.running;
    if (late && (model->coord->state != AMPD_COORD_SYNCING || *told == NULL || !(*told)->u.sync.waits))
        return;
    struct amp_error error = {0};
    bool other =
        ampd_spec_compare(&model->spec, &message->u.sync.spec, &error) != 0 || !parts_fit(model, message, &error);
    if (other)
        ampd_bus_misfit(model, message, error.text);
    bool fits = other || sync_fits(model, message);
    if (!fits)
        ampd_bus_misfit(model, message, "");
    if (other || !fits) { /* taken as an answer, it would make the shard lose what it holds */
        model->coord->sync.misfits |= AMPD_BIT(message->from);
    } else {
        ampd_message_free(*told);
        *told = ampd_need(ampd_message_copy(message));
    }
    if (late)
        try_decide(model);
}

void ampd_sync_done(struct ampd_core *core, const struct ampd_message *message)
{
    struct ampd_sync_round *sync = &core->sync;
    AMP_ASSERT(core->config.shard == 0);
    if (!sync->running || message->round != sync->current)
        return;
    sync->done |= AMPD_BIT(message->from);
    bool started = sync->synced_with[message->from] != message->from_fence.counter;
    for (uint32_t i = 0; started && i < core->models_count; i++)
        core->models[i]->coord->sync.started |= AMPD_BIT(message->from);
    sync->synced_with[message->from] = message->from_fence.counter;
    if (sync->done != AMPD_ALL_SHARDS(core))
        return;
    sync->running = false;
    for (uint32_t i = 0; i < core->models_count; i++) {
        if (!core->models[i]->gone)
            try_decide(core->models[i]);
    }
}

/* All parts of one checkpoint have the same version, scale record and rate; else two states have the same number. */
static bool agrees(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_coord *coord = model->coord;
    const struct ampd_restore *given = &message->u.restore;
    if (coord->answered == 0 || !coord->checkpoint.exists) {
        coord->restore.result = *given;
        return true;
    }
    const struct ampd_restore *first = &coord->restore.result;
    const struct amp_scaler_state *a = &first->carry.scaler, *b = &given->carry.scaler;
    bool same = first->version == given->version && memcmp(&a->scale, &b->scale, sizeof a->scale) == 0 &&
                a->scale_id == b->scale_id && a->attempted == b->attempted && a->applied == b->applied &&
                memcmp(&first->carry.lr, &given->carry.lr, sizeof first->carry.lr) == 0;
    if (!same && first->ok && given->ok)
        ampd_out_log(model->core, AMP_LOG_ERROR, model,
                     "checkpoint %llu cannot be used: shard %u has a part of another state; taking the one before",
                     (unsigned long long)given->step, message->from);
    return same || !first->ok || !given->ok;
}

void ampd_sync_gone(struct ampd_core *core, uint32_t shard)
{
    for (uint32_t i = 0; core->config.shard == 0 && i < core->models_count; i++) {
        struct ampd_coord *coord = core->models[i]->coord;
        if (coord->state == AMPD_COORD_RESTORING || coord->state == AMPD_COORD_STORING)
            coord->answered &= ~AMPD_BIT(shard);
    }
}

void ampd_sync_restored(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_coord *coord = model->coord;
    const struct ampd_restore *restore = &message->u.restore;
    AMP_ASSERT(model->core->config.shard == 0 && message->from < AMPD_COUNT(model->core));
    if (coord->state != AMPD_COORD_RESTORING || message->round != coord->restore.round ||
        restore->epoch != coord->base_epoch || restore->step != coord->base_step ||
        (coord->answered & AMPD_BIT(message->from)) != 0)
        return;
    bool ends = restore->absent && coord->rollback.state == AMPD_ROLLBACK_BEGUN; /* another one may be chosen */
    if (restore->waits && !ends) {
        coord->restore.unread |= AMPD_BIT(message->from);
        ampd_coord_send_state(model);
        return;
    }
    coord->restore.unread &= ~AMPD_BIT(message->from);
    coord->restore.absent = coord->restore.absent || restore->absent;
    coord->restore.failed = coord->restore.failed || !restore->ok || !agrees(model, message);
    if (message->from == 0 && coord->checkpoint.exists) {
        coord->begins.version = restore->version;
        coord->begins.carry = restore->carry;
    }
    coord->answered |= AMPD_BIT(message->from);
    if (coord->answered != AMPD_ALL_SHARDS(model->core))
        return;
    if (coord->restore.failed) {
        restore_failed(model);
        return;
    }
    ampd_coord_set(model, AMPD_COORD_STORING);
    ampd_epochs_store(model);
}

/* ---- a model that a shard cannot make ---- */

void ampd_sync_not_created(struct ampd_model *model, const struct ampd_message *message)
{
    AMP_ASSERT(model->core->config.shard == 0 && message->from < AMPD_COUNT(model->core));
    if (!ampd_coord_creates(model))
        return;
    (void)snprintf(model->coord->trouble, sizeof model->coord->trouble,
                   "shard %u cannot make %s, so it is removed from all shards: %.250s; give that shard more memory, "
                   "then create the model again",
                   message->from, model->spec.name, message->u.why);
    ampd_out_log(model->core, AMP_LOG_WARN, model, "is removed: shard %u cannot make it: %s", message->from,
                 message->u.why);
    ampd_delete_begin(model);
}
