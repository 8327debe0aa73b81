/* What is around a message between shards (proto/ampd/v1/peer_service.proto). */
#ifndef AMPD_IO_PEER_ENVELOPE_H
#define AMPD_IO_PEER_ENVELOPE_H

#include "proto/msg_peer.h"
#include "server/core/wire/messages.h"

#include <stdint.h>

/* The request that carries it in a cluster of `shards`; the body is not in it. Owns nothing. */
struct ampd_msg_session_request io_peer_envelope(const struct ampd_message *message, uint32_t shards);

struct ampd_fence io_peer_fence(const struct ampd_msg_fence *message);

#endif
