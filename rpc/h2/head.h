/* What the header blocks of the peer said. Internal to rpc/h2. */
#ifndef ARPC_H2_HEAD_H
#define ARPC_H2_HEAD_H

#include "rpc/wire/retry.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arpc_call;

/* Of grpc-encoding. */
enum arpc_encoding { ARPC_ENCODING_IDENTITY, ARPC_ENCODING_GZIP, ARPC_ENCODING_UNKNOWN };

/* Of grpc-accept-encoding: what this side reads. */
#define ARPC_ENCODINGS "identity,gzip"

struct arpc_head {
    size_t bytes; /* counted as RFC 9113 6.5.2 does: name + value + 32 */
    size_t count;
    bool too_large;
    bool bad_metadata;
    /* request */
    bool post;
    bool grpc_content;
    bool proto_content; /* it is application/grpc+proto, which the answer's is then too */
    bool accepts_gzip;
    bool bad_timeout;
    int64_t timeout_ns; /* INT64_MAX: none */
    /* both */
    enum arpc_encoding encoding;
    /* response */
    int http_status;
    int grpc_status;  /* -1: none yet */
    char *message;    /* of grpc-message, decoded; NULL: none */
    uint8_t *details; /* raw google.rpc.Status */
    size_t details_size;
    enum arpc_pushback pushback;
    int64_t pushback_ms;
};

/* Keeps a field of the peer if its name is wanted. 0 or AMP_ENOMEM. */
int arpc_head_keep(struct arpc_call *call, const uint8_t *name, size_t name_size, const uint8_t *value,
                   size_t value_size);

#endif
