/*
 * Deferred work: what was asked for during a turn of the loop is done at the end of it, once for each connection (see
 * h2/link.h). Internal to rpc/io. Rules of libuv handles: they are closed here and in conn.c, server.c and channel.c
 * only, and the memory around them is released in the last close callback only.
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
 * After a turn with work the loop spins for more before it sleeps (base/spin.h): being woken costs more than all the
 * rest of a small call. It spins as long as a peer takes that is asleep itself, or two that sleep would never find out
 * that they need not.
 */
#define ARPC_SPIN_NS UINT64_C(100000)

struct arpc_deferred_item {
    struct amp_list node;
    struct arpc_flow flow; /* of a connection; anything else stays calm */
    void (*pump_cb)(struct arpc_deferred_item *item);
};

struct arpc_deferred {
    uv_loop_t *loop;
    uv_prepare_t prepare; /* after timers and closings */
    uv_check_t check;     /* after reads and writes */
    uv_idle_t idle;       /* while something is due, or may soon be: keeps the loop from waiting, and alive */
    struct amp_list due;
    struct amp_list later; /* of those that are due the busy ones, which share what a turn has for them */
    char *read_buffer;     /* of ARPC_READ_SIZE; a read is handled before the next one begins */
    uint64_t number;       /* of this turn */
    struct arpc_fair_queue queue;
    bool strangers;       /* connections were accepted or refused in it */
    int64_t cpu_ns;       /* of this thread, when the turn began; below 0: it is not known */
    struct amp_spin spin; /* a turn with work is a wait that begins */
    uint64_t spin_end_ns; /* 0: it does not spin */
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

/* What work that began then has cost until now: less than the time if the kernel gave the core to others. */
int64_t arpc_deferred_cost(const struct arpc_deferred *deferred, int64_t begin_ns, int64_t now_ns);

/* The item's pump_cb is called at the end of this turn. */
void arpc_deferred_add(struct arpc_deferred *deferred, struct arpc_deferred_item *item);
void arpc_deferred_remove(struct arpc_deferred_item *item);

#endif
