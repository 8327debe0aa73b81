#include "rpc/io/deferred.h"

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

int64_t arpc_deferred_cost(const struct arpc_deferred *deferred, int64_t begin_ns, int64_t now_ns)
{
    int64_t took_ns = now_ns - begin_ns;
    if (took_ns <= LONG_NS)
        return took_ns;
    int64_t used_ns = deferred->cpu_ns >= 0 ? cpu_ns() - deferred->cpu_ns : LONG_NS; /* without a crowd nobody waits */
    return used_ns < took_ns ? used_ns : took_ns;
}

/*
 * Whoever is calm may be a peer on this core, which the kernel lets in when this thread's slice ends: after
 * milliseconds. What busy and new connections want can wait for as long as such a peer takes. Whether there are
 * any.
 */
static bool yield_core(struct arpc_deferred *deferred, int64_t now_ns)
{
    const struct arpc_fair_queue *queue = &deferred->queue;
    bool crowd = deferred->arrivals || arpc_fair_queue_was_used(queue) || !amp_list_empty(&deferred->later);
    if (!crowd || arpc_fair_queue_alone(queue, now_ns) || !arpc_fair_queue_calm_expected(queue, now_ns))
        return false;
    (void)sched_yield(); /* it cannot fail */
    return true;
}

static struct arpc_deferred_item *shift(struct amp_list *list)
{
    struct amp_list *node = amp_list_shift(list);
    return node != NULL ? AMP_CONTAINER(node, struct arpc_deferred_item, node) : NULL;
}

/*
 * Of the busy ones as many as the turn has time for: of each address as long as its part lasts, then whoever waits.
 * What is left keeps its order.
 */
static void pump_busy(struct arpc_deferred *deferred)
{
    struct amp_list left;
    amp_list_init(&left);
    for (struct arpc_deferred_item *item = shift(&deferred->later); item != NULL; item = shift(&deferred->later)) {
        if (arpc_fair_queue_pump_next(&deferred->queue, &item->flow))
            item->pump_cb(item); /* if it asks for more, it is due again */
        else
            amp_list_push(&left, &item->node);
    }
    while (!amp_list_empty(&left) && arpc_fair_queue_may_pump(&deferred->queue)) {
        struct arpc_deferred_item *item = shift(&left);
        item->pump_cb(item);
    }
    while (!amp_list_empty(&left))
        amp_list_push(&deferred->later, amp_list_shift(&left));
}

/*
 * Each calm item once, then the busy ones. What becomes due meanwhile and what is left waits for the next call, which
 * the idle handle brings at once.
 */
static void pump_all(struct arpc_deferred *deferred)
{
    struct amp_list work;
    amp_list_init(&work);
    int64_t now_ns = (int64_t)uv_hrtime();
    bool calm = !amp_list_empty(&deferred->due);
    while (!amp_list_empty(&deferred->due))
        amp_list_push(&work, amp_list_shift(&deferred->due));
    for (struct arpc_deferred_item *item = shift(&work); item != NULL; item = shift(&work)) {
        if (arpc_fair_queue_pump_first(&deferred->queue, &item->flow, now_ns))
            item->pump_cb(item);
        else
            amp_list_push(&deferred->later, &item->node);
    }
    if (calm)
        (void)yield_core(deferred, now_ns);
    pump_busy(deferred);
    if (amp_list_empty(&deferred->due) && amp_list_empty(&deferred->later) && deferred->spin_end_ns == 0)
        (void)uv_idle_stop(&deferred->idle);
}

/* A poll brought work: spins for more before sleeping, unless that was in vain of late. */
static void spin_begins(struct arpc_deferred *deferred)
{
    uint64_t now_ns = uv_hrtime();
    if (deferred->spin_end_ns != 0)
        amp_spin_found(&deferred->spin, deferred->spin_end_ns, now_ns);
    deferred->spin_end_ns = 0;
    if (!amp_spin_begin(&deferred->spin, now_ns))
        return;
    deferred->spin_end_ns = now_ns + ARPC_SPIN_NS;
    (void)uv_idle_start(&deferred->idle, on_idle);
}

/* It brought none. */
static void spin_goes_on(struct arpc_deferred *deferred)
{
    uint64_t now_ns = uv_hrtime();
    if (now_ns < deferred->spin_end_ns) {
        (void)sched_yield(); /* it cannot fail */
        return;
    }
    amp_spin_missed(&deferred->spin, deferred->spin_end_ns, now_ns);
    deferred->spin_end_ns = 0;
    (void)uv_idle_stop(&deferred->idle);
}

static void on_prepare(uv_prepare_t *handle)
{
    pump_all(handle->data);
}

static void on_check(uv_check_t *handle)
{
    struct arpc_deferred *deferred = handle->data;
    bool brought = !amp_list_empty(&deferred->due) || !amp_list_empty(&deferred->later);
    if (brought)
        spin_begins(deferred);
    else if (deferred->spin_end_ns != 0)
        spin_goes_on(deferred);
    if (brought || deferred->spin_end_ns == 0)
        pump_all(deferred);
    int64_t now_ns = (int64_t)uv_hrtime();
    deferred->cpu_ns = yield_core(deferred, now_ns) ? cpu_ns() : -1;
    deferred->arrivals = false;
    arpc_fair_queue_turn(&deferred->queue, now_ns);
    deferred->number++;
}

int arpc_deferred_init(struct arpc_deferred *deferred, uv_loop_t *loop)
{
    *deferred = (struct arpc_deferred){.loop = loop, .cpu_ns = -1, .number = 1, .handles = 3};
    amp_list_init(&deferred->due);
    amp_list_init(&deferred->later);
    arpc_fair_queue_init(&deferred->queue, (int64_t)uv_hrtime());
    deferred->read_buffer = malloc(ARPC_READ_SIZE);
    if (deferred->read_buffer == NULL)
        return AMP_ENOMEM;
    /* None of these can fail on an open loop. */
    (void)uv_prepare_init(loop, &deferred->prepare);
    (void)uv_check_init(loop, &deferred->check);
    (void)uv_idle_init(loop, &deferred->idle);
    deferred->prepare.data = deferred;
    deferred->check.data = deferred;
    deferred->idle.data = deferred;
    (void)uv_prepare_start(&deferred->prepare, on_prepare);
    (void)uv_check_start(&deferred->check, on_check);
    uv_unref((uv_handle_t *)&deferred->prepare);
    uv_unref((uv_handle_t *)&deferred->check);
    return 0;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct arpc_deferred *deferred = handle->data;
    if (--deferred->handles > 0)
        return;
    free(deferred->read_buffer);
    deferred->closed_cb(deferred);
}

void arpc_deferred_close(struct arpc_deferred *deferred, void (*closed_cb)(struct arpc_deferred *deferred))
{
    AMP_ASSERT(amp_list_empty(&deferred->due) && amp_list_empty(&deferred->later));
    deferred->closed_cb = closed_cb;
    uv_close((uv_handle_t *)&deferred->prepare, on_handle_closed);
    uv_close((uv_handle_t *)&deferred->check, on_handle_closed);
    uv_close((uv_handle_t *)&deferred->idle, on_handle_closed);
}

int64_t arpc_deferred_now(void *deferred)
{
    return (int64_t)uv_now(((const struct arpc_deferred *)deferred)->loop);
}

void arpc_deferred_item_init(struct arpc_deferred_item *item, void (*pump_cb)(struct arpc_deferred_item *item))
{
    amp_list_init(&item->node);
    item->flow = (struct arpc_flow){0};
    item->pump_cb = pump_cb;
}

void arpc_deferred_add(struct arpc_deferred *deferred, struct arpc_deferred_item *item)
{
    if (!amp_list_empty(&item->node))
        return;
    amp_list_push(&deferred->due, &item->node);
    (void)uv_idle_start(&deferred->idle, on_idle);
}

void arpc_deferred_remove(struct arpc_deferred_item *item)
{
    amp_list_remove(&item->node);
}
