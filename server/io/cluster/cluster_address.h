/* Where shards and etcd are, as the command line says it. */
#ifndef AMPD_IO_CLUSTER_ADDRESS_H
#define AMPD_IO_CLUSTER_ADDRESS_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* A cluster has at most so many shards (server/core). */
#define IO_CLUSTER_SHARDS_MAX 64

/* Longest address with the final zero. */
#define IO_CLUSTER_ADDRESS_MAX 256

/* Longest name of a cluster in etcd, with the final zero. */
#define IO_CLUSTER_NAME_MAX 64

/* Longest list of etcd's endpoints, with the final zero. */
#define IO_CLUSTER_ENDPOINTS_MAX 1024

/* Where a cluster is kept, as --cluster says it. */
struct io_cluster_url {
    char endpoints[IO_CLUSTER_ENDPOINTS_MAX]; /* "h:2379,h:2379" */
    char name[IO_CLUSTER_NAME_MAX];
    bool tls; /* "etcds://" */
};

/*
 * Reads "etcd://h:2379,h:2379/NAME", or "etcds://..." for TLS. A name has letters, digits, '.', '_' and '-', and begins
 * with none of the last three. AMP_EINVAL: the text says what is wrong.
 */
int io_cluster_url_parse(const char *text, struct io_cluster_url *url, struct amp_error *error);

/* Whether a client on another machine could connect to this address: a host or a socket, and a port that is not 0. */
bool io_cluster_address_ok(const char *address);

/* The index-th address of a list with commas. False: there is none, or it is empty or too long. */
bool io_cluster_list_address(const char *list, uint32_t index, char address[IO_CLUSTER_ADDRESS_MAX]);

/* How many addresses a list with commas has; 0: one of them is empty or too long, or they are too many. */
uint32_t io_cluster_list_count(const char *list);

#endif
