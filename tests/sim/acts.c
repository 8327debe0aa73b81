/*
 * An operator who sets the scale and the learning rate, resets the scale, evicts workers and rolls the model back; and what must hold of the rows that come of it: an
 * act is done once however often it is asked for, and follows from the record before it.
 */
#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "server/core/shard/shard.h"
#include "tests/sim/sim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAUSE_MS 300 /* of the operator, before the request is repeated */

/* ---- the operator ---- */

/* The step behind which the last act was done, if a checkpoint of it is there: a rollback to it takes just the act back. */
static uint64_t checkpoint_of_act(const struct sim *sim)
{
    const struct sim_store *store = &sim->shard[0].store;
    for (uint64_t i = 0; sim->takes_back && sim->acts_count > 0 && i < store->checkpoints_count; i++) {
        if (store->checkpoints[i].step == sim->acts[sim->acts_count - 1].step)
            return i;
    }
    return store->checkpoints_count;
}

/* The request that was answered before, word by word. */
static bool ask_again(struct sim *sim)
{
    struct sim_operator *operator= & sim->operator;
    if (!sim->takes_back || operator->done[0] == 0 || operator->type != AMPD_EVENT_ROLLBACK)
        return false;
    operator->type = operator->done_type;
    operator->scale = operator->done_scale;
    operator->lr = operator->done_lr;
    operator->asking = true;
    memset(&operator->note, 0, sizeof(operator->note));
    memcpy(operator->note.request_id, operator->done, sizeof(operator->note.request_id));
    operator->done[0] = 0;
    return true;
}

static void choose(struct sim *sim)
{
    struct sim_operator *operator= & sim->operator;
    if (ask_again(sim))
        return;
    const struct sim_store *store = &sim->shard[0].store;
    const struct amp_scaler_config *config = &sim->model.spec.scaler;
    static const enum ampd_event_type types[] = {AMPD_EVENT_SET_SCALE, AMPD_EVENT_SET_SCALE, AMPD_EVENT_RESET_SCALE,
                                                 AMPD_EVENT_ROLLBACK};
    operator->type = sim->rolls_back ? AMPD_EVENT_ROLLBACK : types[sim_below(sim, 4)];
    operator->rank = (uint32_t)sim_below(sim, sim->model.spec.world_size);
    operator->held = store->workers[operator->rank].incarnation;
    if (operator->type == AMPD_EVENT_SET_SCALE && sim_below(sim, 3) == 0)
        operator->type = AMPD_EVENT_EVICT;
    if (sim_has(sim->seed, SIM_LEAVES) && !sim->rolls_back && !sim->takes_back && sim_more(sim, 2) == 0)
        operator->type = AMPD_EVENT_EVICT;
    bool of_scale = operator->type == AMPD_EVENT_SET_SCALE || operator->type == AMPD_EVENT_RESET_SCALE;
    if (of_scale && sim_has(sim->seed, SIM_SET_RATES) && sim_more(sim, 2) == 0) {
        operator->type = AMPD_EVENT_SET_LR;
        operator->lr = sim->model.spec.lr * (double)(1 + sim_more(sim, 5)) / 4;
    }
    bool takes_back = checkpoint_of_act(sim) < store->checkpoints_count && operator->done[0] != 0;
    if (takes_back)
        operator->type = AMPD_EVENT_ROLLBACK;
    operator->scale =(float)(1u << sim_below(sim, 20));
    if (operator->scale<config->min_scale || operator->scale> config->max_scale)
        operator->scale = config->init_scale;
    if (operator->type == AMPD_EVENT_ROLLBACK && store->checkpoints_count> 0) {
        uint64_t which = takes_back ? checkpoint_of_act(sim) : sim_below(sim, store->checkpoints_count);
        operator->epoch = store->checkpoints[which].epoch;
        operator->step = store->checkpoints[which].step;
    } else if (operator->type == AMPD_EVENT_ROLLBACK) {
        operator->type = AMPD_EVENT_RESET_SCALE;
    }
    operator->left--;
    operator->asking = true;
    memset(&operator->note, 0, sizeof(operator->note));
    (void)snprintf(operator->note.request_id, sizeof(operator->note.request_id), "act-%u", operator->left);
}

/* The model is to go, whatever goes on with it; workers die, for they have nothing to train. */
static void choose_delete(struct sim *sim)
{
    struct sim_operator *operator= & sim->operator;
    sim->end = SIM_DELETING;
    operator->type = AMPD_EVENT_DELETE_MODEL;
    operator->left = 0;
    operator->asking = true;
    for (uint32_t w = 0; w < sim->model.spec.world_size; w++)
        sim_worker_end(sim, w);
    for (unsigned i = 0; i < sim->calls_end; i++) { /* a CreateModel that comes late would rightly create it anew */
        if (sim->calls[i].used && sim->calls[i].kind == SIM_CREATE && !sim->calls[i].begun)
            sim_call_close(sim, &sim->calls[i]);
    }
}

static bool delete_is_due(const struct sim *sim)
{
    const struct sim_store *store = &sim->shard[0].store;
    return sim->end == SIM_DELETES && !sim->operator.asking && store->has_model &&
           (store->last_step >= sim->delete_after || sim_is_limited(sim)) && sim->shard[SIM_ZOMBIE].core == NULL;
}

static bool stores_part(const struct sim *sim)
{
    const struct sim_shard *zero = &sim->shard[0];
    return sim_server_knows(zero) && zero->core->models[0]->shard->part.state == AMPD_PART_STORING;
}

void sim_operator_act(struct sim *sim)
{
    struct sim_operator *operator= & sim->operator;
    const struct sim_store *store = &sim->shard[0].store;
    if (delete_is_due(sim))
        choose_delete(sim);
    bool useful = store->has_model && store->last_step > 0 && store->last_step + 1 < sim->model.spec.max_steps;
    bool frozen = sim_is_frozen(sim);
    if (operator->waits || operator->pause_ms> sim->now_ms ||(!operator->asking && !frozen &&(operator->left == 0 || !useful)))
        return;
    if (!operator->asking && frozen)
        sim_floors_choose(sim);
    if (!operator->asking && sim->rolls_back && !stores_part(sim) && sim_below(sim, 8) != 0)
        return;
    if (!operator->asking)
        choose(sim);
    operator->waits = true;
    struct sim_call *call = sim_call_new(sim, SIM_ACT, 0, 0, 0);
    struct sim_message *message = sim_message_new(SIM_REQUEST);
    message->request.type = operator->type;
    (void)snprintf(message->text[0], AMPD_NAME_MAX, "%s", sim->model.spec.name);
    message->request.u.act = (struct ampd_event_act){.model = message->text[0],
                                                     .note = &operator->note,
                                                     .scale = operator->scale,
                                                     .lr = operator->lr,
                                                     .force = true,
                                                     .epoch = operator->epoch,
                                                     .step = operator->step,
                                                     .rank = operator->rank };
    amp_list_push(&call->up, &message->node);
}

/* It is gone everywhere; and after a restart of all shards too. NOT_FOUND: an answer that was lost said so before. */
static void deleted(struct sim *sim, int code, const char *text)
{
    if (code != 0 && code != AMP_ENOTFOUND)
        sim_fail(sim, SIM_ONE_ANSWER, "DeleteModel failed: %s", text);
    sim_check_gone(sim);
    sim->end = SIM_DELETED;
    for (uint32_t k = 0; k < sim->shards; k++) {
        if (sim->shard[k].core != NULL)
            sim_server_kill(sim, &sim->shard[k]);
    }
}

void sim_operator_answer(struct sim *sim, const struct sim_message *message)
{
    struct sim_operator *operator= & sim->operator;
    int code = message->error.code;
    operator->waits = false;
    if (sim->verbose)
        (void)fprintf(stderr, "%8llu operator: %s, event %d: %d %s\n",
                      (unsigned long long)sim->now_ms, operator->note.request_id, operator->type, code,
                      message->error.text);
    bool sets_scale = operator->type == AMPD_EVENT_SET_SCALE || operator->type == AMPD_EVENT_RESET_SCALE;
    bool no_help = code == AMP_EEXHAUSTED && !sets_scale && sim_is_frozen(sim);
    if (!no_help && (code == AMP_EUNAVAILABLE || code == AMP_EDEADLINE || code == AMP_EEXHAUSTED)) {
        operator->pause_ms = sim->now_ms + PAUSE_MS;
        return;
    }
    operator->asking = false;
    bool sets = operator->type == AMPD_EVENT_SET_SCALE || operator->type == AMPD_EVENT_SET_LR;
    if (code == 0 && (sets || operator->type == AMPD_EVENT_RESET_SCALE)) {
        memcpy(operator->done, operator->note.request_id, sizeof(operator->done));
        operator->done_type = operator->type;
        operator->done_scale = operator->scale;
        operator->done_lr = operator->lr;
    }
    if (sim->end == SIM_DELETING && operator->type == AMPD_EVENT_DELETE_MODEL) {
        deleted(sim, code, message->error.text);
        return;
    }
    /* The model is done, the checkpoint has been dropped or is damaged, or a rollback has taken the act back. */
    if (code != 0 && !no_help && code != AMP_ESTATE && code != AMP_ENOTFOUND && code != AMP_EDATALOSS)
        sim_fail(sim, SIM_ONE_ANSWER, "the act %s failed: %s", operator->note.request_id, message->error.text);
}

/* ---- the store ---- */

void sim_act_stored(struct sim_store *store, const struct ampd_step_row *row, uint64_t base_epoch)
{
    if (row->note.request_id[0] == 0)
        return;
    if (store->acts_count == AMPD_ACTIONS_MAX)
        memmove(store->acts, store->acts + 1, --store->acts_count * sizeof(store->acts[0]));
    struct ampd_act_record *act = &store->acts[store->acts_count++];
    *act = (struct ampd_act_record){.kind = row->kind,
                                    .epoch = row->epoch,
                                    .step = row->step,
                                    .from_step = row->from_step,
                                    .base_epoch = base_epoch,
                                    .rank = row->contributors[0].rank,
                                    .after = row->after};
    memcpy(act->request_id, row->note.request_id, sizeof(act->request_id));
}

void sim_acts_supersede(struct sim_store *store, const struct ampd_epoch_record *epoch)
{
    uint64_t kept = epoch->base_epoch == 0 ? 0 : epoch->base_step;
    for (uint32_t i = 0; i < store->acts_count; i++) {
        struct ampd_act_record *act = &store->acts[i];
        bool above = act->kind == AMPD_ROW_EPOCH ? act->step > kept : act->step >= kept;
        act->superseded = act->superseded || (act->epoch < epoch->epoch && above);
    }
}

/* ---- what must hold ---- */

static void check_change(struct sim *sim, const struct ampd_step_row *row)
{
    struct ampd_carry carry = sim->newest;
    struct amp_error error = {0};
    int rc = 0;
    if (memcmp(&row->scale, &carry.scaler.scale, sizeof(carry.scaler.scale)) != 0 || row->scale_id != carry.scaler.scale_id)
        sim_fail(sim, SIM_SCALE_HISTORY, "the act %s does not follow the record before it", row->note.request_id);
    if (row->kind == AMPD_ROW_EVICT) /* says nothing about the scale */
        rc = 0;
    else if (row->kind == AMPD_ROW_LR) /* of the next verdict, though its step may be open; nor does this */
        carry.lr = row->after.lr > 0 && row->from_step == row->step + 1 ? row->after.lr : NAN;
    else if (row->kind == AMPD_ROW_SET)
        rc = amp_scaler_set(&sim->model.spec.scaler, &carry.scaler, row->after.scaler.scale, &error);
    else
        amp_scaler_reset(&sim->model.spec.scaler, &carry.scaler);
    if (rc != 0 || !sim_same_carry(&carry, &row->after))
        sim_fail(sim, SIM_SCALE_HISTORY, "the act %s does not give this record", row->note.request_id);
}

void sim_check_act(struct sim *sim, const struct sim_shard *shard, const struct ampd_step_row *row)
{
    if (shard->index != 0) {
        for (uint32_t i = 0; i < sim->acts_count; i++) {
            const struct sim_act *act = &sim->acts[i];
            if (act->epoch == row->epoch && act->step == row->step && sim_same_carry(&act->after, &row->after) &&
                strcmp(act->request_id, row->note.request_id) == 0)
                return;
        }
        sim_fail(sim, SIM_SCALE_HISTORY, "shard %u stores an act after step %llu that shard 0 has not", shard->index,
                 (unsigned long long)row->step);
    }
    for (uint32_t i = 0; i < sim->acts_count; i++) {
        if (strcmp(sim->acts[i].request_id, row->note.request_id) == 0)
            sim_fail(sim, SIM_COUNTED_ONCE, "the act %s is done twice", row->note.request_id);
    }
    if (row->epoch != shard->store.epoch || row->step != shard->store.last_step)
        sim_fail(sim, SIM_SCALE_HISTORY, "the act %s is stored behind epoch %llu, step %llu", row->note.request_id,
                 (unsigned long long)row->epoch, (unsigned long long)row->step);
    check_change(sim, row);
    sim->newest = row->after;
    if (sim->acts_count == SIM_ACTS_MAX)
        sim_fail(sim, SIM_ITSELF, "more than %d acts", SIM_ACTS_MAX);
    struct sim_act *act = &sim->acts[sim->acts_count++];
    *act = (struct sim_act){.kind = row->kind, .epoch = row->epoch, .step = row->step, .from_step = row->from_step, .after = row->after};
    memcpy(act->request_id, row->note.request_id, sizeof(act->request_id));
}

void sim_check_acts_of(struct sim *sim, const struct sim_shard *shard, const struct ampd_step_row *row)
{
    const struct sim_store *store = &shard->store;
    for (uint32_t i = 0; i < sim->acts_count && sim_has(sim->seed, SIM_ROWS); i++) {
        const struct sim_act *act = &sim->acts[i];
        uint32_t times = 0;
        for (uint32_t j = 0; j < store->act_rows_count; j++) {
            const struct ampd_step_row *had = &store->act_rows[j];
            times += had->epoch == act->epoch && had->step == act->step && had->from_step == act->from_step &&
                             strcmp(had->note.request_id, act->request_id) == 0 && sim_same_carry(&had->after, &act->after)
                         ? 1
                         : 0;
        }
        if (act->epoch == row->epoch && act->step + 1 == row->step && times != 1)
            sim_fail(sim, SIM_ACTS, "shard %u has the row of the act %s after step %llu %u times, and stores step %llu",
                     shard->index, act->request_id, (unsigned long long)act->step, times,
                     (unsigned long long)row->step);
    }
}

/* Whether what was done behind this step is part of what the present epoch goes on from. */
static bool in_lineage(const struct sim *sim, const struct sim_act *act)
{
    uint64_t epoch = sim->shard[0].store.epoch;
    while (epoch > act->epoch) {
        if (act->step >= sim->epochs[epoch].base_step)
            return false;
        epoch = sim->epochs[epoch].base_epoch;
    }
    return epoch == act->epoch;
}

/* An eviction that was answered is stored, and its rank was nobody's when it was. */
static void check_evicted(const struct sim *sim, const struct ampd_reply *reply)
{
    const struct sim_operator *operator= & sim->operator;
    bool stored = false;
    if (operator->type != AMPD_EVENT_EVICT || reply->error.code != 0)
        return;
    for (uint32_t i = 0; i < sim->acts_count; i++)
        stored = stored || strcmp(sim->acts[i].request_id, operator->note.request_id) == 0;
    if (!stored)
        sim_fail(sim, SIM_ACTS, "the eviction %s is answered, but was not stored", operator->note.request_id);
    /* Who holds it now as when it was asked for has not joined since. */
    const struct sim_store *store = &sim->shard[0].store;
    const struct ampd_worker_record *worker = &store->workers[operator->rank];
    if (store->has_worker[operator->rank] && !worker->left && operator->held.counter != 0 &&
        ampd_incarnation_same(worker->incarnation, operator->held))
        sim_fail(sim, SIM_ACTS, "the eviction %s is answered, and rank %u is held as before", operator->note.request_id,
                 operator->rank);
}

void sim_check_act_reply(const struct sim *sim, const struct ampd_reply *reply)
{
    const struct sim_operator *operator= & sim->operator;
    const struct sim_act *act = NULL;
    bool lost = strcmp(reply->error.reason, "ACT_LOST") == 0;
    bool done = reply->error.code == 0 && (reply->kind == AMPD_REPLY_SCALE || reply->kind == AMPD_REPLY_LR);
    for (uint32_t i = 0; i < sim->acts_count; i++) {
        if (strcmp(sim->acts[i].request_id, operator->note.request_id) == 0)
            act = &sim->acts[i];
    }
    check_evicted(sim, reply);
    if (!lost && !done)
        return;
    if (act == NULL)
        sim_fail(sim, SIM_ACTS, "the act %s is answered, but was not stored", operator->note.request_id);
    if (done != in_lineage(sim, act))
        sim_fail(sim, SIM_ACTS, "the act %s after epoch %llu, step %llu is told to be %s in epoch %llu",
                 operator->note.request_id, (unsigned long long)act->epoch, (unsigned long long)act->step,
                 done ? "done" : "lost", (unsigned long long)sim->shard[0].store.epoch);
}

/*
 * What is in force when a step opens: that of the row before, or of the last act that says so. One on the learning rate says nothing
 * about the scale, and counts while the scale that was set before it does not yet.
 */
const struct ampd_carry *sim_act_in_force(const struct sim *sim, uint64_t epoch, uint64_t step)
{
    const struct ampd_carry *found = NULL;
    for (uint32_t i = 0; i < sim->acts_count; i++) {
        const struct sim_act *act = &sim->acts[i];
        if (act->kind != AMPD_ROW_LR && act->epoch == epoch && act->step + 1 == step && act->from_step <= step)
            found = &act->after;
    }
    return found;
}
