/* "host:port", "[v6]:port" and "unix:/path". Internal to rpc/io. */
#ifndef ARPC_IO_ADDRESS_H
#define ARPC_IO_ADDRESS_H

#include "base/err.h"

#include <stdbool.h>

/* sun_path has 108 bytes with the final zero; libuv 1.44 cuts a longer path without a word. */
#define ARPC_UNIX_PATH_MAX 107

struct sockaddr;

struct arpc_address {
    bool is_unix;
    char host[256]; /* or the path */
    char port[8];
};

/* 0 or AMP_EINVAL with a text that names the address. */
int arpc_address_parse(const char *text, struct arpc_address *address, struct amp_error *error);

/*
 * Removes the file of a unix socket on which nobody listens any more, as a process that was killed leaves it. False:
 * there is something else at the path, or somebody listens.
 */
bool arpc_address_remove_stale(const char *path);

/* Whether the directory that a unix socket's file lies in is there. */
bool arpc_address_has_directory(const char *path);

/* "127.0.0.1:7420" or "[::1]:7420" of a socket address; *port too if not NULL. */
void arpc_address_write(const struct sockaddr *address, char *text, int size, int *port);

#endif
