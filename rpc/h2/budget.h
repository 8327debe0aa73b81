/*
 * What all connections share, and one address must not have alone: places of connections on which no call was let in,
 * memory of messages that are not whole, and memory of calls that wait. Whoever takes something is never refused for
 * what others hold: when there is too much, the address that has most gives way with the oldest that it has. No I/O;
 * the time is given. Internal to rpc/.
 */
#ifndef ARPC_H2_BUDGET_H
#define ARPC_H2_BUDGET_H

#include "base/list.h"
#include "rpc/h2/watch.h"

#include <stdint.h>

struct arpc_budget {
    int64_t most;             /* of all addresses */
    int64_t most_per_address; /* of each */
    int64_t least_ms;         /* so long nothing has to give way to something of its own address */
    int64_t used;
    struct amp_list accounts; /* those with a charge */
};

/* Of one address. */
struct arpc_account {
    struct arpc_budget *budget; /* NULL: none; nothing is counted then */
    struct amp_list in_budget;
    struct amp_list charges; /* oldest first */
    int64_t used;
};

/* What one connection, or one message, takes. Zeroed: nothing. */
struct arpc_charge {
    struct arpc_account *account; /* NULL: of none */
    struct amp_list in_account;
    int64_t amount;
    int64_t since_ms;
};

/* What the calls of all addresses take together. */
struct arpc_memory_budgets {
    struct arpc_budget unfinished; /* bytes of messages that are not whole */
    struct arpc_budget waiting;    /* bytes of calls that are paused before they have moved bulk data */
};

/* What the calls of one address take together. */
struct arpc_host {
    struct arpc_account unfinished;
    struct arpc_account waiting;
    struct arpc_bucket inflated; /* what its messages may inflate to */
};

/* 0 is no limit. */
void arpc_budget_init(struct arpc_budget *budget, int64_t most, int64_t most_per_address, int64_t least_ms);
void arpc_account_init(struct arpc_account *account, struct arpc_budget *budget);
void arpc_memory_budgets_init(struct arpc_memory_budgets *budgets, const struct arpc_limits *limits);
/* `budgets` may be NULL: none. */
void arpc_host_init(struct arpc_host *host, struct arpc_memory_budgets *budgets, const struct arpc_limits *limits,
                    int64_t now_ms);

/* From now on it takes so much; 0: nothing. It stays as old as it was, if it was something. */
void arpc_charge_set(struct arpc_charge *charge, struct arpc_account *account, int64_t amount, int64_t now_ms);

/*
 * After that: which charge has to become 0, maybe this one itself; NULL: there is room. To be asked again until there
 * is.
 */
struct arpc_charge *arpc_charge_excess(struct arpc_charge *charge, int64_t now_ms);

/* Whether a compressed message may go on to be inflated; and what came of how much, which is paid for afterwards. */
bool arpc_host_may_inflate(struct arpc_host *host, const struct arpc_limits *limits, int64_t now_ms);
void arpc_host_inflated(struct arpc_host *host, size_t compressed, size_t inflated);

#endif
