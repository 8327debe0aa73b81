/* What all links of one server or channel have in common: options, and what they count together. Internal to rpc/. */
#ifndef ARPC_H2_LINK_CONFIG_H
#define ARPC_H2_LINK_CONFIG_H

#include "base/random.h"
#include "rpc/arpc_limits.h"
#include "rpc/h2/budget.h"
#include "rpc/h2/method_table.h"
#include "rpc/wire/retry.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arpc_call;
struct arpc_health;
struct arpc_link;
struct arpc_pair;
struct arpc_reflection;
struct amp_error;

/* What all links of one server or channel share. */
struct arpc_link_config {
    bool server;
    int64_t (*now_cb)(void *clock);    /* milliseconds of a clock that never goes back */
    int64_t (*now_us_cb)(void *clock); /* microseconds, for durations of calls; NULL: from now_cb */
    void *clock;
    void *arg;                  /* arpc_call_server_arg */
    struct arpc_health *health; /* the state of the services that come with a server */
    struct arpc_reflection *reflection;
    struct arpc_method_table methods;
    int (*admit_cb)(struct arpc_call *call, void *arg, struct amp_error *error);
    const char *const *keep_metadata;
    size_t max_streams;
    size_t max_metadata_bytes;
    size_t max_metadata_count;
    size_t max_queued;
    size_t stream_window;
    bool compress;   /* server: answers go compressed to clients that accept it */
    int64_t idle_ms; /* 0: none */
    int64_t keepalive_ms;
    int64_t keepalive_timeout_ms; /* 0: ARPC_PING_TIMEOUT_MS */
    int64_t min_ping_interval_ms; /* server; 0: PINGs are not counted */
    int64_t max_age_ms;           /* server; 0: none. Each link's own is this +-10 % */
    int64_t max_age_grace_ms;     /* server; 0: none */
    uint64_t jitter;              /* of the ages: the state of a generator */
    bool keepalive_without_calls; /* client */
    struct arpc_link *parking;    /* client: where calls go that are to begin again; NULL: none does */
    struct arpc_retry_throttle throttle;
    struct amp_random *random; /* of the waits before calls begin again */
    size_t retained;           /* bytes that calls keep to send them again */
    size_t max_retained;       /* of all calls */
    size_t max_retained_call;  /* of each */
    int64_t write_stall_ms;
    const struct arpc_limits *limits; /* NULL: arpc_limits_default; what has a field above is taken from there */
    void (*abuse_cb)(const char *peer, enum arpc_abuse cause, uint64_t unreported, void *arg);
    void (*retired_cb)(const char *peer, const char *why, void *arg);
    struct arpc_bucket reports; /* calls of abuse_cb */
    uint64_t unreported;        /* since the last of them */
    uint64_t abuses[ARPC_ABUSE_COUNT];
    void *memory; /* nghttp2_mem for its sessions: tests let it run out; NULL: the C library's */
    uint64_t calls_total;
    size_t calls;
};

#endif
