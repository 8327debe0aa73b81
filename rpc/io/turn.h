/*
 * The end of a loop's turn: what was asked for during it is done there, once for each connection (see h2/link.h). Internal
 * to rpc/io. Rules of libuv handles: they are closed here and in conn.c, server.c and channel.c only, and the memory around
 * them is released in the last close callback only.
 */
#ifndef ARPC_IO_TURN_H
#define ARPC_IO_TURN_H

#include "base/list.h"
#include "base/look.h"
#include "rpc/io/share.h"

#include <stdint.h>
#include <uv.h>

/* One read: large enough that a 1 MiB message takes few system calls, small enough to stay in the L2 cache. */
#define ARPC_READ_SIZE ((size_t)256 << 10)

/*
 * After a turn with work the loop looks for more before it sleeps (base/look.h): being woken costs more than all the rest of a small
 * call. It looks as long as a peer takes that is asleep itself, or two that sleep would never find out that they need not.
 */
#define ARPC_SPIN_NS UINT64_C(100000)

struct arpc_turn_item {
    struct amp_list node;
    struct arpc_share share; /* of a connection; anything else stays calm */
    void (*pump_cb)(struct arpc_turn_item *item);
};

struct arpc_turn {
    uv_loop_t *loop;
    uv_prepare_t prepare; /* after timers and closings */
    uv_check_t check;     /* after reads and writes */
    uv_idle_t idle;       /* while something is due, or may soon be: keeps the loop from waiting, and alive */
    struct amp_list due;
    struct amp_list later; /* of those that are due the busy ones, which share what a turn has for them */
    char *read_buffer;     /* of ARPC_READ_SIZE; a read is handled before the next one begins */
    uint64_t number;       /* of this turn */
    struct arpc_shares shares;
    bool strangers;       /* connections were accepted or refused in it */
    int64_t cpu_ns;       /* of this thread, when the turn began; below 0: it is not known */
    struct amp_look spin; /* a turn with work is a wait that begins */
    uint64_t spin_end_ns; /* 0: it does not spin */
    unsigned handles;
    void (*closed_cb)(struct arpc_turn *turn);
};

/* 0 or AMP_ENOMEM. */
int arpc_turn_init(struct arpc_turn *turn, uv_loop_t *loop);

/* `closed_cb` is called when the handles are closed. No item may be due. */
void arpc_turn_close(struct arpc_turn *turn, void (*closed_cb)(struct arpc_turn *turn));

/* The loop's time in milliseconds; the clock of links. */
int64_t arpc_turn_now(void *turn);

void arpc_turn_item_init(struct arpc_turn_item *item, void (*pump_cb)(struct arpc_turn_item *item));

/* What work that began then has cost until now: less than the time if the kernel gave the core to others. */
int64_t arpc_turn_cost(const struct arpc_turn *turn, int64_t begin_ns, int64_t now_ns);

/* The item's pump_cb is called at the end of this turn. */
void arpc_turn_add(struct arpc_turn *turn, struct arpc_turn_item *item);
void arpc_turn_remove(struct arpc_turn_item *item);

#endif
