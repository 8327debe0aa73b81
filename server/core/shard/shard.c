/*
 * The step that gradients are collected for, on a shard (docs/step-protocol.md section 2).
 *
 *   NONE    -> OPEN, VOTED          OPEN came; a start finds its vote in the journal
 *   OPEN    -> OPEN, CLOSED, NONE   a newer try; the contributors are fixed; a new epoch
 *   CLOSED  -> OPEN, VOTED, NONE    every vote pass is done
 *   VOTED   -> OPEN, NONE           a newer try; VERDICT came: from here on decided.c has the step
 *
 * Two steps are under way at a time: the decided one is applied while the next one, whose OPEN came behind its
 * VERDICT, collects. A step is voted on only when the one before is APPLIED.
 *
 * The vote pass of a block runs as soon as the contributors are fixed and all of them have that block: with equal
 * weights and sync_mode SYNC that is while the push is still under way.
 */
#include "server/core/shard/received_actions.h"
#include "server/core/shard/shard.h"

#include "base/assert.h"
#include "server/core/base/calls.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/base/ranks.h"
#include "server/core/base/worker.h"
#include "server/core/model/layout.h"
#include "server/core/model/states.h"
#include "server/core/model/tensors.h"
#include "server/core/shard/bulk.h"
#include "server/core/shard/checkpoint_part.h"
#include "server/core/shard/journal.h"
#include "server/core/shard/load.h"
#include "server/core/shard/pull.h"
#include "server/core/shard/push.h"
#include "server/core/shard/sync_answer.h"
#include "server/core/shard/vote.h"
#include "server/core/wire/bus.h"
#include "server/core/wire/fences.h"
#include "server/core/wire/messages.h"
#include "server/core/wire/verdict_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where the vote pass of a block is (ampd_open_step.vote_states). */
enum { VOTE_WAITS, VOTE_OUT, VOTE_DONE };

void ampd_shard_set_step(struct ampd_shard *shard, enum ampd_step_state to)
{
    AMP_ASSERT(ampd_machine_allows(&ampd_machine_step, shard->step.state, to));
    shard->step.state = to;
}

void ampd_shard_end_step(struct ampd_shard *shard)
{
    if (shard->step.state != AMPD_STEP_NONE)
        ampd_shard_set_step(shard, AMPD_STEP_NONE);
}

static void forget_waiting(struct ampd_shard *shard)
{
    ampd_message_free(shard->step.next_open);
    ampd_message_free(shard->step.next_close);
    shard->step.next_open = NULL;
    shard->step.next_close = NULL;
}

void ampd_shard_take_waiting(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    if (shard->step.next_open != NULL)
        ampd_shard_open(model, shard->step.next_open);
    if (shard->step.next_close != NULL)
        ampd_shard_take_close(model, shard->step.next_close);
    forget_waiting(shard);
}

/* ---- life ---- */

int ampd_shard_init(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    uint64_t count = model->tensors.count + 1; /* never zero */
    uint32_t world = model->spec.world_size;
    shard->slots = calloc(world, sizeof *shard->slots);
    shard->load.base = ampd_load_base_first(&model->spec);
    shard->decided.user_states = calloc(world, sizeof *shard->decided.user_states);
    shard->decided.base_user_states = calloc(world, sizeof *shard->decided.base_user_states);
    shard->apply.pending = calloc(count, 1);
    shard->apply.published = calloc(count, 1);
    shard->step.vote_states = calloc(count, 1);
    shard->load.have = calloc(count, 1);
    shard->step.vote_serials = calloc(count, sizeof *shard->step.vote_serials);
    shard->jobs.busy = calloc(count, sizeof *shard->jobs.busy);
    shard->apply.blocked = calloc(count, 1);
    if (shard->slots == NULL || shard->decided.user_states == NULL || shard->decided.base_user_states == NULL ||
        shard->apply.pending == NULL || shard->apply.published == NULL || shard->step.vote_states == NULL ||
        shard->load.have == NULL || shard->step.vote_serials == NULL || shard->jobs.busy == NULL ||
        shard->apply.blocked == NULL || ampd_part_init(model) != 0)
        return AMP_ENOMEM;
    for (uint32_t r = 0; r < world; r++) {
        shard->slots[r].states = calloc(count, 1);
        shard->slots[r].counts = calloc(model->spec.parameters_count, sizeof *shard->slots[r].counts);
        if (shard->slots[r].states == NULL || shard->slots[r].counts == NULL)
            return AMP_ENOMEM;
        ampd_slot_next(model, r);
    }
    amp_scaler_init(&model->spec.scaler, &shard->carry.scaler);
    return 0;
}

static void free_states(struct ampd_bytes *states, uint32_t world)
{
    for (uint32_t r = 0; states != NULL && r < world; r++)
        free(states[r].data);
    free(states);
}

void ampd_shard_close(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    for (uint32_t r = 0; shard->slots != NULL && r < model->spec.world_size; r++) {
        free(shard->slots[r].states);
        free(shard->slots[r].counts);
        free(shard->slots[r].absent);
        free(shard->slots[r].user_state);
    }
    free(shard->slots);
    free_states(shard->decided.user_states, model->spec.world_size);
    free_states(shard->decided.base_user_states, model->spec.world_size);
    free(shard->apply.pending);
    free(shard->apply.published);
    free(shard->apply.blocked);
    free(shard->step.vote_states);
    free(shard->load.have);
    free(shard->step.vote_serials);
    free(shard->jobs.busy);
    free(shard->decided.verdict);
    free(shard->decided.next);
    forget_waiting(shard);
    ampd_shard_journal_forget(model);
    ampd_shard_journal_clear(model);
    free(shard->catalogue.records);
    free(shard->catalogue.voids);
    ampd_part_close(model);
    ampd_plan_unref(shard->step.plan);
    ampd_plan_unref(shard->apply.plan);
}

/* ---- views ---- */

uint64_t ampd_shard_next_step(const struct ampd_model *model)
{
    return model->shard->decided.step + 1;
}

const struct ampd_expected *ampd_shard_expected(const struct ampd_model *model, uint32_t rank)
{
    const struct ampd_open_step *step = &model->shard->step;
    return step->state == AMPD_STEP_NONE ? NULL : ampd_open_find(&step->open, rank);
}

/* ---- OPEN and CLOSE ---- */

/* All vote passes begin again, for a new try. Results of jobs that are out do not count any more. */
static void reset_votes(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    memset(shard->step.vote_states, VOTE_WAITS, model->tensors.count);
    for (uint64_t local = 0; local < model->tensors.count; local++)
        shard->step.vote_serials[local]++;
    shard->step.votes_left = model->tensors.count;
}

static void copy_absent(const struct ampd_model *model, const struct ampd_slot *slot, struct ampd_plan_input *input)
{
    size_t size = (model->spec.parameters_count + 7) / 8;
    free(input->absent);
    input->absent = slot->absent == NULL ? NULL : ampd_need(ampd_copy(slot->absent, size));
}

static bool slot_of(const struct ampd_slot *slot, struct ampd_incarnation incarnation)
{
    return slot->has_header && ampd_incarnation_same(slot->incarnation, incarnation);
}

static struct ampd_plan *new_plan(struct ampd_model *model, const struct ampd_close *close)
{
    struct ampd_plan *plan = ampd_need(ampd_plan_new(&model->tensors, close->contributors_count));
    plan->terms = (struct ampd_vote_terms){.equal_weights = model->spec.weighting == AMPD_WEIGHTING_EQUAL,
                                           .coefficient = close->coefficient,
                                           .clip_value = model->spec.clip_value,
                                           .squares = amp_optim_squares((enum amp_optimizer)model->spec.optimizer)};
    plan->saturate = model->spec.cast_overflow == AMPD_CAST_SATURATE;
    plan->spec = &model->spec;
    for (uint32_t i = 0; i < close->contributors_count; i++) {
        const struct ampd_contributor *contributor = &close->contributors[i];
        const struct ampd_slot *slot = &model->shard->slots[contributor->rank];
        plan->inputs[i].rank = contributor->rank;
        plan->inputs[i].incarnation = contributor->incarnation;
        plan->inputs[i].weight = contributor->weight;
        plan->inputs[i].dtype = slot_of(slot, contributor->incarnation) ? slot->dtype : AMP_DTYPE_NONE;
        if (slot_of(slot, contributor->incarnation) && slot->complete)
            copy_absent(model, slot, &plan->inputs[i]);
    }
    return plan;
}

static void close_step(struct ampd_model *model, const struct ampd_close *close)
{
    struct ampd_shard *shard = model->shard;
    uint64_t hash = ampd_contributors_hash(close->contributors, close->contributors_count);
    bool held =
        shard->journal.kept != NULL; /* a vote from before a restart, on the same list: nothing is summed again */
    AMP_ASSERT(!held || hash == shard->journal.kept->contributors_hash);
    if (!held)
        shard->step.plan = new_plan(model, close);
    shard->step.close = *close;
    shard->step.hash = hash;
    if (close->empty || held) {
        memset(shard->step.vote_states, VOTE_DONE, model->tensors.count);
        shard->step.votes_left = 0;
    }
    ampd_shard_set_step(shard, AMPD_STEP_CLOSED);
    for (uint64_t local = 0; local < model->tensors.count; local++)
        ampd_shard_try_block(model, local);
    ampd_shard_try_vote(model);
}

/* The CLOSE that an OPEN carries: every expected rank contributes, with weight 1. The caller frees it. */
static struct ampd_close *close_of_open(const struct ampd_open *open)
{
    struct ampd_close *close = ampd_need(malloc(sizeof *close));
    ampd_close_of_open(open, close);
    return close;
}

/*
 * Whether a list of contributors from another process contradicts the vote that this shard keeps from before a restart.
 * The gradients behind that vote are gone, so that nothing can be summed for another list: the message is refused.
 * UNFIT or another OPEN can take the vote back, a list cannot.
 */
static bool not_of_kept_vote(struct ampd_model *model, const struct ampd_message *message,
                             const struct ampd_close *close)
{
    const struct ampd_vote *kept = model->shard->journal.kept;
    if (kept == NULL || model->core->config.shard == 0) /* its own shard 0 is this program: close_step() asserts it */
        return false;
    if (ampd_contributors_hash(close->contributors, close->contributors_count) == kept->contributors_hash)
        return false;
    char why[128];
    (void)snprintf(why, sizeof why, "for this shard has voted on step %llu with another list of contributors",
                   (unsigned long long)kept->step);
    ampd_bus_misfit(model, message, why);
    return true;
}

/*
 * Whether the present coordinator has opened the try that the shard is in. After a restart the coordinator is sent
 * nothing about older tries, since their numbers may be the same as those of its own.
 */
static bool of_this_coordinator(const struct ampd_model *model)
{
    return model->shard->step.fence == ampd_fences_of(model->core, 0).counter;
}

static void send_complete(struct ampd_model *model, uint32_t rank)
{
    struct ampd_shard *shard = model->shard;
    AMP_ASSERT(rank < model->spec.world_size);
    if (!of_this_coordinator(model))
        return;
    const struct ampd_slot *slot = &shard->slots[rank];
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_COMPLETE, 0);
    message->u.complete.step = shard->step.open.step;
    message->u.complete.try_number = shard->step.open.try_number;
    message->u.complete.contributor = (struct ampd_contributor){rank, slot->incarnation, slot->weight};
    message->u.complete.lr = slot->lr;
    ampd_bus_send_take(model->core, message);
}

void ampd_shard_completed(struct ampd_model *model, uint32_t rank)
{
    struct ampd_shard *shard = model->shard;
    const struct ampd_slot *slot = &shard->slots[rank];
    const struct ampd_expected *expected = ampd_shard_expected(model, rank);
    AMP_ASSERT(rank < model->spec.world_size);
    if (expected == NULL || !slot_of(slot, expected->incarnation))
        return;
    /* No job that is out reads this list: jobs with AMPD_JOB_ABSENT wait for every rank's trailer. */
    struct ampd_plan *plan = shard->step.plan;
    for (uint32_t i = 0; plan != NULL && i < plan->inputs_count; i++) {
        if (plan->inputs[i].rank == rank)
            copy_absent(model, slot, &plan->inputs[i]);
    }
    send_complete(model, rank);
}

/* COMPLETE is sent again, for the new try, of slots that an OPEN has kept; the plan has their absent lists already. */
static void complete_again(struct ampd_model *model)
{
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        if (model->shard->slots[r].complete)
            send_complete(model, r);
    }
}

/* Whether one try is newer than another. */
static bool is_above(uint64_t fence, uint32_t try_number, uint64_t than_fence, uint32_t than_try)
{
    return fence > than_fence || (fence == than_fence && try_number > than_try);
}

/* Notes the newest incarnation of each rank that an OPEN has listed (base/ranks.c). */
static void note_listed(struct ampd_model *model)
{
    const struct ampd_open *open = &model->shard->step.open;
    for (uint32_t i = 0; i < open->expected_count; i++)
        model->workers[open->expected[i].rank].listed = open->expected[i].incarnation;
}

/*
 * Opens the step after the last decided one, or opens it again: only in a READY memory, and only if (fence, try) is
 * above the open try. Empties slots whose incarnation it does not list, and judges held pushes and pulls again.
 */
static void take_open(struct ampd_model *model, const struct ampd_open *open, uint64_t fence)
{
    struct ampd_shard *shard = model->shard;
    struct ampd_open_step *step = &shard->step;
    if (shard->memory != AMPD_MEMORY_READY || open->step != shard->decided.step + 1)
        return;
    if (step->state != AMPD_STEP_NONE && !is_above(fence, open->try_number, step->fence, step->open.try_number))
        return;
    if (!ampd_shard_journal_fits(model, open)) {
        ampd_shard_journal_drop(model);
        ampd_plan_unref(step->plan);
        step->plan = NULL;
    }
    ampd_shard_set_step(shard, AMPD_STEP_OPEN);
    shard->announced.frozen = false;
    step->fence = fence;
    if (open->step != step->open.step)
        step->seen = (struct ampd_seen){0};
    step->open = *open;
    note_listed(model);
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        const struct ampd_expected *expected = ampd_shard_expected(model, r);
        const struct ampd_slot *slot = &shard->slots[r];
        if (slot->has_header && (expected == NULL || !slot_of(slot, expected->incarnation)))
            ampd_slot_empty(model, r);
    }
    reset_votes(model);
    if (open->closed) {
        struct ampd_close *close = close_of_open(open);
        close_step(model, close);
        free(close);
    }
    complete_again(model);
    ampd_push_retry(model);
    ampd_pull_retry(model);
}

/*
 * True while the verdict of the step before is being stored: a copy of the message is kept in *slot and handled after
 * that. It is dropped if it is about any step but the one after that verdict's, or about an older try than the kept
 * message.
 */
static bool waits_for_verdict(struct ampd_model *model, const struct ampd_message *message, struct ampd_message **slot,
                              uint64_t step, uint32_t try_number)
{
    const struct ampd_shard *shard = model->shard;
    if (shard->decided.next == NULL)
        return false;
    uint64_t fence = message->from_fence.counter;
    bool close = slot == &model->shard->step.next_close;
    const struct ampd_message *held = *slot;
    uint32_t held_try = held == NULL ? 0 : close ? held->u.close.try_number : held->u.open.try_number;
    if (step != shard->decided.next->row.step + 1 ||
        (held != NULL && !is_above(fence, try_number, held->from_fence.counter, held_try)))
        return true;
    ampd_message_free(*slot);
    *slot = ampd_need(ampd_message_copy(message));
    return true;
}

void ampd_shard_open(struct ampd_model *model, const struct ampd_message *message)
{
    const struct ampd_open *open = &message->u.open;
    AMP_ASSERT(message->from == 0);
    if (message->epoch != model->shard->epoch ||
        waits_for_verdict(model, message, &model->shard->step.next_open, open->step, open->try_number))
        return;
    struct ampd_close *close = open->closed && ampd_shard_journal_fits(model, open) ? close_of_open(open) : NULL;
    bool refused = close != NULL && not_of_kept_vote(model, message, close);
    free(close);
    if (!refused)
        take_open(model, open, message->from_fence.counter);
}

void ampd_shard_take_close(struct ampd_model *model, const struct ampd_message *message)
{
    const struct ampd_open_step *step = &model->shard->step;
    const struct ampd_close *close = &message->u.close;
    AMP_ASSERT(message->from == 0);
    if (message->epoch != model->shard->epoch ||
        waits_for_verdict(model, message, &model->shard->step.next_close, close->step, close->try_number))
        return;
    bool mine = step->state == AMPD_STEP_OPEN && close->step == step->open.step &&
                close->try_number == step->open.try_number && message->from_fence.counter == step->fence;
    if (mine && !not_of_kept_vote(model, message, close))
        close_step(model, close);
}

/* ---- the vote ---- */

void ampd_shard_send_job(struct ampd_model *model, struct ampd_job *job)
{
    struct ampd_shard *shard = model->shard;
    job->model = model->index;
    job->plan->refs++;
    shard->jobs.busy[job->block - model->tensors.first]++;
    shard->jobs.out++;
    ampd_out(model->core, AMPD_OUT_JOB, 0)->u.job = *job;
}

/*
 * Fills job->present with the contributors that have the block; false if one of them may still send it. *final: all
 * trailers are here.
 */
static bool gather_present(const struct ampd_model *model, uint64_t local, struct ampd_job *job, bool *final)
{
    const struct ampd_shard *shard = model->shard;
    AMP_ASSERT(local < model->tensors.count);
    *final = true;
    for (uint32_t i = 0; i < shard->step.close.contributors_count; i++) {
        const struct ampd_contributor *contributor = &shard->step.close.contributors[i];
        const struct ampd_slot *slot = &shard->slots[contributor->rank];
        if (!slot_of(slot, contributor->incarnation))
            return false;
        if (slot->states[local] == AMPD_BLOCK_PRESENT)
            job->present[contributor->rank / 64] |= (uint64_t)1 << (contributor->rank % 64);
        else if (!slot->complete)
            return false;
        *final = *final && slot->complete;
    }
    return true;
}

/* Whether a trailer that is here leaves out a parameter of the block: then the vote pass waits for all trailers. */
static bool must_leave_out(const struct ampd_model *model, uint64_t block)
{
    const struct ampd_shard *shard = model->shard;
    for (uint32_t i = 0; i < shard->step.close.contributors_count; i++) {
        const struct ampd_slot *slot = &shard->slots[shard->step.close.contributors[i].rank];
        if (slot->complete && ampd_slot_any_absent(model, slot, block))
            return true;
    }
    return false;
}

static void clear_votes(struct ampd_model *model, uint64_t block)
{
    struct ampd_tensors *tensors = &model->tensors;
    uint32_t count;
    (void)ampd_layout_block(model->layout, block, &count);
    uint64_t base = model->layout->block_segments[block] - ampd_tensors_segment_base(tensors);
    for (uint32_t i = 0; i < count; i++)
        tensors->votes[base + i] = (struct amp_pass_vote){.sum_first = UINT64_MAX, .range_first = UINT64_MAX};
}

/* Whether a block can be voted on now. Then *job is the vote pass over it, but for the token. */
static bool can_vote(const struct ampd_model *model, uint64_t local, struct ampd_job *job)
{
    const struct ampd_shard *shard = model->shard;
    AMP_ASSERT(local < model->tensors.count);
    if (shard->step.state != AMPD_STEP_CLOSED || shard->step.vote_states[local] != VOTE_WAITS ||
        shard->apply.pending[local] != 0 || shard->jobs.busy[local] != 0 || shard->journal.token != 0)
        return false;
    *job = (struct ampd_job){.work = AMPD_JOB_VOTE, .block = model->tensors.first + local, .plan = shard->step.plan};
    bool final;
    if (!gather_present(model, local, job, &final) || (!final && must_leave_out(model, job->block)))
        return false;
    if (final)
        job->work |= AMPD_JOB_ABSENT;
    return true;
}

static void set_voted(struct ampd_model *model, uint64_t local)
{
    model->shard->step.vote_states[local] = VOTE_DONE;
    model->shard->step.votes_left--;
}

void ampd_shard_try_block(struct ampd_model *model, uint64_t local)
{
    struct ampd_shard *shard = model->shard;
    struct ampd_job job;
    if (!can_vote(model, local, &job))
        return;
    uint64_t any = 0;
    for (unsigned i = 0; i < AMPD_WORLD_MAX / 64; i++)
        any |= job.present[i];
    if (any == 0) { /* absent from all */
        clear_votes(model, job.block);
        set_voted(model, local);
        return;
    }
    job.token = ++shard->step.vote_serials[local];
    shard->step.vote_states[local] = VOTE_OUT;
    ampd_shard_send_job(model, &job);
}

bool ampd_shard_vote_terms(const struct ampd_model *model, uint32_t rank, struct ampd_vote_terms *terms)
{
    const struct ampd_plan *plan = model->shard->step.plan;
    if (model->shard->step.state != AMPD_STEP_CLOSED || plan == NULL || plan->inputs_count != 1 ||
        plan->inputs[0].rank != rank || !plan->terms.equal_weights || model->tensors.g != NULL)
        return false;
    *terms = plan->terms;
    return true;
}

void ampd_shard_take_votes(struct ampd_model *model, uint64_t local, uint32_t rank,
                           const struct ampd_event_block *block)
{
    struct ampd_vote_terms terms;
    struct ampd_job job;
    if (block->terms == NULL || !ampd_shard_vote_terms(model, rank, &terms) || !can_vote(model, local, &job))
        return;
    /* A newer try may have another scale. The other terms are the model's. With ABSENT the pass may leave some out. */
    if (terms.coefficient != block->terms->coefficient || (job.work & AMPD_JOB_ABSENT) != 0)
        return;
    uint64_t base = model->layout->block_segments[job.block] - ampd_tensors_segment_base(&model->tensors);
    memcpy(&model->tensors.votes[base], block->votes, block->counts_count * sizeof *block->votes);
    set_voted(model, local);
}

void ampd_shard_vote_done(struct ampd_model *model, const struct ampd_job *job, uint64_t local)
{
    struct ampd_shard *shard = model->shard;
    bool counts = shard->step.state == AMPD_STEP_CLOSED && job->plan == shard->step.plan &&
                  job->token == shard->step.vote_serials[local] && shard->step.vote_states[local] == VOTE_OUT;
    AMP_ASSERT(local < model->tensors.count);
    if (!counts)
        return;
    set_voted(model, local);
}

/* Whether the rank contributes. Where a quorum has closed without it, what its trailer leaves out changes nothing. */
static bool contributes(const struct ampd_shard *shard, uint32_t rank)
{
    const struct ampd_close *close = &shard->step.close;
    return ampd_contributor_of(close->contributors, close->contributors_count, rank) != NULL;
}

void ampd_shard_revote(struct ampd_model *model, uint64_t local, uint32_t rank)
{
    struct ampd_shard *shard = model->shard;
    AMP_ASSERT(local < model->tensors.count);
    if (shard->step.state != AMPD_STEP_CLOSED || shard->step.vote_states[local] == VOTE_WAITS ||
        !contributes(shard, rank))
        return;
    if (shard->step.vote_states[local] == VOTE_DONE)
        shard->step.votes_left++;
    shard->step.vote_states[local] = VOTE_WAITS;
    shard->step.vote_serials[local]++;
}

static void send_vote(struct ampd_model *model)
{
    if (!of_this_coordinator(model))
        return;
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_VOTE, 0);
    const struct ampd_vote *held = model->shard->journal.kept;
    if (held == NULL) {
        ampd_vote_fill(model, &message->u.vote);
    } else {
        message->u.vote = *held;
        message->u.vote.try_number = model->shard->step.open.try_number;
        size_t bytes = held->subtrees_count * sizeof held->subtrees[0];
        message->u.vote.subtrees = ampd_need(ampd_copy(held->subtrees, bytes));
        message->u.vote.shared = ampd_need(ampd_copy(held->shared, held->shared_count * sizeof held->shared[0]));
    }
    ampd_bus_send_take(model->core, message);
}

void ampd_shard_try_vote(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    if (shard->step.state != AMPD_STEP_CLOSED || shard->step.votes_left != 0 ||
        shard->decided.state == AMPD_DECIDED_APPLYING || shard->journal.token != 0)
        return;
    const struct ampd_close *close = &shard->step.close;
    for (uint32_t i = 0; i < close->contributors_count; i++) {
        const struct ampd_slot *slot = &shard->slots[close->contributors[i].rank];
        if (!slot_of(slot, close->contributors[i].incarnation) || !slot->complete)
            return;
    }
    if (model->spec.durability == AMPD_DURABILITY_STEP && shard->journal.kept == NULL) {
        ampd_shard_journal_vote(model);
        return;
    }
    ampd_shard_voted(model);
}

void ampd_shard_voted(struct ampd_model *model)
{
    ampd_shard_set_step(model->shard, AMPD_STEP_VOTED);
    send_vote(model);
}

/* ---- STATE ---- */

void ampd_shard_state(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_shard *shard = model->shard;
    const struct ampd_state_message *state = &message->u.state;
    AMP_ASSERT(message->from == 0);
    shard->announced.troubled = state->trouble;
    if (state->trouble) { /* perhaps only since our answer to SYNC was lost with a session: it is sent again */
        shard->sync_waits = true;
        ampd_sync_try_answer(model->core);
        return;
    }
    if (message->epoch != shard->epoch || state->sequence <= shard->announced.sequence)
        return;
    shard->announced.sequence = state->sequence;
    shard->announced.state = state->state;
    shard->announced.frozen = state->frozen; /* it may come while the verdict that says so is being stored */
    shard->announced.loaded_is_confirmed = state->state >= AMPD_MODEL_WAITING;
    shard->announced.missing_rank = state->missing_rank;
    if (shard->catalogue.voids_go)
        ampd_catalogue_remove_voids(model);
    ampd_load_next(model);
    AMP_LIST_EACH(it, next, &model->pushes)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        if (state->state == AMPD_MODEL_STALLED && call->state == AMPD_CALL_ENDED)
            ampd_push_stalled(model, call);
    }
    ampd_push_retry(model);
    ampd_pull_retry(model);
}

/* ---- interruptions ---- */

void ampd_shard_forget(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    free(shard->decided.next);
    shard->decided.next = NULL;
    forget_waiting(shard);
    ampd_shard_journal_forget(model);
    ampd_shard_end_step(shard);
    ampd_decided_set(shard, AMPD_DECIDED_NONE);
    shard->apply.waits = false;
    ampd_part_forget(model);
    ampd_plan_unref(shard->step.plan);
    ampd_plan_unref(shard->apply.plan);
    shard->step.plan = NULL;
    shard->apply.plan = NULL;
    ampd_shard_forget_bulk(model);
}

void ampd_shard_begin_anew(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    ampd_shard_forget(model);
    free(shard->decided.verdict);
    shard->decided.verdict = NULL;
    memset(shard->apply.pending, 0, model->tensors.count);
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        ampd_slot_empty(model, r);
        ampd_slot_next(model, r);
    }
}

void ampd_shard_resend(struct ampd_model *model)
{
    const struct ampd_shard *shard = model->shard;
    if (shard->memory != AMPD_MEMORY_READY)
        return;
    if (shard->decided.state == AMPD_DECIDED_APPLIED)
        ampd_decided_send_applied(model);
    if (shard->step.state != AMPD_STEP_NONE)
        complete_again(model);
    if (shard->step.state == AMPD_STEP_VOTED)
        send_vote(model);
}

void ampd_shard_unfit(struct ampd_model *model, const struct ampd_message *message)
{
    const struct ampd_open_step *step = &model->shard->step;
    const struct ampd_complete *unfit = &message->u.unfit.push;
    bool mine = message->epoch == model->shard->epoch && step->state == AMPD_STEP_OPEN &&
                unfit->step == step->open.step && unfit->try_number == step->open.try_number &&
                message->from_fence.counter == step->fence && unfit->contributor.rank < model->spec.world_size;
    AMP_ASSERT(message->from == 0);
    if (mine) {
        ampd_shard_journal_drop(model);
        ampd_slot_unfit(model, &message->u.unfit);
    }
}
