/* The server's side of header blocks. Internal to rpc/. */
#ifndef ARPC_H2_SERVE_H
#define ARPC_H2_SERVE_H

#include "rpc/h2/call.h"

int arpc_serve_field(struct arpc_call *call, const uint8_t *name, size_t name_size, const uint8_t *value,
                     size_t value_size);
enum arpc_encoding arpc_encoding_of(const uint8_t *name, size_t size);
void arpc_serve_begin(struct arpc_call *call);
/* Ends the calls that have been handed over and would not be let in now; how many. */
unsigned arpc_link_admit_again(struct arpc_link *link,
                               int (*admit_cb)(struct arpc_call *call, void *arg, struct amp_error *error));
void arpc_serve_flush(struct arpc_call *call);
int arpc_serve_trailers(struct arpc_call *call);

#endif
