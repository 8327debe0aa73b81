/*
 * Admission of connections: counts those of each source address, and remembers for a while which addresses had
 * connections that were ended as abuse. A connection is a stranger's until a call on it was admitted; strangers have
 * only places that are left over, and the oldest makes room for the next (rpc/h2/budget.h says whose). No I/O. Internal
 * to rpc/io.
 */
#ifndef ARPC_IO_ADMISSION_H
#define ARPC_IO_ADMISSION_H

#include "base/list.h"
#include "rpc/arpc_limits.h"
#include "rpc/h2/budget.h"
#include "rpc/io/fair_queue.h"

struct sockaddr;

/* An IPv4 address, the /64 of an IPv6 address (which one host has whole), or a user of this machine. */
struct arpc_admission_key {
    uint8_t bytes[16];
};

struct arpc_admission_key arpc_admission_key_of_address(const struct sockaddr *address);
struct arpc_admission_key arpc_admission_key_of_user(int64_t uid);

#define ARPC_ADMISSION_ROWS 1024

struct arpc_admission {
    const struct arpc_limits *limits;
    struct amp_list rows[ARPC_ADMISSION_ROWS]; /* by hash */
    struct amp_list idle; /* sources without a connection, whose strikes are remembered; oldest first */
    size_t idle_count;
    size_t most;                  /* connections in all */
    size_t known;                 /* those that are no strangers' */
    struct arpc_budget strangers; /* places */
    struct arpc_memory_budgets memory;
};

/* One address. */
struct arpc_source {
    struct amp_list in_row;
    struct amp_list in_idle;
    struct arpc_admission_key key;
    size_t connections;
    struct arpc_bucket strikes;
    struct arpc_flow_group flows; /* of its connections in the loop's time */
    struct arpc_account strangers;
    struct arpc_host host;
};

/* One connection. Zeroed: it was not let in. */
struct arpc_admitted {
    struct arpc_source *source;
    struct arpc_charge stranger; /* 1 as long as it is one */
    bool known;
};

/* `most` connections in all. */
void arpc_admission_init(struct arpc_admission *admission, const struct arpc_limits *limits, size_t most);
void arpc_admission_close(struct arpc_admission *admission);

/*
 * A connection wants to be let in. NONE, and `admitted` is for arpc_admission_leave; *out is the one that has to go for
 * it, or NULL. Else why it is not: ADDRESS, STRIKES, STRANGERS, CONNECTIONS; that too if there is no memory to count
 * it.
 */
enum arpc_abuse arpc_admission_enter(struct arpc_admission *admission, const struct arpc_admission_key *key,
                                     int64_t now_ms, struct arpc_admitted *admitted, struct arpc_admitted **out);

/* A call was let in on it. */
void arpc_admission_know(struct arpc_admission *admission, struct arpc_admitted *admitted);

/* One of its connections is being ended as abuse. */
void arpc_admission_strike(struct arpc_admission *admission, struct arpc_source *source, int64_t now_ms);

/* A connection is gone. */
void arpc_admission_leave(struct arpc_admission *admission, struct arpc_admitted *admitted, int64_t now_ms);

#endif
