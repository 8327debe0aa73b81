/*
 * Deferred work: what was asked for during a turn (an iteration) of the loop is done at its end, once for each
 * connection (see h2/link.h). To pump an item means to do its deferred work. Internal to rpc/io. Rules of libuv
 * handles: only this file, conn.c, server.c and channel.c close them, and the memory around them is released in the
 * last close callback.
 */
#ifndef ARPC_IO_DEFERRED_H
#define ARPC_IO_DEFERRED_H

#include "base/list.h"
#include "base/spin.h"
#include "rpc/io/fair_queue.h"

#include <stdint.h>
#include <uv.h>

/* One read: large enough that a 1 MiB message takes few system calls, small enough to stay in the L2 cache. */
#define ARPC_READ_SIZE ((size_t)256 << 10)

/*
 * Nanoseconds. After a turn with work the loop spins for more before it sleeps (base/spin.h), since being woken costs
 * more than all the rest of a small call. It spins for as long as a sleeping peer takes to wake and answer: with less,
 * two sides that both sleep would never begin to spin.
 */
#define ARPC_SPIN_NS UINT64_C(100000)

struct arpc_deferred_item {
    struct amp_list node;
    struct arpc_flow flow; /* used for connections; other items are always calm */
    void (*pump_cb)(struct arpc_deferred_item *item);
};

struct arpc_deferred {
    uv_loop_t *loop;
    uv_prepare_t prepare;  /* runs after timers and close callbacks */
    uv_check_t check;      /* runs after reads and writes */
    uv_idle_t idle;        /* active while an item is due or the loop spins, so that it neither sleeps nor ends */
    struct amp_list due;   /* items to be pumped */
    struct amp_list later; /* due items of busy connections, which share a budget in each turn (fair_queue.h) */
    char *read_buffer;     /* ARPC_READ_SIZE bytes; a read is handled before the next one begins */
    uint64_t number;       /* of this turn */
    struct arpc_fair_queue queue;
    bool arrivals;        /* connections were accepted or refused in this turn */
    int64_t cpu_ns;       /* processor time of this thread when the turn began; below 0: not known */
    struct amp_spin spin; /* decides whether the loop spins after a turn with work */
    uint64_t spin_end_ns; /* when the spin under way ends; 0: it does not spin */
    unsigned handles;
    void (*closed_cb)(struct arpc_deferred *deferred);
};

/* 0 or AMP_ENOMEM. */
int arpc_deferred_init(struct arpc_deferred *deferred, uv_loop_t *loop);

/* `closed_cb` is called when the handles are closed. No item may be due. */
void arpc_deferred_close(struct arpc_deferred *deferred, void (*closed_cb)(struct arpc_deferred *deferred));

/* The loop's time in milliseconds; the clock of links. */
int64_t arpc_deferred_now(void *deferred);

void arpc_deferred_item_init(struct arpc_deferred_item *item, void (*pump_cb)(struct arpc_deferred_item *item));

/* The time that work which began at begin_ns has taken until now, without what the kernel gave to other threads. */
int64_t arpc_deferred_cost(const struct arpc_deferred *deferred, int64_t begin_ns, int64_t now_ns);

/* The item's pump_cb is called at the end of this turn. */
void arpc_deferred_add(struct arpc_deferred *deferred, struct arpc_deferred_item *item);
void arpc_deferred_remove(struct arpc_deferred_item *item);

#endif
