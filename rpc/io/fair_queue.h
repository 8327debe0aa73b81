/*
 * A fair queue of the connections of one loop, which are its flows: who may use how much of a turn of the loop. Every
 * flow has an account: it earns a part of the time in which it wants nothing, and pays for what its reading and its
 * pumping take. One that has credit is calm and is served at once; one that is in debt is busy, as attackers are and
 * honest peers that move much, and all busy ones share a budget a turn. What finds the budget spent waits for the next
 * turn, and those that have not read yet come first then. Who waits earns nothing: else those that share a crowded loop
 * would all be calm after a while.
 *
 * The busy ones' budget is divided among addresses first, and what an address has of it among its connections: who
 * falls behind beside a crowd from elsewhere has more than one of a hundred parts, and so comes back.
 *
 * No I/O, no clock: times are given, in nanoseconds. Internal to rpc/io.
 */
#ifndef ARPC_IO_FAIR_QUEUE_H
#define ARPC_IO_FAIR_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What all busy connections together may read in a turn, and what they may be pumped: a calm one waits for about the
 * two.
 */
#define ARPC_FAIR_BUDGET_NS 250000
/* The same for one that is alone: nobody waits, and turns cost something too. */
#define ARPC_FAIR_ALONE_NS 500000
/* So long after another was served nobody is alone, and after a calm one was that it is expected back. */
#define ARPC_FAIR_RECENT_NS 20000000
/*
 * What calm ones may read in a turn, and be pumped, before they wait with the busy ones: many of them are a crowd too.
 */
#define ARPC_FAIR_CALM_NS 500000
/* The least that is worth a read or a pump's system calls. */
#define ARPC_FAIR_SLICE_NS 10000
/* A connection earns one of so many nanoseconds: 2,000 small calls a second, each in a turn of its own, use a sixth. */
#define ARPC_FAIR_EARNING 3
/*
 * The most that is saved up: the calls that became due while the peer or this thread was kept from its core for some
 * ms.
 */
#define ARPC_FAIR_CREDIT_NS 2000000
/*
 * A new connection is busy until it has earned this, in about 0.1 s: a wave of new ones is not served before old ones.
 */
#define ARPC_FAIR_ENTRY_NS 32000000
/* Nobody owes more, so that a large transfer is forgotten after about 0.4 s. */
#define ARPC_FAIR_DEBT_NS 128000000

/* Of the connections of one address. Zeroed: none has been busy. */
struct arpc_flow_group {
    uint64_t turn;      /* in which it was last looked at */
    uint64_t round;     /* of all addresses, in which it last read ... */
    int64_t round_ns;   /* ... and what its connections took of that */
    uint64_t own_round; /* in which each of its busy connections may read a slice; it may last several of the above */
    int64_t slice_ns;   /* what one of them may read in it */
    unsigned readers;   /* of them, that have read in it */
    bool put_off;       /* some found nothing left */
    int64_t pump_ns;    /* what pumps of them took in this turn ... */
    int64_t pump_slice_ns; /* ... how long one may take ... */
    unsigned pumps;        /* ... and how many of them have asked for one, or the same again */
};

struct arpc_flow {
    struct arpc_flow_group *group; /* NULL: that of all who have none */
    int64_t credit_ns;             /* below 0: busy */
    int64_t earned_ns;             /* up to when it has earned */
    uint64_t round;                /* of its group, in which it last read as a busy one ... */
    int64_t round_ns;              /* ... and what that took in all */
    bool unread;                   /* it has more to read, as far as is known */
    bool unpumped;                 /* it waits to be pumped */
    bool reads_first;              /* its last read was let through as a calm one's ... */
    bool pumps_first;              /* ... and its last pump */
};

/* Of one loop. */
struct arpc_fair_queue {
    int64_t budget_ns;             /* of this turn */
    int64_t read_left_ns;          /* of it */
    int64_t pump_left_ns;          /* of it, for pumps */
    int64_t calm_read_ns;          /* what is left of ARPC_FAIR_CALM_NS */
    int64_t calm_pump_ns;          /* the same for pumps */
    int64_t slice_ns;              /* what the busy connections of an address may read in this round */
    int64_t pump_slice_ns;         /* how long their pumps may take in this turn, before others had theirs */
    uint64_t turn;                 /* its number */
    uint64_t round;                /* in which every address may read a slice; it may last several turns */
    unsigned readers;              /* addresses that have read in it */
    unsigned pumps;                /* addresses whose busy connections want to be pumped in this turn */
    bool put_off;                  /* some found the budget spent */
    const void *last;              /* who was last served: only compared */
    int64_t others_ns;             /* when that last changed */
    int64_t calm_ns;               /* when a calm one was last served */
    struct arpc_flow_group common; /* of those who have none */
};

void arpc_fair_queue_init(struct arpc_fair_queue *queue, int64_t now_ns);
void arpc_flow_init(struct arpc_flow *flow, int64_t now_ns);

/* It is one of those of this address from now on. */
void arpc_flow_join(struct arpc_flow *flow, struct arpc_flow_group *group);

/* A turn begins: budgets are whole again. */
void arpc_fair_queue_turn(struct arpc_fair_queue *queue, int64_t now_ns);

/* Whether it may read now. */
bool arpc_fair_queue_may_read(struct arpc_fair_queue *queue, struct arpc_flow *flow, int64_t now_ns);
/* How long one read may take, of one that may read. */
int64_t arpc_fair_queue_read_ns(struct arpc_fair_queue *queue, const struct arpc_flow *flow);
/* What a read took; `drained`: there was less than it had room for. */
void arpc_fair_queue_read(struct arpc_fair_queue *queue, struct arpc_flow *flow, int64_t took_ns, int64_t now_ns,
                          bool drained);

/* It wants to be pumped: whether at once, or among the busy ones. */
bool arpc_fair_queue_pump_first(const struct arpc_fair_queue *queue, struct arpc_flow *flow, int64_t now_ns);
/*
 * Whether one more busy one may be pumped in this turn, and whether that one should be before others of its address
 * have waited.
 */
bool arpc_fair_queue_may_pump(const struct arpc_fair_queue *queue);
bool arpc_fair_queue_pump_next(struct arpc_fair_queue *queue, struct arpc_flow *flow);
/* How long a pump may take. */
int64_t arpc_fair_queue_pump_ns(struct arpc_fair_queue *queue, const struct arpc_flow *flow);
/* What it took; `more`: it is due again. */
void arpc_fair_queue_pumped(struct arpc_fair_queue *queue, struct arpc_flow *flow, int64_t took_ns, int64_t now_ns,
                            bool more);

/* Whether busy connections were served in this turn, or wait for the next one. */
bool arpc_fair_queue_was_used(const struct arpc_fair_queue *queue);
/* Whether nobody else was served of late. */
bool arpc_fair_queue_alone(const struct arpc_fair_queue *queue, int64_t now_ns);
/* Whether a calm connection was served of late, whose peer may want this core while others are busy. */
bool arpc_fair_queue_calm_expected(const struct arpc_fair_queue *queue, int64_t now_ns);

#endif
