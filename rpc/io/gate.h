/*
 * Who is let in: counts the connections of each address, and remembers for a while which addresses had connections that were
 * ended as abuse. No I/O. Internal to rpc/io.
 */
#ifndef ARPC_IO_GATE_H
#define ARPC_IO_GATE_H

#include "base/list.h"
#include "rpc/arpc_limits.h"
#include "rpc/h2/watch.h"
#include "rpc/io/share.h"

struct sockaddr;

/* An IPv4 address, the /64 of an IPv6 address (which one host has whole), or a user of this machine. */
struct arpc_gate_key {
    uint8_t bytes[16];
};

struct arpc_gate_key arpc_gate_key_of_address(const struct sockaddr *address);
struct arpc_gate_key arpc_gate_key_of_user(int64_t uid);

#define ARPC_GATE_ROWS 1024

struct arpc_gate {
    const struct arpc_limits *limits;
    struct amp_list rows[ARPC_GATE_ROWS]; /* by hash */
    struct amp_list idle;                 /* guests without a connection, whose strikes are remembered; oldest first */
    size_t idle_count;
};

/* One address. */
struct arpc_guest {
    struct amp_list in_row;
    struct amp_list in_idle;
    struct arpc_gate_key key;
    size_t connections;
    struct arpc_bucket strikes;
    struct arpc_share_group share; /* of its connections in the loop's time */
};

void arpc_gate_init(struct arpc_gate *gate, const struct arpc_limits *limits);
void arpc_gate_close(struct arpc_gate *gate);

/*
 * A connection wants to be let in. NONE and *guest, for arpc_gate_leave; else why it is not: ADDRESS, STRIKES, and
 * CONNECTIONS if there is no memory to count it.
 */
enum arpc_abuse arpc_gate_enter(struct arpc_gate *gate, const struct arpc_gate_key *key, int64_t now_ms,
                                struct arpc_guest **guest);

/* One of its connections is being ended as abuse. */
void arpc_gate_strike(struct arpc_gate *gate, struct arpc_guest *guest, int64_t now_ms);

/* A connection is gone. */
void arpc_gate_leave(struct arpc_gate *gate, struct arpc_guest *guest, int64_t now_ms);

#endif
