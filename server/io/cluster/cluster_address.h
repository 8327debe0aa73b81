/* Parses the addresses of shards (--peers, --advertise) and of etcd (--cluster). Pure functions. */
#ifndef AMPD_IO_CLUSTER_ADDRESS_H
#define AMPD_IO_CLUSTER_ADDRESS_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Most shards of a cluster; the bound is that of server/core. */
#define IO_CLUSTER_SHARDS_MAX 64

/* Longest address with the final zero. */
#define IO_CLUSTER_ADDRESS_MAX 256

/* Longest name of a cluster in etcd, with the final zero. */
#define IO_CLUSTER_NAME_MAX 64

/* Longest list of etcd's endpoints, with the final zero. */
#define IO_CLUSTER_ENDPOINTS_MAX 1024

/* The parts of --cluster. */
struct io_cluster_url {
    char endpoints[IO_CLUSTER_ENDPOINTS_MAX]; /* "h:2379,h:2379" */
    char name[IO_CLUSTER_NAME_MAX];
    bool tls; /* "etcds://" */
};

/*
 * Parses "etcd://h:2379,h:2379/NAME", or "etcds://..." for TLS. A name has letters, digits, '.', '_' and '-', and
 * begins with a letter or digit. AMP_EINVAL: the text says what is wrong.
 */
int io_cluster_url_parse(const char *text, struct io_cluster_url *url, struct amp_error *error);

/*
 * Whether another process could connect to this address: "unix:/PATH", or HOST:PORT with a port from 1 to 65535 and a
 * host that is not a wildcard such as 0.0.0.0.
 */
bool io_cluster_address_ok(const char *address);

/* Copies the index-th address of a comma-separated list. False: there is none, or it is empty or too long. */
bool io_cluster_list_address(const char *list, uint32_t index, char address[IO_CLUSTER_ADDRESS_MAX]);

/*
 * The number of addresses in a comma-separated list. 0: one is empty or too long, or there are more than
 * IO_CLUSTER_SHARDS_MAX.
 */
uint32_t io_cluster_list_count(const char *list);

#endif
