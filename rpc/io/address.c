#define _GNU_SOURCE /* SOCK_CLOEXEC, SOCK_NONBLOCK */
#include "rpc/io/address.h"

#include <uv.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int bad_address(const char *text, struct amp_error *error)
{
    return amp_error_set(error, AMP_EINVAL, NULL, "address \"%s\": host:port, [v6]:port or unix:/path is expected",
                         text);
}

static int parse_unix(const char *text, const char *path, struct arpc_address *address, struct amp_error *error)
{
    size_t size = strlen(path);
    if (size == 0)
        return bad_address(text, error);
    if (size > ARPC_UNIX_PATH_MAX)
        return amp_error_set(error, AMP_EINVAL, NULL, "address \"%s\": a socket path has at most %d bytes", text,
                             ARPC_UNIX_PATH_MAX);
    address->is_unix = true;
    memcpy(address->host, path, size + 1);
    return 0;
}

static bool port_ok(const char *port)
{
    size_t size = strlen(port);
    return size >= 1 && size <= 5 && strspn(port, "0123456789") == size && atoi(port) <= 65535;
}

int arpc_address_parse(const char *text, struct arpc_address *address, struct amp_error *error)
{
    *address = (struct arpc_address){0};
    if (strncmp(text, "unix:", 5) == 0)
        return parse_unix(text, text + 5, address, error);
    const char *colon = strrchr(text, ':');
    if (colon == NULL || !port_ok(colon + 1))
        return bad_address(text, error);
    const char *host = text;
    size_t size = (size_t)(colon - text);
    if (size >= 2 && host[0] == '[' && host[size - 1] == ']') {
        host++;
        size -= 2;
    } else if (memchr(host, ':', size) != NULL) {
        return bad_address(text, error);
    }
    if (size == 0 || size >= sizeof address->host)
        return bad_address(text, error);
    memcpy(address->host, host, size);
    (void)snprintf(address->port, sizeof address->port, "%s", colon + 1);
    return 0;
}

void arpc_address_write(const struct sockaddr *address, char *text, int size, int *port)
{
    char host[64] = "?";
    int number = 0;
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)address;
        (void)uv_ip4_name(v4, host, sizeof host);
        number = ntohs(v4->sin_port);
        (void)snprintf(text, (size_t)size, "%s:%d", host, number);
    } else {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)address;
        (void)uv_ip6_name(v6, host, sizeof host);
        number = ntohs(v6->sin6_port);
        (void)snprintf(text, (size_t)size, "[%s]:%d", host, number);
    }
    if (port != NULL)
        *port = number;
}

bool arpc_address_has_directory(const char *path)
{
    char directory[ARPC_UNIX_PATH_MAX + 1];
    struct stat about;
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        return true;
    (void)snprintf(directory, sizeof directory, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    return stat(directory, &about) == 0 || errno != ENOENT;
}

bool arpc_address_remove_stale(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat about;
    if (strlen(path) >= sizeof address.sun_path || stat(path, &about) != 0 || !S_ISSOCK(about.st_mode))
        return false;
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    bool refused = connect(fd, (const struct sockaddr *)&address, sizeof address) != 0 && errno == ECONNREFUSED;
    (void)close(fd);
    return refused && unlink(path) == 0;
}
