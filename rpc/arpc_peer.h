/* The peer at the other end of a connection, as far as the transport knows it. */
#ifndef ARPC_PEER_H
#define ARPC_PEER_H

#include <stdbool.h>
#include <stdint.h>

struct amp_error;

enum arpc_transport {
    ARPC_TRANSPORT_TCP,
    ARPC_TRANSPORT_TLS, /* TCP with TLS */
    ARPC_TRANSPORT_UNIX
};

/* Longest name taken from a certificate, with the final zero: a DNS name has 253 bytes. */
#define ARPC_PEER_NAME_SIZE 256

struct arpc_peer {
    const char *address; /* "127.0.0.1:40312", "[::1]:40312" or "unix" */
    enum arpc_transport transport;
    bool encrypted; /* by TLS; also over a unix socket, if its listener asks for it */
    /* The same number for all connections of an IPv4 address, of a /64 of IPv6, or of a user of this machine. */
    uint32_t source;
    /*
     * From the peer's certificate, which has been verified: the subject's common name, and the first DNS or URI entry
     * of the subject's alternative names. "" without a certificate, if it has no such name, or if the name is too long
     * or has a zero byte inside. A name is never truncated, since names give rights.
     */
    char subject[ARPC_PEER_NAME_SIZE];
    char alternative[ARPC_PEER_NAME_SIZE];
    /* The process that connected to the unix socket (SO_PEERCRED); -1 for other transports, or if unknown. */
    int64_t pid;
    int64_t uid;
    int64_t gid;
};

/*
 * Whether "host:port", "[v6]:port" or "unix:/path" can only lead to this machine: a unix socket, a loopback address, or
 * the name localhost. Any thread.
 */
bool arpc_is_loopback(const char *address);

/*
 * Whether the host of "host:port" is known here, which may take seconds. 0; AMP_EINVAL with a text that names the
 * address.
 */
int arpc_host_resolves(const char *address, struct amp_error *error);

#endif
