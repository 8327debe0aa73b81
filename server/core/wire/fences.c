/*
 * Fences: whose messages count (docs/step-protocol.md section 1).
 *
 * Each process that is shard k has a fence, higher than those of all earlier processes of the shard. The highest fence
 * that was seen of another shard is stored, with a full sync, before anything is answered to it. A message with a lower
 * fence, or an equal counter of another boot, is refused and answered TOO_LOW, and its sender ends. A message that is
 * addressed to another process than this one is dropped: its sender learns from HELLO or SYNC which process is here.
 *
 * A fence that is too far above the one before (AMPD_FENCE_LEAP) belongs to no process: it is refused and not kept, so
 * that the numbers never run out, whatever was sent. If a stranger's fence was accepted that is less far above, a start
 * with --fence-above gets past it (server/io/cluster/membership.c).
 */
#include "server/core/wire/fences.h"

#include "base/assert.h"
#include "server/core/base/limits.h"
#include "server/core/base/local.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/wire/bus.h"
#include "server/core/wire/messages.h"

#include <stdlib.h>
#include <string.h>

static bool same_boot(const struct ampd_fence *a, const struct ampd_fence *b)
{
    return memcmp(a->boot_id, b->boot_id, sizeof a->boot_id) == 0;
}

static bool leaps(const struct ampd_fence *given, const struct ampd_fence *known)
{
    return given->counter > known->counter && given->counter - known->counter > AMPD_FENCE_LEAP;
}

struct ampd_fence ampd_fences_of(const struct ampd_core *core, uint32_t shard)
{
    AMP_ASSERT(shard < AMPD_COUNT(core));
    return shard == core->config.shard ? core->config.fence : core->peers[shard].fence;
}

void ampd_fences_found(struct ampd_core *core, const struct ampd_event_fence *found)
{
    if (found->shard >= AMPD_COUNT(core) || found->shard == core->config.shard)
        return;
    if (found->fence.counter > AMPD_NUMBER_PEER_MAX) /* stored by an older program, which accepted any fence */
        ampd_out_log(core, AMP_LOG_WARN, NULL,
                     "fence %llu of shard %u, which was stored, belongs to no known process: it is ignored",
                     (unsigned long long)found->fence.counter, found->shard);
    else
        core->peers[found->shard].fence = found->fence;
}

/* Keeps the first message of a new process until its fence is stored. Everything else is sent again after that. */
static void hold(struct ampd_peer *peer, const struct ampd_message *message)
{
    if (message->type != AMPD_MESSAGE_HELLO && message->type != AMPD_MESSAGE_SYNC)
        return;
    ampd_message_free(peer->held);
    peer->held = ampd_need(ampd_message_copy(message));
}

static void store(struct ampd_core *core, uint32_t shard, const struct ampd_fence *fence)
{
    AMP_ASSERT(shard < AMPD_COUNT(core));
    core->peers[shard].storing = *fence;
    struct ampd_persist *persist;
    struct ampd_pending *pending = ampd_out_persist_plain(core, AMPD_PERSIST_FENCE, &persist);
    pending->shard = shard;
    pending->fence = *fence;
    persist->shard = shard;
    persist->fence = *fence;
}

static void refuse(struct ampd_core *core, const struct ampd_message *message, const struct ampd_fence *known)
{
    if (message->type == AMPD_MESSAGE_TOO_LOW)
        return; /* two processes that think so of each other would go on for ever */
    if (ampd_bus_may_log_refused(core))
        ampd_out_log(core, AMP_LOG_ERROR, NULL,
                     "a process with fence %llu speaks as shard %u, but one with fence %llu has that place: refused",
                     (unsigned long long)message->from_fence.counter, message->from,
                     (unsigned long long)known->counter);
    struct ampd_message *answer = ampd_need(ampd_message_new(AMPD_MESSAGE_TOO_LOW));
    answer->from = core->config.shard;
    answer->to = message->from;
    answer->from_fence = core->config.fence;
    answer->to_fence = message->from_fence;
    answer->u.fence = *known;
    ampd_out_message_take(core, answer, ampd_message_free);
}

static void refuse_leap(struct ampd_core *core, const struct ampd_message *message, const struct ampd_fence *known)
{
    if (!ampd_bus_may_log_refused(core))
        return;
    ampd_out_log(core, AMP_LOG_ERROR, NULL,
                 "a process speaks as shard %u with fence %llu, too far above %llu, the last one known of it: refused; "
                 "if it is the right one, start it with --fence-above %llu, else see who has the role peer",
                 message->from, (unsigned long long)message->from_fence.counter, (unsigned long long)known->counter,
                 (unsigned long long)known->counter);
}

bool ampd_fences_admit(struct ampd_core *core, const struct ampd_message *message)
{
    if (message->from == core->config.shard)
        return true;
    struct ampd_peer *peer = &core->peers[message->from];
    const struct ampd_fence *known = peer->storing.counter != 0 ? &peer->storing : &peer->fence;
    const struct ampd_fence *given = &message->from_fence;
    if (given->counter < known->counter || (given->counter == known->counter && !same_boot(given, known))) {
        refuse(core, message, known);
        return false;
    }
    if (leaps(given, known)) {
        refuse_leap(core, message, known);
        return false;
    }
    bool mine = message->to_fence.counter == 0 || (message->to_fence.counter == core->config.fence.counter &&
                                                   same_boot(&message->to_fence, &core->config.fence));
    if (!mine)
        return false;
    if (peer->storing.counter == 0 && given->counter == known->counter)
        return true;
    hold(peer, message);
    if (peer->storing.counter == 0) /* one at a time: a higher one is stored when what is kept is handled */
        store(core, message->from, given);
    return false;
}

struct ampd_message *ampd_fences_stored(struct ampd_core *core, const struct ampd_pending *pending)
{
    struct ampd_peer *peer = &core->peers[pending->shard];
    AMP_ASSERT(pending->shard != core->config.shard);
    peer->fence = pending->fence;
    AMP_ASSERT(peer->storing.counter == pending->fence.counter);
    peer->storing = (struct ampd_fence){0};
    if (pending->shard == 0) { /* another coordinator numbers its rounds and STATEs from the beginning */
        core->sync.seen = 0;
        for (uint32_t i = 0; i < core->models_count; i++)
            ampd_local_new_coordinator(core->models[i]);
    }
    struct ampd_message *held = peer->held;
    peer->held = NULL;
    return held;
}

void ampd_fences_too_low(struct ampd_core *core, const struct ampd_message *message)
{
    const struct ampd_fence *higher = &message->u.fence;
    bool real = higher->counter > core->config.fence.counter ||
                (higher->counter == core->config.fence.counter && !same_boot(higher, &core->config.fence));
    AMP_ASSERT(!core->fenced); /* process/receive.c: then nothing is received */
    if (!real || leaps(higher, &core->config.fence))
        return;
    core->fenced = true;
    ampd_out_log(core, AMP_LOG_ERROR, NULL,
                 "shard %u: a process with fence %llu is this shard now, and this one has fence %llu; this process "
                 "answers nobody any more",
                 core->config.shard, (unsigned long long)higher->counter,
                 (unsigned long long)core->config.fence.counter);
    ampd_out(core, AMPD_OUT_FENCED, 0)->u.fence = *higher;
}

void ampd_fences_close(struct ampd_core *core)
{
    for (uint32_t k = 0; k < AMPD_SHARDS_MAX; k++)
        ampd_message_free(core->peers[k].held);
}
