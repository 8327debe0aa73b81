/* Who holds a rank, as this process knows it. Private to server/core. */
#ifndef AMPD_CORE_WORKER_H
#define AMPD_CORE_WORKER_H

#include "server/core/call_events.h"
#include "server/core/model/states.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

/* How its pushes have come out (coordinator/health.c). */
struct ampd_worker_health {
    uint64_t pushes, overflow_pushes, last_step;
    uint64_t slow_steps, slow_ms;     /* in which all others waited for it, and how long in all of them */
    uint32_t slow_in_row, bad_pushes; /* in a row, counted up to where the worker is named */
    uint64_t bad_window; /* a bit for each of the newest AMPD_QUARANTINE_WINDOW pushes, lowest the newest: 1 is bad */
    float finite_scale;  /* of its last push that was finite; 0: none was */
    bool straggles, nonfinite;     /* named */
    uint64_t quarantined_until_ms; /* quarantine; 0: none */
    uint64_t barred_epoch;         /* it ends with this */
};

/* What the log and the status tell of a rank (ranks.c). */
struct ampd_worker_counts {
    uint64_t joins, replacements, leaves, fences;
};

struct ampd_worker {
    struct ampd_worker_record record;
    struct ampd_incarnation named; /* the oldest that is known to have joined under record.name */
    bool has_holder;               /* somebody has, or had, the rank */
    enum ampd_lease_state lease;
    uint64_t joined_epoch; /* 0: not since this process started */
    uint64_t lease_until_ms;
    bool storing; /* a Join or Leave of it: until that is over nobody else gets the rank, and neither comes again */
    struct ampd_worker_health health;
    uint64_t instance; /* of the process that holds the rank; 0: it gave none, or this process has just started */
    char peer[AMPD_PEER_NAME_MAX];   /* where its Join came from; "": likewise */
    uint64_t joined_ms;              /* when */
    struct ampd_incarnation others;  /* the newest that was another process's; counter 0: none is known */
    struct ampd_incarnation evicted; /* by an operator, the newest; counter 0: none since this process started */
    uint64_t evicted_ms;             /* when */
    struct ampd_incarnation alive;   /* another shard: heard from, and shard 0 is to be told; counter 0: none */
    struct ampd_incarnation listed;  /* another shard: the newest that an OPEN has listed; counter 0: none has */
    struct ampd_worker_counts counts;
    uint64_t quiet_until_ms; /* until then the log is told no more of the rank, but this is counted: */
    struct ampd_worker_counts untold;
};

#endif
