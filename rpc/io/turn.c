#include "rpc/io/turn.h"

#include "base/assert.h"
#include "base/err.h"

#include <sched.h>
#include <stdlib.h>

static void on_idle(uv_idle_t *handle)
{
    (void)handle;
}

/* Each item once: what becomes due meanwhile waits for the next call, which the idle handle brings at once. */
static void pump_all(struct arpc_turn *turn)
{
    struct amp_list work;
    amp_list_init(&work);
    for (struct amp_list *it = amp_list_shift(&turn->due); it != NULL; it = amp_list_shift(&turn->due))
        amp_list_push(&work, it);
    for (struct amp_list *it = amp_list_shift(&work); it != NULL; it = amp_list_shift(&work)) {
        struct arpc_turn_item *item = AMP_CONTAINER(it, struct arpc_turn_item, node);
        item->pump_cb(item);
    }
    if (amp_list_empty(&turn->due) && turn->spin_end_ns == 0)
        (void)uv_idle_stop(&turn->idle);
}

static void spin_missed(struct arpc_turn *turn, uint64_t now_ns)
{
    if (turn->spin_misses < ARPC_SPIN_MISSES)
        turn->spin_misses++;
    if (turn->spin_misses == ARPC_SPIN_MISSES)
        turn->spin_rest = ARPC_SPIN_REST_TURNS;
    if (now_ns - turn->spin_end_ns > ARPC_SPIN_NS)
        turn->spin_rest = ARPC_SPIN_CROWDED_TURNS;
    turn->spin_end_ns = 0;
}

/* A poll brought work: looks for more before sleeping, unless that was in vain of late. */
static void spin_begins(struct arpc_turn *turn)
{
    uint64_t now_ns = uv_hrtime();
    if (turn->spin_end_ns != 0 && now_ns < turn->spin_end_ns)
        turn->spin_misses = 0;
    else if (turn->spin_end_ns != 0)
        spin_missed(turn, now_ns);
    turn->spin_end_ns = turn->spin_rest == 0 ? now_ns + ARPC_SPIN_NS : 0;
    if (turn->spin_rest > 0)
        turn->spin_rest--;
    else
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
    spin_missed(turn, now_ns);
    (void)uv_idle_stop(&turn->idle);
}

static void on_prepare(uv_prepare_t *handle)
{
    pump_all(handle->data);
}

static void on_check(uv_check_t *handle)
{
    struct arpc_turn *turn = handle->data;
    if (!amp_list_empty(&turn->due)) {
        spin_begins(turn);
    } else if (turn->spin_end_ns != 0) {
        spin_goes_on(turn);
        return;
    }
    pump_all(turn);
    int64_t share_ns = ARPC_TURN_READ_NS / (turn->readers > 0 ? turn->readers : 1);
    turn->share_ns = share_ns > ARPC_READ_SHARE_NS ? share_ns : ARPC_READ_SHARE_NS;
    size_t write_share = ARPC_TURN_WRITE_BYTES / (turn->writers > 0 ? turn->writers : 1);
    turn->write_share = write_share > ARPC_WRITE_SHARE_BYTES ? write_share : ARPC_WRITE_SHARE_BYTES;
    turn->readers = 0;
    turn->read_ns = 0;
    turn->written = 0;
    turn->writers = 0;
    turn->number++;
}

int arpc_turn_init(struct arpc_turn *turn, uv_loop_t *loop)
{
    *turn = (struct arpc_turn){
        .loop = loop, .share_ns = ARPC_TURN_READ_NS, .write_share = ARPC_TURN_WRITE_BYTES, .number = 1, .handles = 3};
    amp_list_init(&turn->due);
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
    AMP_ASSERT(amp_list_empty(&turn->due));
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
