/* The server's side of header blocks: requests are read, responses are sent. On the loop's thread. Internal to rpc/. */
#ifndef ARPC_H2_SERVE_H
#define ARPC_H2_SERVE_H

#include "rpc/h2/call.h"

/* Takes one field of the request's header block into call->head or call->method. 0; AMP_ENOMEM. */
int arpc_serve_field(struct arpc_call *call, const uint8_t *name, size_t name_size, const uint8_t *value,
                     size_t value_size);
/* The encoding that a value of grpc-encoding names. */
enum arpc_encoding arpc_encoding_of(const uint8_t *name, size_t size);
/* The request's header block is whole: refuses the call, or lets it in (admit_cb) and calls `started`. */
void arpc_serve_begin(struct arpc_call *call);
/*
 * Asks admit_cb about each call that has begun and is not finished, and fails those that it does not let in now.
 * Returns how many failed.
 */
unsigned arpc_link_admit_again(struct arpc_link *link,
                               int (*admit_cb)(struct arpc_call *call, void *arg, struct amp_error *error));
/* For arpc_link_flush: gives nghttp2 the response's head, or only trailers, or says that there is more data. */
void arpc_serve_flush(struct arpc_call *call);
/* Gives nghttp2 the trailers, after the last byte of data. 0; an error of nghttp2. */
int arpc_serve_trailers(struct arpc_call *call);

#endif
