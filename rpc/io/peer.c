/* struct ucred is Linux's. */
#define _GNU_SOURCE

#include "rpc/io/peer.h"

#include <sys/socket.h>

void arpc_peer_credentials(const uv_handle_t *handle, struct arpc_peer *peer)
{
    uv_os_fd_t fd;
    struct ucred who;
    socklen_t size = sizeof who;
    if (uv_fileno(handle, &fd) != 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0)
        return;
    peer->pid = who.pid;
    peer->uid = who.uid;
    peer->gid = who.gid;
}
