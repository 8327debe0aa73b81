#include "server/io/cluster/peer_envelope.h"

#include "server/io/base/peer_bytes.h"

#include <string.h>

static struct ampd_msg_fence fence_to_msg(const struct ampd_fence *fence)
{
    struct ampd_msg_fence message = {.number = fence->counter};
    memcpy(&message.boot_id_low, fence->boot_id, 8);
    memcpy(&message.boot_id_high, fence->boot_id + 8, 8);
    return message;
}

struct ampd_fence io_peer_fence(const struct ampd_msg_fence *message)
{
    struct ampd_fence fence = {.counter = message->number};
    memcpy(fence.boot_id, &message->boot_id_low, 8);
    memcpy(fence.boot_id + 8, &message->boot_id_high, 8);
    return fence;
}

struct ampd_msg_session_request io_peer_envelope(const struct ampd_message *message, uint32_t shards)
{
    struct ampd_msg_session_request request = {.has_envelope = true};
    struct ampd_msg_envelope *envelope = &request.envelope;
    envelope->format = AMPD_PEER_FORMAT;
    envelope->shard_count = shards;
    envelope->sender = message->from;
    envelope->has_sender_fence = true;
    envelope->sender_fence = fence_to_msg(&message->from_fence);
    envelope->receiver = message->to;
    envelope->has_receiver_fence = true;
    envelope->receiver_fence = fence_to_msg(&message->to_fence);
    memcpy(envelope->model, message->model, sizeof envelope->model);
    envelope->epoch = message->epoch;
    envelope->round = message->round;
    envelope->message = (uint32_t)message->type;
    return request;
}
