/* What the header blocks of the peer contained. Internal to rpc/h2. */
#ifndef ARPC_H2_HEAD_H
#define ARPC_H2_HEAD_H

#include "rpc/wire/retry.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arpc_call;

/* Values of grpc-encoding. */
enum arpc_encoding { ARPC_ENCODING_IDENTITY, ARPC_ENCODING_GZIP, ARPC_ENCODING_UNKNOWN };

/* The value of grpc-accept-encoding: what this side can read. */
#define ARPC_ENCODINGS "identity,gzip"

struct arpc_head {
    size_t bytes;      /* counted as RFC 9113 6.5.2 does: name + value + 32 */
    size_t count;      /* number of fields */
    bool too_large;    /* over the config's limits of metadata */
    bool bad_metadata; /* a "-bin" value is not base64 */
    /* Of a request. */
    bool post;          /* the method is POST */
    bool grpc_content;  /* content-type is application/grpc (also of a response) */
    bool proto_content; /* content-type is application/grpc+proto; the answer gets the same */
    bool accepts_gzip;  /* grpc-accept-encoding has gzip */
    bool bad_timeout;   /* grpc-timeout cannot be parsed */
    int64_t timeout_ns; /* INT64_MAX: none */
    /* Of both. */
    enum arpc_encoding encoding;
    /* Of a response. */
    int http_status;  /* of the response; on a server of a refusal that is not gRPC (0: none) */
    int grpc_status;  /* -1: none yet */
    char *message;    /* grpc-message, decoded, owned; NULL: none */
    uint8_t *details; /* serialized google.rpc.Status, owned; NULL: none */
    size_t details_size;
    enum arpc_pushback pushback;
    int64_t pushback_ms;
};

/* Keeps a copy of a metadata field in call->kept if keep_metadata has its name. 0; AMP_ENOMEM. */
int arpc_head_keep(struct arpc_call *call, const uint8_t *name, size_t name_size, const uint8_t *value,
                   size_t value_size);

#endif
