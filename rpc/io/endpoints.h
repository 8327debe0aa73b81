/* "a:1,[v6]:2,unix:/path": the addresses of one channel, in the order in which they are tried. Internal to rpc/io. */
#ifndef ARPC_IO_ENDPOINTS_H
#define ARPC_IO_ENDPOINTS_H

#include "rpc/h2/link.h"
#include "rpc/io/address.h"

/* Most endpoints of a channel. Each gets an equal share of the time of an attempt to connect. */
#define ARPC_ENDPOINTS_MAX 16

struct arpc_endpoint {
    struct arpc_address address;
    char text[ARPC_PEER_SIZE]; /* as it was given */
};

struct arpc_endpoints {
    size_t count; /* 1 to ARPC_ENDPOINTS_MAX */
    struct arpc_endpoint list[ARPC_ENDPOINTS_MAX];
};

/* 0 or AMP_EINVAL with a text that names the address. A comma always separates; spaces are no part of an address. */
int arpc_endpoints_parse(const char *text, struct arpc_endpoints *endpoints, struct amp_error *error);

#endif
