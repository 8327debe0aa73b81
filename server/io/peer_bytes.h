/*
 * The content of a message between shards as bytes, both ways. Numbers are little-endian and as wide as in their struct;
 * floats and doubles are their bits; lists and texts have their count before them. The order is that of the structs.
 *
 * Shards speak with each other only if they have the same AMPD_PEER_FORMAT: it rises whenever a struct that travels changes.
 */
#ifndef AMPD_IO_PEER_BYTES_H
#define AMPD_IO_PEER_BYTES_H

#include "base/buf.h"
#include "base/err.h"
#include "server/core/messages.h"

#define AMPD_PEER_FORMAT 2

/* Longest content: a specification of AMPD_PARAMETERS_MAX parameters has less than 2 MiB. */
#define AMPD_PEER_BODY_MAX ((size_t)4 << 20)

/* Appends the content (not addresses, model and epoch) of a message. 0, AMP_EINVAL (it is none), AMP_EEXHAUSTED, AMP_ENOMEM. */
int io_peer_body_encode(const struct ampd_message *message, struct amp_buf *out);

/*
 * Reads a content into *message, whose type is set. All of the bytes must be used, and every count, text and choice be
 * within its bound. On success what it owns is the message's (ampd_message_free). AMP_EINVAL with a text, AMP_ENOMEM.
 */
int io_peer_body_decode(struct ampd_message *message, const uint8_t *data, size_t size, struct amp_error *error);

#endif
