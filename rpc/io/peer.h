/* Who connected to a unix socket. Internal to rpc/io. */
#ifndef ARPC_IO_PEER_H
#define ARPC_IO_PEER_H

#include "rpc/arpc_peer.h"

#include <uv.h>

/* Fills in pid, uid and gid; they stay -1 if the system does not tell. */
void arpc_peer_credentials(const uv_handle_t *handle, struct arpc_peer *peer);

#endif
