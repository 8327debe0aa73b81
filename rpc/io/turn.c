#include "rpc/io/turn.h"

#include "base/assert.h"
#include "base/err.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

/* Work that took longer has perhaps lost the core: asking for that costs more than a microsecond. */
#define LONG_NS 100000

static void on_idle(uv_idle_t *handle)
{
    (void)handle;
}

static int64_t cpu_ns(void)
{
    struct timespec time;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0)
        return -1;
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int64_t arpc_turn_cost(const struct arpc_turn *turn, int64_t begin_ns, int64_t now_ns)
{
    int64_t took_ns = now_ns - begin_ns;
    if (took_ns <= LONG_NS)
        return took_ns;
    int64_t used_ns = turn->cpu_ns >= 0 ? cpu_ns() - turn->cpu_ns : LONG_NS; /* without a crowd nobody waits */
    return used_ns < took_ns ? used_ns : took_ns;
}

/*
 * Whoever is calm may be a peer on this core, which the kernel lets in when this thread's slice ends: after milliseconds. What
 * busy connections and strangers want can wait for as long as such a peer takes. Whether there are any.
 */
static bool let_in(struct arpc_turn *turn, int64_t now_ns)
{
    const struct arpc_shares *shares = &turn->shares;
    bool crowd = turn->strangers || arpc_shares_were_used(shares) || !amp_list_empty(&turn->later);
    if (!crowd || arpc_shares_alone(shares, now_ns) || !arpc_shares_calm_near(shares, now_ns))
        return false;
    (void)sched_yield(); /* it cannot fail */
    return true;
}

static struct arpc_turn_item *shift(struct amp_list *list)
{
    struct amp_list *node = amp_list_shift(list);
    return node != NULL ? AMP_CONTAINER(node, struct arpc_turn_item, node) : NULL;
}

/*
 * Of the busy ones as many as the turn has time for: of each address as long as its part lasts, then whoever waits. What is left
 * keeps its order.
 */
static void pump_busy(struct arpc_turn *turn)
{
    struct amp_list left;
    amp_list_init(&left);
    for (struct arpc_turn_item *item = shift(&turn->later); item != NULL; item = shift(&turn->later)) {
        if (arpc_shares_pump_next(&turn->shares, &item->share))
            item->pump_cb(item); /* if it asks for more, it is due again */
        else
            amp_list_push(&left, &item->node);
    }
    while (!amp_list_empty(&left) && arpc_shares_may_pump(&turn->shares)) {
        struct arpc_turn_item *item = shift(&left);
        item->pump_cb(item);
    }
    while (!amp_list_empty(&left))
        amp_list_push(&turn->later, amp_list_shift(&left));
}

/* Each calm item once, then the busy ones. What becomes due meanwhile and what is left waits for the next call, which the idle
 * handle brings at once. */
static void pump_all(struct arpc_turn *turn)
{
    struct amp_list work;
    amp_list_init(&work);
    int64_t now_ns = (int64_t)uv_hrtime();
    bool calm = !amp_list_empty(&turn->due);
    while (!amp_list_empty(&turn->due))
        amp_list_push(&work, amp_list_shift(&turn->due));
    for (struct arpc_turn_item *item = shift(&work); item != NULL; item = shift(&work)) {
        if (arpc_shares_pump_first(&turn->shares, &item->share, now_ns))
            item->pump_cb(item);
        else
            amp_list_push(&turn->later, &item->node);
    }
    if (calm)
        (void)let_in(turn, now_ns);
    pump_busy(turn);
    if (amp_list_empty(&turn->due) && amp_list_empty(&turn->later) && turn->spin_end_ns == 0)
        (void)uv_idle_stop(&turn->idle);
}

/* A poll brought work: looks for more before sleeping, unless that was in vain of late. */
static void spin_begins(struct arpc_turn *turn)
{
    uint64_t now_ns = uv_hrtime();
    if (turn->spin_end_ns != 0)
        amp_look_found(&turn->spin, turn->spin_end_ns, now_ns);
    turn->spin_end_ns = 0;
    if (!amp_look_begin(&turn->spin, now_ns))
        return;
    turn->spin_end_ns = now_ns + ARPC_SPIN_NS;
    (void)uv_idle_start(&turn->idle, on_idle);
}

/* It brought none. */
static void spin_goes_on(struct arpc_turn *turn)
{
    uint64_t now_ns = uv_hrtime();
    if (now_ns < turn->spin_end_ns) {
        (void)sched_yield(); /* it cannot fail */
        return;
    }
    amp_look_missed(&turn->spin, turn->spin_end_ns, now_ns);
    turn->spin_end_ns = 0;
    (void)uv_idle_stop(&turn->idle);
}

static void on_prepare(uv_prepare_t *handle)
{
    pump_all(handle->data);
}

static void on_check(uv_check_t *handle)
{
    struct arpc_turn *turn = handle->data;
    bool brought = !amp_list_empty(&turn->due) || !amp_list_empty(&turn->later);
    if (brought)
        spin_begins(turn);
    else if (turn->spin_end_ns != 0)
        spin_goes_on(turn);
    if (brought || turn->spin_end_ns == 0)
        pump_all(turn);
    int64_t now_ns = (int64_t)uv_hrtime();
    turn->cpu_ns = let_in(turn, now_ns) ? cpu_ns() : -1;
    turn->strangers = false;
    arpc_shares_turn(&turn->shares, now_ns);
    turn->number++;
}

int arpc_turn_init(struct arpc_turn *turn, uv_loop_t *loop)
{
    *turn = (struct arpc_turn){.loop = loop, .cpu_ns = -1, .number = 1, .handles = 3};
    amp_list_init(&turn->due);
    amp_list_init(&turn->later);
    arpc_shares_init(&turn->shares, (int64_t)uv_hrtime());
    turn->read_buffer = malloc(ARPC_READ_SIZE);
    if (turn->read_buffer == NULL)
        return AMP_ENOMEM;
    /* None of these can fail on an open loop. */
    (void)uv_prepare_init(loop, &turn->prepare);
    (void)uv_check_init(loop, &turn->check);
    (void)uv_idle_init(loop, &turn->idle);
    turn->prepare.data = turn;
    turn->check.data = turn;
    turn->idle.data = turn;
    (void)uv_prepare_start(&turn->prepare, on_prepare);
    (void)uv_check_start(&turn->check, on_check);
    uv_unref((uv_handle_t *)&turn->prepare);
    uv_unref((uv_handle_t *)&turn->check);
    return 0;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct arpc_turn *turn = handle->data;
    if (--turn->handles > 0)
        return;
    free(turn->read_buffer);
    turn->closed_cb(turn);
}

void arpc_turn_close(struct arpc_turn *turn, void (*closed_cb)(struct arpc_turn *turn))
{
    AMP_ASSERT(amp_list_empty(&turn->due) && amp_list_empty(&turn->later));
    turn->closed_cb = closed_cb;
    uv_close((uv_handle_t *)&turn->prepare, on_handle_closed);
    uv_close((uv_handle_t *)&turn->check, on_handle_closed);
    uv_close((uv_handle_t *)&turn->idle, on_handle_closed);
}

int64_t arpc_turn_now(void *turn)
{
    return (int64_t)uv_now(((const struct arpc_turn *)turn)->loop);
}

void arpc_turn_item_init(struct arpc_turn_item *item, void (*pump_cb)(struct arpc_turn_item *item))
{
    amp_list_init(&item->node);
    item->share = (struct arpc_share){0};
    item->pump_cb = pump_cb;
}

void arpc_turn_add(struct arpc_turn *turn, struct arpc_turn_item *item)
{
    if (!amp_list_empty(&item->node))
        return;
    amp_list_push(&turn->due, &item->node);
    (void)uv_idle_start(&turn->idle, on_idle);
}

void arpc_turn_remove(struct arpc_turn_item *item)
{
    amp_list_remove(&item->node);
}
