/* The client's side of header blocks. Internal to rpc/. */
#ifndef ARPC_H2_REQUEST_H
#define ARPC_H2_REQUEST_H

#include "rpc/h2/call.h"

int arpc_request_field(struct arpc_call *call, const uint8_t *name, size_t name_size, const uint8_t *value,
                       size_t value_size);
void arpc_request_head(struct arpc_call *call);
void arpc_request_flush(struct arpc_call *call);
/* Begins the streams of calls that wait, as many as the peer allows. */
void arpc_request_begin(struct arpc_link *link);
void arpc_request_end(struct arpc_call *call);
/* The response has ended: whether the call begins again instead. */
bool arpc_request_again(struct arpc_call *call);
int arpc_request_new(struct arpc_link *link, const char *path, const struct arpc_pair *metadata, size_t metadata_count,
                     const struct arpc_handler *handler, struct arpc_call **out, struct amp_error *error);

#endif
