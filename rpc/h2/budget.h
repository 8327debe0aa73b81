/*
 * Budgets of what all connections of a server share and no single address may use up: places for connections on which
 * no call was let in, memory of open calls, of messages that are not whole, of calls that wait, and of unsent answers.
 * Each address has an account in each budget, and each connection, message or call has a charge in an account. A new
 * charge is never refused because of what others hold: if a budget is exceeded, the address with the largest account
 * loses its oldest charge.
 *
 * No I/O; the caller gives the time. On the loop's thread. Internal to rpc/.
 */
#ifndef ARPC_H2_BUDGET_H
#define ARPC_H2_BUDGET_H

#include "base/list.h"
#include "rpc/h2/watch.h"

#include <stddef.h>
#include <stdint.h>

/* About what a call takes apart from its metadata and the bytes of its messages. */
#define ARPC_CALL_BYTES ((size_t)4 << 10)

/* Amounts are bytes or places, whatever the budget is about. */
struct arpc_budget {
    int64_t most;             /* limit for all addresses together; INT64_MAX: none */
    int64_t most_per_address; /* limit for each address; INT64_MAX: none */
    int64_t least_ms;         /* a charge younger than this is not ended for a newer one of its own address */
    int64_t used;             /* sum of all charges */
    struct amp_list accounts; /* those that have a charge */
};

/* The charges of one address in one budget. */
struct arpc_account {
    struct arpc_budget *budget; /* NULL: nothing is counted */
    struct amp_list in_budget;  /* in budget->accounts while it has a charge */
    struct amp_list charges;    /* oldest first */
    int64_t used;               /* sum of its charges */
};

/* The amount that one connection, message or call takes. Zeroed: nothing. */
struct arpc_charge {
    struct arpc_account *account; /* NULL while the amount is 0 */
    struct amp_list in_account;   /* in account->charges while the amount is not 0 */
    int64_t amount;
    int64_t since_ms; /* when it became other than 0 */
};

/* The budgets of memory that the calls of all addresses share. */
struct arpc_memory_budgets {
    struct arpc_budget unfinished; /* bytes of messages that are not whole, on admitted connections */
    struct arpc_budget unadmitted; /* such bytes on other connections: 4 KiB for each of limits.unadmitted */
    struct arpc_budget waiting;    /* bytes of calls that are paused before they have moved bulk data */
    struct arpc_budget open;       /* 4 KiB and the kept metadata of each open call on an admitted connection */
    struct arpc_budget unsent;     /* bytes of messages that are copies as a whole, and have not left */
};

/* What the calls of one address share. */
struct arpc_host {
    struct arpc_account unfinished; /* in arpc_memory_budgets.unfinished */
    struct arpc_account unadmitted; /* in arpc_memory_budgets.unadmitted */
    struct arpc_account waiting;    /* in arpc_memory_budgets.waiting */
    struct arpc_account open;       /* in arpc_memory_budgets.open */
    struct arpc_account unsent;     /* in arpc_memory_budgets.unsent */
    struct arpc_bucket inflated;    /* bytes that its compressed messages may still inflate to */
};

/* An empty budget; a limit of 0 means none. */
void arpc_budget_init(struct arpc_budget *budget, int64_t most, int64_t most_per_address, int64_t least_ms);
/* An account without charges; `budget` must outlive it, or is NULL: nothing is counted. */
void arpc_account_init(struct arpc_account *account, struct arpc_budget *budget);
/* Empty budgets with the limits for unfinished messages and waiting calls. */
void arpc_memory_budgets_init(struct arpc_memory_budgets *budgets, const struct arpc_limits *limits);
/* An address without calls; `budgets` must outlive it, or is NULL: memory is not counted. */
void arpc_host_init(struct arpc_host *host, struct arpc_memory_budgets *budgets, const struct arpc_limits *limits,
                    int64_t now_ms);

/*
 * Changes the amount of a charge in `account`, always the same one; 0 ends it. Its age counts from when it became other
 * than 0. Does nothing if the account has no budget.
 */
void arpc_charge_set(struct arpc_charge *charge, struct arpc_account *account, int64_t amount, int64_t now_ms);

/*
 * After arpc_charge_set has raised `charge`: the charge whose owner has to set it to 0 since a limit is exceeded, maybe
 * `charge` itself. NULL: there is room. To be called again until it is NULL.
 */
struct arpc_charge *arpc_charge_excess(struct arpc_charge *charge, int64_t now_ms);

/* Whether an address may inflate more bytes of compressed messages now. */
bool arpc_host_may_inflate(struct arpc_host *host, const struct arpc_limits *limits, int64_t now_ms);
/* Counts bytes that were inflated, beyond 16 times their compressed size, against the address afterwards. */
void arpc_host_inflated(struct arpc_host *host, size_t compressed, size_t inflated);

#endif
