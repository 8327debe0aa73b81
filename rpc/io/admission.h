/*
 * Admission of connections: counts those of each source address, and remembers for a while which addresses had
 * connections that were ended as abuse. A connection is unadmitted until a call on it was admitted. Unadmitted
 * connections have only the places that are left over, and the oldest one makes room for the next (rpc/h2/budget.h
 * says of which address). No I/O; on the loop's thread. Internal to rpc/io.
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
/* A hash of it. */
uint32_t arpc_admission_hash(const struct arpc_admission_key *key);

#define ARPC_ADMISSION_ROWS 1024

struct arpc_admission {
    const struct arpc_limits *limits;
    struct amp_list rows[ARPC_ADMISSION_ROWS]; /* by hash */
    struct amp_list idle; /* sources without a connection, whose strikes are remembered; oldest first */
    size_t idle_count;
    size_t most;                   /* bound of all connections */
    size_t admitted;               /* connections on which a call was admitted */
    struct arpc_budget unadmitted; /* places */
    struct arpc_memory_budgets memory;
};

/* One source address. */
struct arpc_source {
    struct amp_list in_row;
    struct amp_list in_idle;
    struct arpc_admission_key key;
    size_t connections;           /* open now */
    struct arpc_bucket strikes;   /* connections that may still end as abuse before the address is refused */
    struct arpc_flow_group flows; /* of its connections in the loop's time */
    struct arpc_account unadmitted;
    struct arpc_host host;
};

/* One connection. Zeroed: it was not let in. */
struct arpc_admission_conn {
    struct arpc_source *source;
    struct arpc_charge unadmitted; /* amount 1 until a call on it was admitted */
    bool admitted;
};

/* Prepares the admission of at most `most` connections; `limits` must outlive it. */
void arpc_admission_init(struct arpc_admission *admission, const struct arpc_limits *limits, size_t most);
void arpc_admission_close(struct arpc_admission *admission);

/*
 * Asks whether a new connection is let in. NONE: it is, and arpc_admission_leave is due for `conn`; *out is another
 * connection that has to be closed for it, or NULL. Else why not: ADDRESS, STRIKES, UNADMITTED or CONNECTIONS (also if
 * there is no memory to count it).
 */
enum arpc_abuse arpc_admission_enter(struct arpc_admission *admission, const struct arpc_admission_key *key,
                                     int64_t now_ms, struct arpc_admission_conn *conn,
                                     struct arpc_admission_conn **out);

/* A call was admitted on this connection. */
void arpc_admission_admit(struct arpc_admission *admission, struct arpc_admission_conn *conn);

/* A connection of this source is being ended as abuse. */
void arpc_admission_strike(struct arpc_admission *admission, struct arpc_source *source, int64_t now_ms);

/* A connection that was let in has closed. */
void arpc_admission_leave(struct arpc_admission *admission, struct arpc_admission_conn *conn, int64_t now_ms);

#endif
