/*
 * A shard's journal of votes, with `durability: step` (docs/step-protocol.md sections 2 and 6).
 *
 * Before a shard votes, the I/O layer writes and syncs a record of the vote: the contributors, what the vote says, the
 * user states, and the gradient g. If the shard itself has found an overflow, the record has no g, for no verdict can
 * need it. VOTE is sent when the record is synced, unless another try has come meanwhile.
 *
 * A shard that starts reads its newest checkpoint. Then it applies g of each step that, by the rows of its store, was
 * decided after the checkpoint, which gives the same bits as before. One more record may be there: a vote without a
 * verdict. The shard is in that try again, VOTED, with slots that count as PRESENT though their bytes are gone. A
 * verdict on it is applied with g of the journal. An OPEN that lists the same workers keeps the vote; any other OPEN
 * drops it, and the workers push again.
 *
 * If a decided step is missing in the journal, or the checkpoint is damaged, the memory is LOST, as without a journal.
 *
 * The rows are kept while the epoch lasts, so that the same can be done without a start, when a RESTORE has taken the
 * memory and no epoch has followed (memory.c). There are at most as many rows as records in the journal.
 */
#include "server/core/shard/journal.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/failpoint.h"
#include "server/core/base/calls.h"
#include "server/core/base/limits.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/model/metrics.h"
#include "server/core/model/spec.h"
#include "server/core/model/tensors.h"
#include "server/core/shard/bulk.h"
#include "server/core/shard/memory.h"
#include "server/core/shard/push.h"
#include "server/core/shard/shard.h"
#include "server/core/shard/sync_answer.h"
#include "server/core/shard/vote.h"
#include "server/core/wire/findings.h"
#include "server/core/wire/verdict_rows.h"

#include <stdlib.h>
#include <string.h>

#define NOTES_VERSION 1
#define NOTES_WITH_LR 2 /* schedule WORKER: a double after the head */
/* Added to these where a worker has sent a loss or a metric: the vote's metrics before the contributors. */
#define NOTES_WITH_METRICS 4
#define NOTES_MAX          ((size_t)64 << 20) /* as storage/vote_journal.h */

/*
 * The format of notes: this head; with NOTES_WITH_LR the learning rate that all contributors have given; with
 * NOTES_WITH_METRICS the vote's loss and metrics; then contributors, overflow rows (those of shared parameters last),
 * subtrees, a bit for each parameter that is absent from all contributors, and user states.
 */
struct notes_head {
    uint32_t version, contributors_count;
    uint64_t unused, scale_id, hash; /* unused: 0, or anything in what an older program has written */
    uint64_t overflow_params, inf_total, nan_total, subtrees_count;
    uint32_t rows_count, parameters;
    float scale, coefficient;
    uint32_t empty, shared_count; /* shared_count is 0 in what an older program has written */
};

struct notes_contributor {
    uint32_t rank, dtype;
    uint64_t fence, counter;
    float weight;
    uint32_t state_size;
};

static bool journals(const struct ampd_model *model)
{
    return model->spec.durability == AMPD_DURABILITY_STEP;
}

/*
 * The version of a model's notes. Without schedule WORKER, loss and metrics it is the first, which every program reads.
 */
static uint32_t notes_version(const struct ampd_model *model, bool has_metrics)
{
    uint32_t version = model->spec.schedule == AMPD_SCHEDULE_WORKER ? NOTES_WITH_LR : NOTES_VERSION;
    return has_metrics ? version + NOTES_WITH_METRICS : version;
}

/* ---- writing ---- */

static void put(struct amp_buf *buf, const void *data, size_t size)
{
    AMP_NEED(amp_buf_append(buf, data, size) == 0);
}

static void put_contributors(const struct ampd_model *model, struct amp_buf *buf)
{
    const struct ampd_close *close = &model->shard->step.close;
    for (uint32_t i = 0; i < close->contributors_count; i++) {
        const struct ampd_contributor *from = &close->contributors[i];
        const struct ampd_slot *slot = &model->shard->slots[from->rank];
        struct notes_contributor to = {
            .rank = from->rank,
            .dtype = (uint32_t)slot->dtype,
            .fence = from->incarnation.fence,
            .counter = from->incarnation.counter,
            .weight = from->weight,
            .state_size = slot->user_state_size,
        };
        put(buf, &to, sizeof to);
    }
}

static void put_notes(const struct ampd_model *model, const struct ampd_vote *vote, struct amp_buf *buf)
{
    const struct ampd_open_step *step = &model->shard->step;
    bool has_metrics = vote->metrics.loss_workers > 0 || vote->metrics.count > 0;
    struct notes_head head = {
        .version = notes_version(model, has_metrics),
        .contributors_count = step->close.contributors_count,
        .scale_id = step->open.scale_id,
        .hash = step->hash,
        .overflow_params = vote->overflow_params,
        .inf_total = vote->inf_total,
        .nan_total = vote->nan_total,
        .subtrees_count = vote->subtrees_count,
        .rows_count = vote->rows_count,
        .parameters = model->spec.parameters_count,
        .scale = step->open.scale,
        .coefficient = step->close.coefficient,
        .empty = step->close.empty,
        .shared_count = vote->shared_count,
    };
    put(buf, &head, sizeof head);
    if (model->spec.schedule == AMPD_SCHEDULE_WORKER) {
        AMP_ASSERT(head.contributors_count > 0);
        const struct ampd_slot *slot = &model->shard->slots[step->close.contributors[0].rank];
        put(buf, &slot->lr, sizeof slot->lr);
    }
    if (has_metrics)
        put(buf, &vote->metrics, sizeof vote->metrics);
    put_contributors(model, buf);
    put(buf, vote->rows, vote->rows_count * sizeof vote->rows[0]);
    if (vote->shared_count > 0)
        put(buf, vote->shared, vote->shared_count * sizeof vote->shared[0]);
    if (vote->subtrees_count > 0)
        put(buf, vote->subtrees, vote->subtrees_count * sizeof vote->subtrees[0]);
    for (uint32_t p = 0; p < head.parameters; p += 8) {
        uint8_t bits = 0;
        for (uint32_t i = 0; i < 8 && p + i < head.parameters; i++)
            bits |= (uint8_t)((ampd_vote_absent(model, p + i) ? 1 : 0) << i);
        put(buf, &bits, 1);
    }
    for (uint32_t i = 0; i < step->close.contributors_count; i++) {
        const struct ampd_slot *slot = &model->shard->slots[step->close.contributors[i].rank];
        if (slot->user_state_size > 0)
            put(buf, slot->user_state, slot->user_state_size);
    }
}

void ampd_shard_journal_vote(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    struct ampd_vote *vote = ampd_need(calloc(1, sizeof *vote));
    struct amp_buf notes;
    AMP_ASSERT(shard->journal.token == 0); /* one at a time */
    AMP_FAILPOINT("journal.order");
    ampd_vote_fill(model, vote);
    amp_buf_init(&notes, NOTES_MAX);
    put_notes(model, vote, &notes);
    shard->journal.token = ++model->core->last_token;
    shard->journal.key = (struct ampd_vote_journal_key){.epoch = shard->epoch,
                                                        .step = shard->step.open.step,
                                                        .fence = shard->step.fence,
                                                        .try_number = shard->step.open.try_number};
    bool has_g = !ampd_vote_overflows(vote) && !shard->step.close.empty && model->tensors.count > 0;
    struct ampd_output *output = ampd_out(model->core, AMPD_OUT_JOURNAL, 0);
    output->u.journal = (struct ampd_vote_journal_order){
        .token = shard->journal.token,
        .model = model->spec.name,
        .key = shard->journal.key,
        .notes = ampd_out_own(model->core, notes.data),
        .notes_size = notes.size,
        .g = has_g ? model->tensors.g : NULL,
        .elements = has_g ? model->tensors.count * model->layout->block_elements : 0,
    };
    free(vote->subtrees);
    free(vote->shared);
    free(vote);
}

bool ampd_shard_journal_wanted(const struct ampd_model *model)
{
    const struct ampd_shard *shard = model->shard;
    const struct ampd_vote_journal_key *key = &shard->journal.key;
    const struct ampd_open_step *step = &shard->step;
    return step->state == AMPD_STEP_CLOSED && key->epoch == shard->epoch && key->step == step->open.step &&
           key->fence == step->fence && key->try_number == step->open.try_number;
}

void ampd_shard_journal_stored(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    shard->journal.token = 0;
    bool wanted = ampd_shard_journal_wanted(model);
    AMP_FAILPOINT("journal.stored");
    if (wanted) {
        ampd_shard_voted(model);
        return;
    }
    for (uint64_t local = 0; local < model->tensors.count; local++)
        ampd_shard_try_block(model, local); /* g may be written again */
    ampd_shard_try_vote(model);
    ampd_memory_try_restore(model);
}

void ampd_shard_journal_prune(struct ampd_model *model, uint64_t step)
{
    if (!journals(model))
        return;
    struct ampd_output *output = ampd_out(model->core, AMPD_OUT_JOURNAL_PRUNE, 0);
    output->u.journal_prune.model = model->spec.name;
    output->u.journal_prune.epoch = model->shard->epoch;
    output->u.journal_prune.step = step;
}

/* ---- reading ---- */

/* What the notes of a record say. All pointers point into them. */
struct notes {
    struct notes_head head;
    double lr; /* learning rate of the step with schedule WORKER, else 0 */
    struct ampd_metrics metrics;
    const uint8_t *contributors, *rows, *shared, *subtrees, *absent, *states;
    uint64_t states_size;
};

/* Takes `count` items off what is left; NULL if there are fewer. */
static const uint8_t *take(const uint8_t **at, uint64_t *left, uint64_t count, size_t size)
{
    if (count > *left / size)
        return NULL;
    const uint8_t *taken = *at;
    *at += count * size;
    *left -= count * size;
    return taken;
}

static bool take_lr(const uint8_t **at, uint64_t *left, double *lr)
{
    const uint8_t *bytes = take(at, left, 1, sizeof *lr);
    if (bytes != NULL)
        memcpy(lr, bytes, sizeof *lr);
    return bytes != NULL && ampd_spec_takes_lr(*lr);
}

static bool take_metrics(const uint8_t **at, uint64_t *left, uint32_t contributors_count, struct ampd_metrics *metrics)
{
    const uint8_t *bytes = take(at, left, 1, sizeof *metrics);
    if (bytes != NULL)
        memcpy(metrics, bytes, sizeof *metrics);
    return bytes != NULL && ampd_metrics_fit(metrics, contributors_count);
}

static struct notes_contributor contributor_at(const struct notes *notes, uint32_t i)
{
    struct notes_contributor contributor;
    memcpy(&contributor, notes->contributors + i * sizeof contributor, sizeof contributor);
    return contributor;
}

/* Reads the notes of a record. False: they are not of this model, or of a newer program. */
static bool read_notes(const struct ampd_model *model, const struct ampd_event_replayed *event, struct notes *notes)
{
    const uint8_t *at = event->notes;
    uint64_t left = event->notes_size;
    const uint8_t *head = take(&at, &left, 1, sizeof notes->head);
    if (head == NULL)
        return false;
    memcpy(&notes->head, head, sizeof notes->head);
    const struct notes_head *h = &notes->head;
    bool has_metrics = h->version == notes_version(model, true);
    if ((!has_metrics && h->version != notes_version(model, false)) || h->parameters != model->spec.parameters_count ||
        h->contributors_count > model->spec.world_size || h->rows_count > AMPD_OVERFLOW_ROWS_MAX ||
        h->shared_count > AMPD_SHARED_ROWS_MAX)
        return false;
    notes->lr = 0;
    notes->metrics = (struct ampd_metrics){0};
    if (model->spec.schedule == AMPD_SCHEDULE_WORKER && !take_lr(&at, &left, &notes->lr))
        return false;
    if (has_metrics && !take_metrics(&at, &left, h->contributors_count, &notes->metrics))
        return false;
    notes->contributors = take(&at, &left, h->contributors_count, sizeof(struct notes_contributor));
    notes->rows = take(&at, &left, h->rows_count, sizeof(struct ampd_overflow_row));
    notes->shared = take(&at, &left, h->shared_count, sizeof(struct ampd_overflow_row));
    notes->subtrees = take(&at, &left, h->subtrees_count, sizeof(struct ampd_subtree));
    notes->absent = take(&at, &left, (h->parameters + 7) / 8, 1);
    if (notes->contributors == NULL || notes->rows == NULL || notes->shared == NULL || notes->subtrees == NULL ||
        notes->absent == NULL)
        return false;
    notes->states = at;
    notes->states_size = left;
    uint64_t states = 0;
    for (uint32_t i = 0; i < h->contributors_count; i++) {
        struct notes_contributor contributor = contributor_at(notes, i);
        if (contributor.rank >= model->spec.world_size || contributor.state_size > AMPD_USER_STATE_MAX)
            return false;
        states += contributor.state_size;
    }
    return states == left;
}

/* A copy of the user state of contributor i; the caller owns it. */
static struct ampd_bytes state_at(const struct notes *notes, uint32_t i)
{
    uint64_t offset = 0;
    for (uint32_t j = 0; j < i; j++)
        offset += contributor_at(notes, j).state_size;
    uint32_t size = contributor_at(notes, i).state_size;
    return (struct ampd_bytes){ampd_need(ampd_copy(notes->states + offset, size)), size};
}

static struct ampd_plan *given_plan(struct ampd_model *model, const struct notes *notes)
{
    struct ampd_plan *plan = ampd_need(ampd_plan_new(&model->tensors, 0));
    plan->given = true;
    plan->given_absent = ampd_need(ampd_copy(notes->absent, (model->spec.parameters_count + 7) / 8));
    plan->spec = &model->spec;
    plan->saturate = model->spec.cast_overflow == AMPD_CAST_SATURATE;
    return plan;
}

/* ---- a vote without a verdict ---- */

static void hold_slot(struct ampd_model *model, const struct notes *notes, uint32_t i)
{
    struct notes_contributor from = contributor_at(notes, i);
    struct ampd_slot *slot = &model->shard->slots[from.rank];
    struct ampd_bytes state = state_at(notes, i);
    slot->has_header = true;
    slot->incarnation = (struct ampd_incarnation){from.fence, from.counter};
    slot->dtype = (enum amp_dtype)from.dtype;
    slot->weight = from.weight;
    slot->lr = notes->lr;
    slot->ended = true;
    slot->complete = true;
    slot->user_state = state.data;
    slot->user_state_size = state.size;
    slot->present = model->tensors.count;
    memset(slot->states, AMPD_BLOCK_PRESENT, model->tensors.count);
}

static void hold_vote(struct ampd_model *model, const struct notes *notes)
{
    const struct ampd_open_step *step = &model->shard->step;
    struct ampd_vote *vote = ampd_need(calloc(1, sizeof *vote));
    vote->step = step->open.step;
    vote->contributors_hash = notes->head.hash;
    vote->overflow_params = notes->head.overflow_params;
    vote->inf_total = notes->head.inf_total;
    vote->nan_total = notes->head.nan_total;
    vote->rows_count = notes->head.rows_count;
    memcpy(vote->rows, notes->rows, vote->rows_count * sizeof vote->rows[0]);
    vote->shared_count = notes->head.shared_count;
    vote->shared = ampd_need(ampd_copy(notes->shared, vote->shared_count * sizeof vote->shared[0]));
    vote->subtrees_count = notes->head.subtrees_count;
    vote->subtrees = ampd_need(ampd_copy(notes->subtrees, vote->subtrees_count * sizeof vote->subtrees[0]));
    vote->metrics = notes->metrics;
    model->shard->journal.kept = vote;
}

/* Puts the shard into the try of the record again, VOTED. */
static void hold(struct ampd_model *model, const struct ampd_event_replayed *event, const struct notes *notes)
{
    struct ampd_open_step *step = &model->shard->step;
    AMP_ASSERT(step->state == AMPD_STEP_NONE && step->plan == NULL);
    step->fence = event->key.fence;
    step->open = (struct ampd_open){.step = event->key.step,
                                    .try_number = event->key.try_number,
                                    .scale = notes->head.scale,
                                    .scale_id = notes->head.scale_id,
                                    .expected_count = notes->head.contributors_count};
    step->close = (struct ampd_close){.step = event->key.step,
                                      .try_number = event->key.try_number,
                                      .coefficient = notes->head.coefficient,
                                      .empty = notes->head.empty != 0,
                                      .contributors_count = notes->head.contributors_count};
    for (uint32_t i = 0; i < notes->head.contributors_count; i++) {
        struct notes_contributor from = contributor_at(notes, i);
        struct ampd_incarnation incarnation = {from.fence, from.counter};
        step->open.expected[i] = (struct ampd_expected){from.rank, incarnation};
        step->close.contributors[i] = (struct ampd_contributor){from.rank, incarnation, from.weight};
        hold_slot(model, notes, i);
    }
    step->hash = notes->head.hash;
    step->plan = given_plan(model, notes);
    step->votes_left = 0;
    ampd_shard_set_step(model->shard, AMPD_STEP_VOTED); /* where it was before the restart */
    hold_vote(model, notes);
    AMP_FAILPOINT("journal.held");
}

bool ampd_shard_journal_fits(const struct ampd_model *model, const struct ampd_open *open)
{
    const struct ampd_open_step *step = &model->shard->step;
    if (model->shard->journal.kept == NULL || open->expected_count != step->close.contributors_count ||
        open->scale_id != step->open.scale_id || open->step != step->open.step)
        return false;
    for (uint32_t i = 0; i < open->expected_count; i++) {
        const struct ampd_contributor *had = &step->close.contributors[i];
        if (open->expected[i].rank != had->rank ||
            !ampd_incarnation_same(open->expected[i].incarnation, had->incarnation))
            return false;
    }
    return true;
}

static void free_held(struct ampd_shard *shard)
{
    if (shard->journal.kept != NULL) {
        free(shard->journal.kept->subtrees);
        free(shard->journal.kept->shared);
    }
    free(shard->journal.kept);
    shard->journal.kept = NULL;
}

void ampd_shard_journal_forget(struct ampd_model *model)
{
    free_held(model->shard);
}

void ampd_shard_journal_drop(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    if (shard->journal.kept == NULL)
        return;
    free_held(shard);
    ampd_plan_unref(shard->step.plan);
    shard->step.plan = NULL;
    for (uint32_t i = 0; i < shard->step.close.contributors_count; i++) {
        uint32_t rank = shard->step.close.contributors[i].rank;
        AMP_LIST_EACH(it, next, &model->pushes)
        {
            struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
            if (call->push.rank == rank && call->state != AMPD_CALL_HELD)
                ampd_call_end(
                    call, AMP_EABORTED, "REPLACED",
                    "what was pushed before the restart can no longer be used; ask GetPushState and begin again");
        }
        ampd_slot_empty(model, rank);
        shard->slots[rank].vanished = AMPD_VANISHED;
    }
}

/* ---- replay ---- */

void ampd_shard_journal_found(struct ampd_model *model, const struct ampd_model_record *record)
{
    struct ampd_replay *replay = &model->shard->journal.replay;
    struct ampd_found *found = &model->shard->journal.found;
    if (!journals(model) || record->checkpoints_count == 0 || record->no_journal)
        return;
    replay->capacity = record->rows_count + 1;
    replay->rows = ampd_need(calloc(replay->capacity, sizeof *replay->rows));
    for (uint32_t i = 0; i < record->rows_count; i++) {
        const struct ampd_step_row *row = &record->rows[i];
        if (row->kind == AMPD_ROW_STEP) {
            replay->rows[replay->count++] = *row;
            found->late_action = false;
        } else if (!found->late_action && row->from_step > row->step + 1) {
            found->late_action = true;
            found->open_scale = row->scale;
            found->open_scale_id = row->scale_id;
        }
    }
    found->has_carry = record->last != NULL;
    if (record->last != NULL)
        found->carry = record->last->after;
    replay->on = true;
}

void ampd_shard_journal_start(struct ampd_model *model)
{
    if (model->shard->journal.replay.on)
        ampd_memory_begin_replay(model);
}

void ampd_shard_journal_stop(struct ampd_model *model)
{
    model->shard->journal.replay.on = false; /* a read that is under way must come back */
}

void ampd_shard_journal_clear(struct ampd_model *model)
{
    struct ampd_replay *replay = &model->shard->journal.replay;
    free(replay->rows);
    *replay = (struct ampd_replay){.token = replay->token};
    model->shard->journal.found = (struct ampd_found){0};
}

void ampd_shard_journal_note(struct ampd_model *model, const struct ampd_step_row *row)
{
    struct ampd_replay *replay = &model->shard->journal.replay;
    if (!journals(model))
        return;
    if (replay->count == replay->capacity) {
        replay->capacity = replay->capacity * 2 + 4;
        replay->rows = ampd_need(realloc(replay->rows, replay->capacity * sizeof *replay->rows));
    }
    replay->rows[replay->count++] = *row;
}

void ampd_shard_journal_trim(struct ampd_model *model, uint64_t step)
{
    struct ampd_replay *replay = &model->shard->journal.replay;
    uint32_t gone = 0;
    while (gone < replay->count && replay->rows[gone].step < step)
        gone++;
    if (gone == 0)
        return; /* there may be no rows at all */
    replay->count -= gone;
    memmove(replay->rows, replay->rows + gone, replay->count * sizeof *replay->rows);
}

void ampd_shard_journal_give_up(struct ampd_model *model, const char *why)
{
    ampd_out_log(
        model->core, AMP_LOG_ERROR, model,
        "steps after the checkpoint of step %llu cannot be brought back: %s; the model goes back to a checkpoint",
        (unsigned long long)model->shard->restore.record.step, why);
    ampd_shard_journal_clear(model);
    model->shard->restore.taken = false;
    if (model->shard->memory == AMPD_MEMORY_REPLAYING)
        ampd_memory_end_replay(model, false);
    ampd_shard_forget(model);
    ampd_sync_try_answer(model->core);
}

void ampd_shard_journal_read_on(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    shard->journal.replay.token = ++model->core->last_token;
    struct ampd_output *output = ampd_out(model->core, AMPD_OUT_REPLAY, 0);
    output->u.replay = (struct ampd_replay_order){
        .token = shard->journal.replay.token,
        .model = model->spec.name,
        .epoch = shard->epoch,
        .step = shard->decided.step + 1,
        .g = model->tensors.g,
        .elements = model->tensors.count * model->layout->block_elements,
    };
}

void ampd_shard_journal_restored(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    struct ampd_replay *replay = &shard->journal.replay;
    shard->carry = shard->restore.carry;
    shard->version = shard->restore.version;
    shard->decided.step = shard->restore.step;
    for (unsigned c = 0; c < AMPD_COPIES; c++)
        shard->apply.copy_valid[c] = c == shard->version % AMPD_COPIES;
    ampd_shard_begin_anew(model);
    replay->next = 0;
    while (replay->next < replay->count && replay->rows[replay->next].step <= shard->decided.step)
        replay->next++; /* the checkpoint holds those steps; the result of the last one may be asked for again */
    ampd_shard_journal_read_on(model);
}

/* The last record was read: the memory is what it was before, and SYNC is answered. */
static void replayed_all(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    struct ampd_replay *replay = &shard->journal.replay;
    if (replay->next > 0) {
        shard->decided.verdict = ampd_need(calloc(1, sizeof *shard->decided.verdict));
        shard->decided.verdict->row = replay->rows[replay->next - 1];
        ampd_decided_set(shard, AMPD_DECIDED_APPLIED);
    }
    if (replay->next > 0)
        shard->carry = shard->decided.verdict->row.after;
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        struct ampd_bytes *base = &shard->decided.base_user_states[r];
        free(base->data);
        *base = shard->decided.user_states[r];
        base->data = base->size == 0 ? NULL : ampd_need(ampd_copy(base->data, base->size));
        shard->slots[r].vanished = AMPD_VANISHED; /* blocks that the process before has said were PRESENT are gone */
    }
    ampd_out_log(model->core, AMP_LOG_INFO, model, "epoch %llu goes on after step %llu: %llu steps from the journal",
                 (unsigned long long)shard->epoch, (unsigned long long)shard->decided.step,
                 (unsigned long long)(shard->decided.step - shard->restore.step));
    uint64_t base = shard->restore.step;
    ampd_shard_journal_stop(model);
    ampd_shard_journal_trim(model, base);
    if (shard->announced.state < AMPD_MODEL_WAITING)
        shard->announced.state = AMPD_MODEL_WAITING;
    shard->announced.loaded_is_confirmed = false;
    ampd_memory_end_replay(model, true);
    ampd_shard_journal_prune(model, base);
    ampd_sync_try_answer(model->core);
}

void ampd_shard_journal_applied(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    const struct ampd_step_row *row = &shard->journal.replay.rows[shard->journal.replay.next++];
    AMP_FAILPOINT("journal.reapplied");
    shard->decided.step = row->step;
    shard->version = row->version;
    for (unsigned c = 0; c < AMPD_COPIES; c++)
        shard->apply.copy_valid[c] = c == shard->version % AMPD_COPIES;
    ampd_shard_journal_read_on(model);
}

/* Applies a decided step again, with g of the record and the row of its verdict. */
static void replay_step(struct ampd_model *model, const struct notes *notes)
{
    struct ampd_shard *shard = model->shard;
    const struct ampd_step_row *row = &shard->journal.replay.rows[shard->journal.replay.next];
    for (uint32_t i = 0; i < notes->head.contributors_count; i++) {
        uint32_t rank = contributor_at(notes, i).rank;
        free(shard->decided.user_states[rank].data);
        shard->decided.user_states[rank] = state_at(notes, i);
    }
    if (row->verdict != AMPD_VERDICT_APPLIED) {
        ampd_shard_journal_applied(model);
        return;
    }
    struct ampd_plan *plan = given_plan(model, notes);
    ampd_plan_copy(plan, (unsigned)(row->version % AMPD_COPIES), true);
    ampd_verdict_plan(model, row, plan);
    ampd_shard_bulk(model, AMPD_BULK_REPLAY, AMPD_JOB_APPLY | AMPD_JOB_GIVEN, plan);
    ampd_plan_unref(plan);
}

/* Whether this shard itself has found an overflow: then the record has no g. */
static bool overflowed(const struct notes *notes)
{
    bool any = notes->head.overflow_params > 0;
    for (uint32_t i = 0; i < notes->head.shared_count; i++) {
        struct ampd_overflow_row row;
        memcpy(&row, notes->shared + i * sizeof row, sizeof row);
        any = any || ampd_row_overflows(&row);
    }
    return any;
}

void ampd_shard_journal_replayed(struct ampd_model *model, const struct ampd_event_replayed *event)
{
    struct ampd_shard *shard = model->shard;
    const struct ampd_replay *replay = &shard->journal.replay;
    shard->journal.replay.token = 0;
    if (!replay->on || shard->memory != AMPD_MEMORY_REPLAYING) { /* stopped meanwhile, and perhaps begun again */
        ampd_memory_try_restore(model);
        return;
    }
    AMP_FAILPOINT("journal.replayed");
    bool decided = replay->next < replay->count;
    if (event->code != 0 && event->code != AMP_ENOTFOUND && event->code != AMP_EDATALOSS) {
        ampd_memory_read_later(
            model,
            "step %llu of the journal of %s cannot be read now: %s; it is read as soon as it can be: repair the disk "
            "or its mount. Only if it is lost for good, move its file away and keep it: the model goes back to a "
            "checkpoint then",
            (unsigned long long)(shard->decided.step + 1), model->spec.name, amp_strerror(event->code));
        return;
    }
    shard->restore.unread[0] = 0;
    struct notes notes;
    bool whole = event->code == 0 && read_notes(model, event, &notes);
    if (!decided) {
        bool g = whole && (event->has_g || overflowed(&notes) || notes.head.empty != 0);
        if (whole && (g || model->tensors.count == 0))
            hold(model, event, &notes);
        replayed_all(model);
        return;
    }
    const struct ampd_step_row *row = &replay->rows[replay->next];
    bool fits = whole && row->step == shard->decided.step + 1 && notes.head.hash == row->contributors_hash;
    bool needs_g = row->verdict == AMPD_VERDICT_APPLIED && model->tensors.count > 0;
    if (!fits || (needs_g && !event->has_g)) {
        ampd_shard_journal_give_up(model, "a step is missing in the journal, or damaged");
        return;
    }
    replay_step(model, &notes);
}
