/*
 * The end of a process in order, after a last checkpoint, so that no decided step is lost (docs/step-protocol.md
 * section 6).
 *
 *   LEAVE      shard -> coordinator   this process is about to end
 *   MAY_LEAVE  coordinator -> shard   round 0: wait; round 1: whatever was decided is in a checkpoint, or that is given
 *                                     up
 *
 * While a shard leaves, or the coordinator itself is to end, no step is opened or decided on any shard, since a step
 * needs all of them. A checkpoint of the last decided step is written; then the shards that leave are sent MAY_LEAVE.
 * When the coordinator ends, all shards are sent it, so that one that is to end later need not ask. Steps go on when
 * the shard is back: its higher fence brings SYNC.
 *
 * No process waits for ever. A shard that hears nothing of shard 0, and a coordinator that lacks a shard for the last
 * checkpoint, wait for AMPD_LEAVE_ALONE_MS, then end, or let the others go, without it: steps decided since the last
 * checkpoint come again, under a higher epoch. A process that gives up ends at once. One whose threads still write, to
 * a disk that is full, cannot end; nor, where a fence is to be stored, can it hear any other. Its time begins when they
 * are done.
 */
#include "server/core/process/leave.h"

#include "base/assert.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/coordinator/checkpoints.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/bus.h"

/* Longer than a shard that is just starting takes until it sends its first message. */
#define AMPD_LEAVE_ALONE_MS 10000

/* Whether all that was decided is in checkpoints. */
static bool all_cut(const struct ampd_core *core)
{
    for (uint32_t i = 0; i < core->models_count; i++) {
        if (!core->models[i]->gone && !ampd_coord_drained(core->models[i]))
            return false;
    }
    return true;
}

static bool anybody_down(const struct ampd_core *core)
{
    for (uint32_t k = 0; k < AMPD_COUNT(core); k++) {
        if (k != core->config.shard && !core->peers[k].up)
            return true;
    }
    return false;
}

static void wait_alone(struct ampd_core *core)
{
    core->leave.alone_ms = core->now_ms + AMPD_LEAVE_ALONE_MS;
}

/* ---- the coordinator ---- */

static void send_may_leave(struct ampd_core *core, uint32_t shard, bool may)
{
    struct ampd_message *message = ampd_bus_plain(core, AMPD_MESSAGE_MAY_LEAVE, shard);
    AMP_ASSERT(shard < AMPD_COUNT(core));
    message->round = may ? 1 : 0;
    core->peers[shard].let_go = may ? core->peers[shard].fence.counter : 0;
    ampd_bus_send_take(core, message);
}

static void last_cuts(struct ampd_core *core)
{
    for (uint32_t i = 0; i < core->models_count; i++) {
        if (!core->models[i]->gone)
            ampd_checkpoints_try(core->models[i]);
    }
}

void ampd_leave_asked(struct ampd_core *core, const struct ampd_message *message)
{
    struct ampd_peer *peer = &core->peers[message->from];
    bool begins = !ampd_core_pauses(core); /* else its time goes on */
    if (peer->leaving != message->from_fence.counter)
        ampd_out_log(core, AMP_LOG_INFO, NULL, "shard %u is about to end: no step is opened until it is back",
                     message->from);
    peer->leaving = message->from_fence.counter;
    last_cuts(core);
    if (begins || core->leave.alone_ms == 0) /* LEAVE comes again and again */
        wait_alone(core);
    send_may_leave(core, message->from, core->leave.given_up || all_cut(core));
}

/* Sends MAY_LEAVE to the shards that wait for it. */
static void let_go(struct ampd_core *core)
{
    for (uint32_t k = 1; k < AMPD_COUNT(core); k++) {
        if (ampd_core_leaves(core, k) && core->peers[k].let_go != core->peers[k].fence.counter)
            send_may_leave(core, k, true);
    }
}

/* ---- a shard ---- */

void ampd_leave_answered(struct ampd_core *core, const struct ampd_message *message)
{
    core->leave.alone_ms = 0;
    if (message->round == 0)
        return;
    core->leave.may = message->from_fence.counter; /* that process of shard 0 decides nothing any more */
}

static bool has_steps(const struct ampd_core *core)
{
    for (uint32_t i = 0; i < core->models_count; i++) {
        const struct ampd_model *model = core->models[i];
        if (!model->gone && model->shard->memory == AMPD_MEMORY_READY)
            return true;
    }
    return false;
}

void ampd_leave_ask(struct ampd_core *core)
{
    if (core->config.shard == 0 || !core->leave.draining)
        return;
    ampd_bus_send_take(core, ampd_bus_plain(core, AMPD_MESSAGE_LEAVE, 0));
}

/* ---- both ---- */

void ampd_leave_drain(struct ampd_core *core)
{
    core->leave.draining = true;
    wait_alone(core);
    if (core->config.shard == 0)
        last_cuts(core);
    else
        ampd_leave_ask(core);
}

void ampd_leave_down(struct ampd_core *core, uint32_t shard)
{
    core->peers[shard].up = false;
    if (core->leave.draining && shard == 0)
        wait_alone(core);
}

/* What the threads still do for this shard. */
static bool is_busy(const struct ampd_core *core)
{
    if (!amp_list_empty(&core->pendings))
        return true;
    for (uint32_t i = 0; i < core->models_count; i++) {
        const struct ampd_shard *shard = core->models[i]->shard;
        if (!core->models[i]->gone &&
            (shard->jobs.out != 0 || shard->journal.token != 0 || shard->part.state != AMPD_PART_FREE))
            return true;
    }
    return false;
}

void ampd_leave_tick(struct ampd_core *core)
{
    if (core->leave.alone_ms == 0 || core->leave.alone_ms > core->now_ms)
        return;
    core->leave.alone_ms = 0;
    bool coordinator = core->config.shard == 0;
    if (!ampd_core_pauses(core) || (coordinator && all_cut(core)))
        return;
    bool busy = is_busy(core);
    if (coordinator ? !anybody_down(core) : busy) {
        wait_alone(core);
        return;
    }
    core->leave.given_up = core->leave.draining && !busy;
    if (core->leave.draining && busy) /* it cannot end yet: a shard that is back by then is asked all the same */
        wait_alone(core);
    ampd_out_log(core, AMP_LOG_WARN, NULL, "%s: steps since the last checkpoint may come again",
                 coordinator ? "the last checkpoint lacks a shard that is not there, and is given up"
                             : "shard 0 is not there to make a last checkpoint, and is waited for no longer");
    if (coordinator)
        let_go(core);
}

/* Whether this process has what it must have before it ends. */
static bool may_end(const struct ampd_core *core)
{
    if (core->leave.given_up)
        return true;
    if (core->config.shard == 0)
        return all_cut(core);
    return !has_steps(core) || (core->leave.may != 0 && core->leave.may == core->peers[0].fence.counter);
}

void ampd_leave_try(struct ampd_core *core)
{
    bool coordinator = core->config.shard == 0;
    if (core->leave.drained || !ampd_core_pauses(core))
        return;
    if (coordinator && all_cut(core))
        let_go(core);
    bool busy = is_busy(core);
    if (!coordinator && core->leave.busy && !busy && core->leave.alone_ms != 0)
        wait_alone(core); /* as long as a fence was being stored, nothing could be heard */
    core->leave.busy = busy;
    if (!core->leave.draining || busy || !may_end(core))
        return;
    for (uint32_t k = 1; coordinator && k < AMPD_COUNT(core); k++)
        send_may_leave(core, k, true);
    core->leave.drained = true;
    (void)ampd_out(core, AMPD_OUT_DRAINED, 0);
}
