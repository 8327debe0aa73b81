#include "rpc/arpc_peer.h"

#include "base/err.h"
#include "rpc/io/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <string.h>

bool arpc_is_loopback(const char *address)
{
    char host[256];
    const char *colon = strrchr(address, ':');
    size_t size = colon != NULL ? (size_t)(colon - address) : strlen(address);
    if (strncmp(address, "unix:", 5) == 0)
        return true;
    if (size >= 2 && address[0] == '[' && address[size - 1] == ']') {
        address++;
        size -= 2;
    }
    if (size >= sizeof host)
        return false;
    memcpy(host, address, size);
    host[size] = 0;
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return (ntohl(v4.s_addr) >> 24) == 127;
    if (inet_pton(AF_INET6, host, &v6) == 1)
        return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127); /* ::ffff:127.0.0.1 */
    return strcmp(host, "localhost") == 0;
}

int arpc_host_resolves(const char *address, struct amp_error *error)
{
    struct arpc_address parsed;
    int rc = arpc_address_parse(address, &parsed, error);
    if (rc != 0 || parsed.is_unix)
        return rc;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found;
    int unknown = getaddrinfo(parsed.host, parsed.port, &hints, &found);
    if (unknown != 0)
        return amp_error_set(error, AMP_EINVAL, NULL, "cannot listen on %s: %s", address, gai_strerror(unknown));
    freeaddrinfo(found);
    return 0;
}
