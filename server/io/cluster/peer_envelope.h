/* Converts the envelope around a message between shards (proto/ampd/v1/peer_service.proto). Pure functions. */
#ifndef AMPD_IO_PEER_ENVELOPE_H
#define AMPD_IO_PEER_ENVELOPE_H

#include "proto/msg_peer.h"
#include "server/core/wire/messages.h"

#include <stdint.h>

/*
 * The envelope for a message of a cluster of `shards`, by value; it owns nothing. The body is left empty, and the
 * message counts as one part: the caller sets body, part and part_count (peers.c).
 */
struct ampd_msg_session_request io_peer_envelope(const struct ampd_message *message, uint32_t shards);

/* The fence in an envelope. */
struct ampd_fence io_peer_fence(const struct ampd_msg_fence *message);

#endif
