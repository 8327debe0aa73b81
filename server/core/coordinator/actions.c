/*
 * What operators do to the scale, the learning rate and to workers: SetScale, ResetScale, SetLearningRate and
 * EvictWorker, and the request ids by which an action is done once however often it is asked for. In the code "act" is
 * short for such an action.
 *
 * An action is a row of the history behind that of the last decided step, stored before it is answered. A step that is
 * open goes on with the scale that its gradients carry; its verdict then moves the counts of the record and not the
 * scale, since it says nothing about the new scale (amp_scaler_count). So each row still follows from the one before
 * it. An action that comes while a verdict is being stored waits until that is stored: only then is it known whether
 * the next step opened with the verdict, and so which step is the first with the new scale.
 *
 * SetLearningRate sets the base rate, which a step takes at its verdict. So the open step has the new rate already, and
 * so has a verdict that is made while the action's row is being stored: that verdict's row comes behind it.
 *
 * EvictWorker ends a lease as a Leave of the worker does, by the same write, and its row changes nothing of the scale.
 * The row is stored behind that write. After a crash between the two the rank has no worker, and the operator has had
 * no answer: the same request, repeated, stores the row then.
 *
 * The other shards store the same rows. An action is sent to them (ACTS) once shard 0 has stored it, and again with the
 * next verdict and in each new session, so that no crash leaves one out. A store keeps an action once, however often it
 * comes.
 */
#include "server/core/coordinator/actions.h"

#include "base/assert.h"
#include "server/core/base/calls.h"
#include "server/core/base/local.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/rollback.h"
#include "server/core/coordinator/workers.h"
#include "server/core/model/spec.h"
#include "server/core/wire/action_rows.h"
#include "server/core/wire/bus.h"
#include "server/core/wire/verdict_rows.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

/* ---- request ids ---- */

_Static_assert(AMPD_ACTIONS_MAX >= AMPD_ACTIONS_WAIT_MAX, "a repeated request is known while its action waits");

void ampd_actions_remember(struct ampd_coord *coord, const struct ampd_act_record *act)
{
    if (coord->actions.known_count == AMPD_ACTIONS_MAX)
        memmove(coord->actions.known, coord->actions.known + 1,
                --coord->actions.known_count * sizeof coord->actions.known[0]);
    coord->actions.known[coord->actions.known_count++] = *act;
}

static const struct ampd_act_record *find_known(const struct ampd_coord *coord, const char *request_id)
{
    for (uint32_t i = 0; request_id[0] != 0 && i < coord->actions.known_count; i++) {
        if (strcmp(coord->actions.known[i].request_id, request_id) == 0)
            return &coord->actions.known[i];
    }
    return NULL;
}

static bool same_act(const struct ampd_act_record *known, const struct ampd_event_act *act, enum ampd_row_kind kind)
{
    if (known->kind != kind)
        return false;
    if (kind == AMPD_ROW_EPOCH)
        return known->base_epoch == act->epoch && known->step == act->step;
    if (kind == AMPD_ROW_EVICT)
        return known->rank == act->rank;
    if (kind == AMPD_ROW_LR)
        return known->after.lr == act->lr;
    return kind == AMPD_ROW_RESET || known->after.scaler.scale == act->scale;
}

/* Answers a request whose row is stored. */
static void answer(struct ampd_core *core, uint64_t id, const struct ampd_act_record *act)
{
    if (act->kind == AMPD_ROW_EVICT) {
        ampd_call_reply(core, id, AMPD_REPLY_EVICT)->u.nobody = act->nobody;
    } else if (act->kind == AMPD_ROW_LR) {
        struct ampd_reply *reply = ampd_call_reply(core, id, AMPD_REPLY_LR);
        reply->u.lr.lr = act->after.lr;
        reply->u.lr.from_step = act->from_step;
    } else {
        struct ampd_reply *reply = ampd_call_reply(core, id, AMPD_REPLY_SCALE);
        reply->u.scale.record = act->after.scaler;
        reply->u.scale.from_step = act->from_step;
    }
}

static const char *what_is_set(enum ampd_row_kind kind)
{
    return kind == AMPD_ROW_LR ? "learning rate" : "scale";
}

static double value_set(const struct ampd_act_record *act)
{
    return act->kind == AMPD_ROW_LR ? act->after.lr : (double)act->after.scaler.scale;
}

/* Digits with which a log shows it: a scale is fp32, and a rate has those that an operator may have given. */
static int digits_of(enum ampd_row_kind kind)
{
    return kind == AMPD_ROW_LR ? DBL_DIG : FLT_DECIMAL_DIG;
}

/* A request that was done before is answered. */
bool ampd_actions_known(struct ampd_model *model, uint64_t id, const struct ampd_event_act *act,
                        enum ampd_row_kind kind)
{
    const struct ampd_act_record *known = find_known(model->coord, act->note->request_id);
    if (known == NULL)
        return false;
    if (!same_act(known, act, kind)) {
        ampd_call_fail(model->core, id, model, AMP_EINVAL, "REQUEST_ID_USED",
                       "request_id: %s was that of another request; give each request its own", act->note->request_id);
    } else if (kind == AMPD_ROW_EPOCH) {
        struct ampd_reply *reply = ampd_call_reply(model->core, id, AMPD_REPLY_ROLLBACK);
        reply->u.rollback.epoch = known->epoch;
        reply->u.rollback.step = known->step + 1;
    } else if (known->superseded && kind != AMPD_ROW_EVICT) { /* a rollback brings no worker back */
        ampd_call_fail(
            model->core, id, model, AMP_ESTATE, "ACT_LOST",
            "the %s was set after step %llu of epoch %llu, which was rolled back; ask again under another id",
            what_is_set(kind), (unsigned long long)known->step, (unsigned long long)known->epoch);
    } else {
        answer(model->core, id, known);
    }
    return true;
}

static bool is_under_way(const struct ampd_model *model, const char *request_id)
{
    const struct ampd_coord *coord = model->coord;
    for (uint32_t i = coord->actions.placed; i < coord->actions.count; i++) {
        if (strcmp(coord->actions.waiting[i].note.request_id, request_id) == 0)
            return true;
    }
    AMP_LIST_EACH(it, next, &model->core->pendings)
    {
        const struct ampd_pending *pending = AMP_CONTAINER(it, struct ampd_pending, node);
        if (pending->kind == AMPD_PERSIST_ACT && pending->model == model &&
            strcmp(pending->act.request_id, request_id) == 0)
            return true;
    }
    return false;
}

/* A request is answered when its row is stored; one that repeats it before that is asked to come again. */
static bool being_stored(struct ampd_model *model, uint64_t id, const char *request_id)
{
    if (request_id[0] == 0 || !is_under_way(model, request_id))
        return false;
    ampd_call_fail(model->core, id, model, AMP_EUNAVAILABLE, "RECOVERING",
                   "this request is being stored; ask again in a moment");
    return true;
}

/* ---- SetScale, ResetScale, SetLearningRate ---- */

/* The base rate before an action that is being placed: that of the row before its own. */
static double rate_before(const struct ampd_model *model, uint32_t i)
{
    const struct ampd_coord *coord = model->coord;
    return ampd_spec_base_lr(&model->spec, i > 0 ? &coord->actions.waiting[i - 1].after : &coord->carry);
}

/*
 * The place is behind the last decided step. The first step that opens afterwards has the scale, for none opens before
 * the row is stored. A learning rate is that of the next verdict, whether its step is open or not.
 */
void ampd_actions_place(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    AMP_ASSERT(model->core->config.shard == 0);
    if (coord->step.state == AMPD_STEP_VOTED)
        return;
    bool open = ampd_coord_was_open(coord);
    for (; coord->actions.placed < coord->actions.count; coord->actions.placed++) {
        struct ampd_action *act = &coord->actions.waiting[coord->actions.placed];
        act->from_step = coord->decided + 1 + (open && act->kind != AMPD_ROW_LR ? 1 : 0);
        ampd_action_row_persist(model, coord->actions.calls[coord->actions.placed], act,
                                act->kind == AMPD_ROW_LR ? rate_before(model, coord->actions.placed) : 0, coord->epoch,
                                coord->decided);
    }
}

static int change_lr(const struct ampd_model *model, double lr, struct ampd_carry *after, struct amp_error *error)
{
    if (model->spec.schedule == AMPD_SCHEDULE_WORKER)
        return amp_error_set(error, AMP_ESTATE, "WORKERS_GIVE_RATE",
                             "%s has schedule WORKER: each push gives the rate of its step; change it in the workers",
                             model->spec.name);
    /* A rate that is 0 as fp32 would end learning unnoticed. Both bounds may be given as the message prints them. */
    if (!(lr >= (double)FLT_TRUE_MIN) || !ampd_spec_takes_lr(lr))
        return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD",
                             "learning_rate: %g is not possible; give a number from %g to %g", lr, (double)FLT_TRUE_MIN,
                             (double)FLT_MAX);
    after->lr = lr;
    return 0;
}

static int change(const struct ampd_model *model, const struct ampd_event_act *event, struct ampd_action *act,
                  struct amp_error *error)
{
    if (act->kind == AMPD_ROW_EVICT)
        return 0;
    if (act->kind == AMPD_ROW_RESET) {
        amp_scaler_reset(&model->spec.scaler, &act->after.scaler);
        return 0;
    }
    if (act->kind == AMPD_ROW_LR)
        return change_lr(model, event->lr, &act->after, error);
    int rc = amp_scaler_set(&model->spec.scaler, &act->after.scaler, event->scale, error);
    if (rc != 0)
        memcpy(error->reason, "INVALID_FIELD", sizeof "INVALID_FIELD");
    return rc;
}

void ampd_actions_do(struct ampd_core *core, uint64_t id, const struct ampd_event_act *event, enum ampd_row_kind kind)
{
    struct ampd_model *model = ampd_core_coordinated(core, id, event->model);
    if (model == NULL || ampd_actions_known(model, id, event, kind) || being_stored(model, id, event->note->request_id))
        return;
    struct ampd_coord *coord = model->coord;
    struct ampd_action act = {.kind = kind,
                              .rank = event->rank,
                              .scale = coord->newest.scaler.scale,
                              .scale_id = coord->newest.scaler.scale_id,
                              .after = coord->newest,
                              .version = coord->version,
                              .durable_step = coord->checkpoint.durable_step,
                              .note = *event->note,
                              .at_us = core->utc_us};
    struct amp_error error = {0};
    if (coord->state == AMPD_COORD_FINISHING || coord->state == AMPD_COORD_DONE) {
        ampd_call_fail(core, id, model, AMP_ESTATE, "MODEL_DONE", "%s is done after step %llu: no step will follow",
                       model->spec.name, (unsigned long long)coord->decided);
        return;
    }
    if (change(model, event, &act, &error) != 0) {
        ampd_call_fail_with(core, id, model, &error);
        return;
    }
    if (kind == AMPD_ROW_EVICT && !ampd_workers_may_evict(model, id, event->rank))
        return;
    /* The last place is for what can make a model that is frozen go on, and so empty all of them. */
    uint32_t needed = kind == AMPD_ROW_SET || kind == AMPD_ROW_RESET ? 1 : 2;
    if (coord->actions.count + needed > AMPD_ACTIONS_WAIT_MAX ||
        ampd_call_begin(core, id, AMPD_CALL_UNARY, model) == NULL) {
        ampd_call_fail(
            core, id, model, AMP_EEXHAUSTED, "TOO_MANY_CALLS",
            "%u actions of operators wait for the next step, or too many calls for this server; try again then",
            coord->actions.count);
        return;
    }
    coord->newest = act.after;
    coord->actions.calls[coord->actions.count] = id;
    coord->actions.waiting[coord->actions.count++] = act;
    coord->actions.storing++;
    /* Done at once, while the row may wait for a verdict: the answer must not come before the eviction is done. */
    if (kind == AMPD_ROW_EVICT)
        coord->actions.waiting[coord->actions.count - 1].nobody = !ampd_workers_evict(model, event->rank, event->note);
    ampd_actions_place(model);
}

/* The next step opens, or a rollback begins, if only actions that were not stored stood in the way. */
static void go_on(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    if (coord->actions.storing > 0)
        return;
    ampd_coord_ranks(model);
    ampd_rollback_try(model);
}

/* How many of the actions since the last verdict are stored: all but the newest actions.storing. */
static uint32_t stored_count(const struct ampd_coord *coord)
{
    return coord->actions.count > coord->actions.storing ? coord->actions.count - coord->actions.storing : 0;
}

static void send_acts(struct ampd_model *model, uint32_t shard, const struct ampd_action *acts, uint32_t count)
{
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_ACTS, shard);
    AMP_ASSERT(shard < AMPD_COUNT(model->core));
    message->u.acts.step = model->coord->decided;
    message->u.acts.count = count;
    memcpy(message->u.acts.acts, acts, count * sizeof *acts);
    ampd_bus_send_take(model->core, message);
}

void ampd_actions_resend(struct ampd_model *model, uint32_t shard)
{
    uint32_t count = stored_count(model->coord);
    if (shard != 0 && count > 0)
        send_acts(model, shard, model->coord->actions.waiting, count);
}

void ampd_actions_stored(struct ampd_model *model, const struct ampd_pending *pending)
{
    struct ampd_coord *coord = model->coord;
    if (model->core->config.shard != 0)
        return; /* an action that shard 0 has sent: nothing waits for it here */
    AMP_ASSERT(coord->actions.storing > 0);
    coord->actions.storing--;
    bool was_frozen = ampd_coord_is_frozen(model);
    coord->carry = pending->act.after;
    ampd_actions_remember(coord, &pending->act);
    if (pending->act.kind != AMPD_ROW_EVICT)
        ampd_out_log(model->core, AMP_LOG_INFO, model, "the %s is %.*g from step %llu on, set by hand",
                     what_is_set(pending->act.kind), digits_of(pending->act.kind), value_set(&pending->act),
                     (unsigned long long)pending->act.from_step);
    if (ampd_call_find(model->core, pending->call) != NULL)
        answer(model->core, pending->call, &pending->act);
    uint32_t count = stored_count(coord); /* 0: the action goes with the verdict that is being stored */
    for (uint32_t k = AMPD_COUNT(model->core); count > 0 && k-- > 1;)
        send_acts(model, k, &coord->actions.waiting[count - 1], 1);
    struct ampd_output *output = ampd_out(model->core, AMPD_OUT_NOTIFY, 0);
    struct ampd_step_row *row = ampd_need(calloc(1, sizeof *row));
    row->kind = pending->act.kind;
    row->epoch = pending->act.epoch;
    row->step = pending->act.step;
    row->after = pending->act.after;
    output->u.notify.model = model->index;
    output->u.notify.row = ampd_out_own(model->core, row);
    /* Else the state follows: when SYNC is over, or the model waits for its workers. */
    if (was_frozen && !ampd_coord_is_frozen(model) &&
        (coord->state == AMPD_COORD_WAITING || ampd_coord_has_steps(coord)))
        ampd_coord_send_state(model);
    go_on(model);
}

/* ---- on their way with a verdict ---- */

void ampd_actions_take(struct ampd_coord *coord, struct ampd_verdict_message *verdict)
{
    AMP_ASSERT(coord->actions.placed == coord->actions.count);
    verdict->acts_count = coord->actions.count;
    memcpy(verdict->acts, coord->actions.waiting, coord->actions.count * sizeof coord->actions.waiting[0]);
    ampd_actions_forget(coord);
}

void ampd_actions_forget(struct ampd_coord *coord)
{
    coord->actions.count = 0;
    coord->actions.placed = 0;
}

/* ---- a coordinator that starts, and goes on in the epoch ---- */

static void drop_oldest(struct ampd_action *acts, uint32_t *count)
{
    memmove(acts, acts + 1, --*count * sizeof *acts);
}

static void put_back(const struct ampd_step_row *row, struct ampd_action *acts, uint32_t *count)
{
    if (*count == AMPD_ACTIONS_WAIT_MAX) /* an older program may have stored more of them behind one step */
        drop_oldest(acts, count);
    acts[(*count)++] = (struct ampd_action){.kind = row->kind,
                                            .from_step = row->from_step,
                                            .rank = row->contributors[0].rank,
                                            .scale = row->scale,
                                            .scale_id = row->scale_id,
                                            .after = row->after,
                                            .version = row->version,
                                            .durable_step = row->durable_step,
                                            .note = row->note,
                                            .at_us = row->at_us};
}

/*
 * Puts back the actions behind the last decided step, and those that were sent with its verdict: other shards may have
 * neither.
 */
void ampd_actions_found(struct ampd_model *model, const struct ampd_model_record *record)
{
    struct ampd_coord *coord = model->coord;
    if (model->core->config.shard != 0 || record->rows_count == 0)
        return;
    uint64_t decided = record->rows[record->rows_count - 1].step;
    coord->decision.verdict = ampd_need(calloc(1, sizeof *coord->decision.verdict));
    coord->decision.verdict->row.step = decided;
    for (uint32_t i = 0; i < record->rows_count; i++) {
        const struct ampd_step_row *row = &record->rows[i];
        if (row->kind != AMPD_ROW_STEP && row->step == decided)
            put_back(row, coord->actions.waiting, &coord->actions.count);
        else if (row->kind != AMPD_ROW_STEP && row->step + 1 == decided)
            put_back(row, coord->decision.verdict->acts, &coord->decision.verdict->acts_count);
    }
    const struct ampd_action *last =
        coord->actions.count > 0 ? &coord->actions.waiting[coord->actions.count - 1] : NULL;
    if (coord->actions.count == AMPD_ACTIONS_WAIT_MAX && ampd_floor_stops(&model->spec, &last->after.scaler))
        drop_oldest(coord->actions.waiting, &coord->actions.count); /* a scale needs a place: else no step opens */
    coord->actions.placed = coord->actions.count;
}

/* ---- a new epoch ---- */

/*
 * Actions behind the base step are lost with what followed it, since a checkpoint holds the record of its step's
 * verdict. As in the store, that is so from the moment at which shard 0 has stored the epoch, whether or not all shards
 * come to store it. An epoch without a checkpoint keeps no action, whatever its base step.
 */
void ampd_local_epoch_began(struct ampd_model *model, uint64_t new_epoch, uint64_t base_epoch, uint64_t base_step)
{
    struct ampd_coord *coord = model->coord;
    uint64_t kept = base_epoch == 0 ? 0 : base_step;
    AMP_ASSERT(model->core->config.shard == 0);
    for (uint32_t i = 0; i < coord->actions.known_count; i++) {
        struct ampd_act_record *act = &coord->actions.known[i];
        bool epoch = act->kind == AMPD_ROW_EPOCH;
        bool above = epoch ? act->step > kept : act->step >= kept;
        if (act->superseded || act->epoch >= new_epoch || !above)
            continue;
        act->superseded = true;
        if (!epoch && act->kind != AMPD_ROW_EVICT)
            ampd_out_log(model->core, AMP_LOG_WARN, model,
                         "the %s %.*g that was set by hand after step %llu is lost: epoch %llu begins at step %llu",
                         what_is_set(act->kind), digits_of(act->kind), value_set(act), (unsigned long long)act->step,
                         (unsigned long long)new_epoch, (unsigned long long)base_step);
    }
}
