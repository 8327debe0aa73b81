/*
 * The last decided step on a shard, whose verdict bulk.c applies (docs/step-protocol.md section 2).
 *
 *   NONE     -> APPLYING, APPLIED, NONE   VERDICT came; a replay has applied it; a new epoch
 *   APPLYING -> APPLIED, NONE             every block is applied
 *   APPLIED  -> APPLYING, NONE            the next step is decided
 */
#include "server/core/shard/decided.h"

#include "base/assert.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/model/passes.h"
#include "server/core/shard/bulk.h"
#include "server/core/shard/checkpoint_part.h"
#include "server/core/shard/journal.h"
#include "server/core/shard/push.h"
#include "server/core/shard/received_actions.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/bus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ampd_decided_set(struct ampd_shard *shard, enum ampd_decided_state to)
{
    AMP_ASSERT(ampd_machine_allows(&ampd_machine_decided, shard->decided.state, to));
    shard->decided.state = to;
}

void ampd_decided_send_applied(struct ampd_model *model)
{
    const struct ampd_shard *shard = model->shard;
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_APPLIED, 0);
    message->u.applied = shard->apply.warnings;
    message->u.applied.step = shard->decided.step;
    ampd_bus_send_take(model->core, message);
}

void ampd_decided_consume(struct ampd_model *model, uint64_t local)
{
    struct ampd_shard *shard = model->shard;
    AMP_ASSERT(local < model->tensors.count);
    shard->apply.pending[local] = 0;
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        uint8_t *state = &shard->slots[r].states[local];
        if (*state == AMPD_BLOCK_PRESENT)
            *state = AMPD_BLOCK_EMPTY;
    }
}

static void keep_user_states(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    const struct ampd_close *close = &shard->step.close;
    for (uint32_t i = 0; i < close->contributors_count; i++) {
        uint32_t rank = close->contributors[i].rank;
        struct ampd_slot *slot = &shard->slots[rank];
        free(shard->decided.user_states[rank].data);
        shard->decided.user_states[rank] = (struct ampd_bytes){slot->user_state, slot->user_state_size};
        slot->user_state = NULL;
        slot->user_state_size = 0;
    }
}

void ampd_decided_applied(struct ampd_model *model)
{
    ampd_decided_set(model->shard, AMPD_DECIDED_APPLIED);
    ampd_decided_send_applied(model);
}

/* Takes the verdict on the step that this shard has voted on, with the same list of contributors. */
static void decide(struct ampd_model *model, const struct ampd_verdict_message *verdict)
{
    struct ampd_shard *shard = model->shard;
    AMP_ASSERT(shard->step.state == AMPD_STEP_VOTED && shard->step.hash == verdict->row.contributors_hash);
    AMP_ASSERT(shard->decided.state != AMPD_DECIDED_APPLYING);
    free(shard->decided.verdict);
    shard->decided.verdict = ampd_need(ampd_copy(verdict, sizeof *verdict));
    shard->decided.step = verdict->row.step;
    shard->carry = verdict->row.after;
    ampd_decided_set(shard, AMPD_DECIDED_APPLYING);
    keep_user_states(model);
    ampd_shard_journal_forget(model);
    ampd_plan_unref(shard->apply.plan);
    shard->apply.plan = shard->step.plan;
    shard->step.plan = NULL;
    ampd_shard_end_step(shard);
    for (uint32_t r = 0; r < model->spec.world_size; r++)
        ampd_slot_next(model, r); /* (a stream of it that goes on drops what it gets: the slot has its trailer) */
}

static void take_verdict(struct ampd_model *model, const struct ampd_verdict_message *verdict)
{
    struct ampd_shard *shard = model->shard;
    decide(model, verdict);
    bool applied = verdict->row.verdict == AMPD_VERDICT_APPLIED;
    for (uint64_t local = 0; local < model->tensors.count; local++) {
        if (applied)
            shard->apply.pending[local] = 1;
        else
            ampd_decided_consume(model, local);
    }
    memset(shard->apply.published, 0, model->tensors.count);
    if (applied)
        shard->apply.copy_valid[(shard->version + 1) % AMPD_COPIES] = false;
    shard->apply.waits = applied || verdict->row.cut; /* a skipped step's checkpoint waits for the one before, too */
    ampd_push_answer(model);
    if (!shard->apply.waits)
        ampd_decided_applied(model);
    ampd_shard_try_apply(model);
}

/*
 * Whether a verdict of another process is on a step that this shard has not voted on, or on another list of
 * contributors. Such a verdict is neither stored nor acted on.
 */
static bool not_of_its_vote(struct ampd_model *model, const struct ampd_message *message)
{
    const struct ampd_shard *shard = model->shard;
    bool voted = shard->step.state == AMPD_STEP_VOTED && shard->decided.state != AMPD_DECIDED_APPLYING &&
                 shard->step.hash == message->u.verdict.row.contributors_hash;
    if (model->core->config.shard == 0 || voted) /* its own shard 0 is this program: decide() asserts it */
        return false;
    char why[128];
    (void)snprintf(why, sizeof why, "for this shard has not voted on step %llu with that list of contributors",
                   (unsigned long long)message->u.verdict.row.step);
    ampd_bus_misfit(model, message, why);
    return true;
}

void ampd_decided_verdict(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_shard *shard = model->shard;
    const struct ampd_verdict_message *verdict = &message->u.verdict;
    AMP_ASSERT(message->from == 0);
    if (message->epoch != shard->epoch || shard->memory != AMPD_MEMORY_READY || shard->decided.next != NULL)
        return;
    if (verdict->row.step == shard->decided.step && shard->decided.state == AMPD_DECIDED_APPLIED) {
        ampd_part_resend(model);  /* repeated: a shard 0 that has adopted it has counted no PART_DONE of it */
        ampd_shard_resend(model); /* and our answer may be lost, without which no later vote counts */
    }
    if (verdict->row.step != shard->decided.step + 1 || not_of_its_vote(model, message))
        return;
    ampd_shard_journal_note(model, &verdict->row);
    if (model->core->config.shard == 0) {
        take_verdict(model, verdict);
        return;
    }
    shard->decided.next = ampd_need(ampd_copy(verdict, sizeof *verdict));
    ampd_received_actions_persist(model, verdict);
    struct ampd_persist *persist;
    (void)ampd_out_persist(model, AMPD_PERSIST_VERDICT, 0, &persist);
    persist->row = ampd_out_own(model->core, ampd_need(ampd_copy(&verdict->row, sizeof verdict->row)));
}

void ampd_decided_stored(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    struct ampd_verdict_message *verdict = shard->decided.next;
    shard->decided.next = NULL;
    if (verdict == NULL)
        return; /* a restore came meanwhile */
    take_verdict(model, verdict);
    free(verdict);
    ampd_shard_take_waiting(model);
}
