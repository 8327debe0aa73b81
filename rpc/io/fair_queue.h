/*
 * Fair queueing of the connections (flows) of one loop: how much time of a turn of the loop each may use, for reads and
 * for pumps (deferred.h). A flow has a credit of time: it earns credit while it wants nothing, and pays for its reads
 * and pumps. A flow with credit is calm and is served at once. One in debt is busy, like attackers, but also like
 * honest peers that move much data; all busy flows share a budget in each turn. When the budget is spent, the others
 * wait for the next turn, in which those that have not read yet come first. A flow that waits earns nothing: otherwise
 * all flows of a crowded loop would be calm after a while.
 *
 * The budget of busy flows is divided among addresses first, and the share of an address among its connections. So a
 * connection that becomes busy beside a hundred of another address has half of the budget, and is soon calm again.
 *
 * No I/O and no clock: the caller gives times, in nanoseconds. Internal to rpc/io.
 */
#ifndef ARPC_IO_FAIR_QUEUE_H
#define ARPC_IO_FAIR_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * How long all busy connections together may read in a turn, and how long they may be pumped. A calm one waits for
 * about twice this.
 */
#define ARPC_FAIR_BUDGET_NS 250000
/* The same for a connection that is alone: no other one waits, and each turn has a cost of its own. */
#define ARPC_FAIR_ALONE_NS 500000
/* For this time after another connection was served none is alone, and a calm one that was served is expected again. */
#define ARPC_FAIR_RECENT_NS 20000000
/*
 * How long calm connections together may read in a turn, and be pumped; then they wait with the busy ones, since many
 * calm ones are a crowd too.
 */
#define ARPC_FAIR_CALM_NS 500000
/* Least time of a read or a pump: less is not worth its system calls. */
#define ARPC_FAIR_SLICE_NS 10000
/*
 * A connection earns 1/3 of the time in which it wants nothing. 2,000 small calls a second, each in a turn, need 1/6.
 */
#define ARPC_FAIR_EARNING 3
/*
 * Most credit that a connection can have: enough for the calls that became due while the peer or this thread did not
 * run for some milliseconds.
 */
#define ARPC_FAIR_CREDIT_NS 2000000
/*
 * Debt of a new connection, which it has earned back in about 0.1 s: so a wave of new connections is not served before
 * old ones.
 */
#define ARPC_FAIR_ENTRY_NS 32000000
/* Most debt of a connection: so a large transfer is paid off after about 0.4 s. */
#define ARPC_FAIR_DEBT_NS 128000000

/* The connections of one address. Zeroed: none has been busy. */
struct arpc_flow_group {
    uint64_t turn;         /* the turn for which the fields about pumps are set */
    uint64_t round;        /* round of the queue in which one of its connections last read */
    int64_t round_ns;      /* time that its connections have read in that round */
    uint64_t own_round;    /* its own round, in which each of its busy connections may read a slice; may last longer */
    int64_t slice_ns;      /* how long one connection may read in its own round */
    unsigned readers;      /* connections that have read in its own round */
    bool put_off;          /* a connection had to wait because the group's share was used up */
    int64_t pump_ns;       /* time that pumps of its connections took in this turn */
    int64_t pump_slice_ns; /* how long one such pump may take */
    unsigned pumps;        /* pumps that its connections have asked for in this turn, repeated ones included */
};

struct arpc_flow {
    struct arpc_flow_group *group; /* NULL: the queue's group `common` */
    int64_t credit_ns;             /* below 0: it is busy */
    int64_t earned_ns;             /* time up to which its earnings are in credit_ns */
    uint64_t round;                /* round of its group in which it last read as a busy one */
    int64_t round_ns;              /* time that it has read in that round */
    bool unread;                   /* it probably has more to read */
    bool unpumped;                 /* it waits to be pumped */
    bool reads_first;              /* its last read was allowed because it was calm */
    bool pumps_first;              /* its last pump was allowed because it was calm */
};

/* The state of one loop. */
struct arpc_fair_queue {
    int64_t budget_ns;             /* for reads of busy connections in this turn, and as much for their pumps */
    int64_t read_left_ns;          /* what is left of it for reads */
    int64_t pump_left_ns;          /* what is left of it for pumps */
    int64_t calm_read_ns;          /* what is left of ARPC_FAIR_CALM_NS for reads of calm connections */
    int64_t calm_pump_ns;          /* what is left of ARPC_FAIR_CALM_NS for pumps of calm connections */
    int64_t slice_ns;              /* how long the busy connections of one address may read in this round */
    int64_t pump_slice_ns;         /* how long their pumps may take in this turn before other addresses had theirs */
    uint64_t turn;                 /* number of this turn */
    uint64_t round;                /* number of the round, in which every address may read a slice; may last turns */
    unsigned readers;              /* addresses that have read in this round */
    unsigned pumps;                /* addresses whose busy connections want to be pumped in this turn */
    bool put_off;                  /* a busy connection had to wait because the budget was spent */
    const void *last;              /* the flow that was served last; only compared */
    int64_t others_ns;             /* when `last` last changed */
    int64_t calm_ns;               /* when a calm connection was last served */
    struct arpc_flow_group common; /* the connections that have no group of their own */
};

void arpc_fair_queue_init(struct arpc_fair_queue *queue, int64_t now_ns);
void arpc_flow_init(struct arpc_flow *flow, int64_t now_ns);

/* Makes the flow one of this address, whose group must outlive it. */
void arpc_flow_join(struct arpc_flow *flow, struct arpc_flow_group *group);

/* A turn begins: refills the budgets. */
void arpc_fair_queue_turn(struct arpc_fair_queue *queue, int64_t now_ns);

/* Whether the flow may read now. */
bool arpc_fair_queue_may_read(struct arpc_fair_queue *queue, struct arpc_flow *flow, int64_t now_ns);
/* How long one read of a flow that may read may take. */
int64_t arpc_fair_queue_read_ns(struct arpc_fair_queue *queue, const struct arpc_flow *flow);
/* Counts what a read took. `drained`: there were fewer bytes than it had room for. */
void arpc_fair_queue_read(struct arpc_fair_queue *queue, struct arpc_flow *flow, int64_t took_ns, int64_t now_ns,
                          bool drained);

/* For a flow that wants to be pumped. True: at once, since it is calm. False: among the busy ones. */
bool arpc_fair_queue_pump_first(const struct arpc_fair_queue *queue, struct arpc_flow *flow, int64_t now_ns);
/*
 * Whether one more busy flow may be pumped in this turn; and whether this one may, whose address may have used up its
 * share already.
 */
bool arpc_fair_queue_may_pump(const struct arpc_fair_queue *queue);
bool arpc_fair_queue_pump_next(struct arpc_fair_queue *queue, struct arpc_flow *flow);
/* How long a pump may take. */
int64_t arpc_fair_queue_pump_ns(struct arpc_fair_queue *queue, const struct arpc_flow *flow);
/* Counts what a pump took. `more`: the flow has to be pumped again. */
void arpc_fair_queue_pumped(struct arpc_fair_queue *queue, struct arpc_flow *flow, int64_t took_ns, int64_t now_ns,
                            bool more);

/* Whether busy connections were served in this turn, or wait for the next one. */
bool arpc_fair_queue_was_used(const struct arpc_fair_queue *queue);
/* Whether nobody else was served of late. */
bool arpc_fair_queue_alone(const struct arpc_fair_queue *queue, int64_t now_ns);
/* Whether a calm connection was served of late, whose peer may want this core while others are busy. */
bool arpc_fair_queue_calm_expected(const struct arpc_fair_queue *queue, int64_t now_ns);

#endif
