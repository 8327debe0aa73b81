/* What a server counts for each of its methods, with the meaning that go-grpc-prometheus and its dashboards give it. */
#ifndef ARPC_STATS_H
#define ARPC_STATS_H

#include <stddef.h>
#include <stdint.h>

struct arpc_method;
struct arpc_server;

#define ARPC_STATUS_COUNT 17 /* of gRPC: 0 (OK) to 16 (UNAUTHENTICATED) */

/* Upper ends of the buckets of a call's duration: the Prometheus clients' defaults, in seconds. The last has none. */
#define ARPC_STATS_BOUNDS                                                                                              \
    {                                                                                                                  \
        0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10                                                        \
    }
#define ARPC_STATS_BUCKETS 12

/* Since the server was made. */
struct arpc_method_stats {
    uint64_t started;                     /* calls with valid headers, also those that admit_cb has refused */
    uint64_t handled[ARPC_STATUS_COUNT];  /* of these, the ones that are over, by status */
    uint64_t received;                    /* complete messages that were received */
    uint64_t sent;                        /* messages that were queued */
    uint64_t buckets[ARPC_STATS_BUCKETS]; /* calls that are over, by duration; each call is in one of them */
    uint64_t total_us;                    /* duration of all that are over */
};

/* How many methods the server has, with those of health and reflection. On the loop. */
size_t arpc_server_methods(const struct arpc_server *server);

/* The index-th method by name, and in *stats what was counted of it. index < arpc_server_methods. On the loop. */
const struct arpc_method *arpc_server_method(const struct arpc_server *server, size_t index,
                                             const struct arpc_method_stats **stats);

#endif
