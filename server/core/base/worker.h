/*
 * What this process knows of a rank and the worker that holds it. "Another shard" below is one other than 0; what does
 * not name it is known to shard 0 alone. Private to server/core.
 */
#ifndef AMPD_CORE_WORKER_H
#define AMPD_CORE_WORKER_H

#include "server/core/call_events.h"
#include "server/core/model/states.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

/* How the rank's pushes have come out since this process started (coordinator/health.c). */
struct ampd_worker_health {
    uint64_t pushes, overflow_pushes, last_step; /* that counted; of them with Inf or NaN; step of the last that did */
    uint64_t slow_steps, slow_ms;                /* steps in which all others waited for it, and for how long in all */
    uint32_t slow_in_row, bad_pushes;            /* such steps, and bad pushes, in a row; up to where it is named */
    uint64_t bad_window; /* a bit for each of the newest AMPD_QUARANTINE_WINDOW pushes, lowest the newest: 1 is bad */
    float finite_scale;  /* the scale of its last push that was finite; 0: none was */
    bool straggles, nonfinite;     /* it is named as a straggler, or for pushes that are not finite */
    uint64_t quarantined_until_ms; /* when its quarantine ends; 0: it has had none */
    uint64_t barred_epoch;         /* the epoch of the quarantine, which ends with it */
};

/* Joins, those of them by another process while the lease ran, Leaves, and refused calls (ranks.c). */
struct ampd_worker_counts {
    uint64_t joins, replacements, leaves, fences;
};

struct ampd_worker {
    struct ampd_worker_record record; /* as stored last; its name is that of a Join which is still being stored */
    struct ampd_incarnation named;    /* the oldest that is known to have joined under record.name */
    bool has_holder;                  /* a worker has, or had, the rank */
    enum ampd_lease_state lease;
    uint64_t joined_epoch;   /* the epoch of its last Join; 0: not since this process started */
    uint64_t lease_until_ms; /* LIVE: when the lease ends; else since when it is over */
    bool storing; /* a Join or Leave is being stored: until then the rank is nobody else's, and neither comes again */
    struct ampd_worker_health health;
    uint64_t instance; /* of the process that joined last; 0: it gave none, or none has since this process started */
    char peer[AMPD_PEER_NAME_MAX];  /* the address that its last Join came from; "": none since this process started */
    uint64_t joined_ms;             /* when the last Join was stored */
    struct ampd_incarnation others; /* the newest that belonged to another process than the holder's; counter 0: none */
    struct ampd_incarnation evicted; /* the newest that an operator evicted; counter 0: none since the start */
    uint64_t evicted_ms;             /* when that was */
    struct ampd_incarnation alive;   /* another shard: heard from, for the next ALIVE; counter 0: none */
    struct ampd_incarnation listed;  /* another shard: the newest that an OPEN has listed; counter 0: none has */
    struct ampd_worker_counts counts;
    uint64_t quiet_until_ms;              /* no line of the log is about the rank before this time */
    struct ampd_worker_counts suppressed; /* what the log left out for that, to be logged in one line */
};

#endif
