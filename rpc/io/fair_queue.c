#include "rpc/io/fair_queue.h"

void arpc_fair_queue_init(struct arpc_fair_queue *queue, int64_t now_ns)
{
    *queue = (struct arpc_fair_queue){.round = 1,
                                      .slice_ns = ARPC_FAIR_BUDGET_NS,
                                      .pump_slice_ns = ARPC_FAIR_BUDGET_NS,
                                      .others_ns = now_ns,
                                      .calm_ns = now_ns - ARPC_FAIR_RECENT_NS};
    arpc_fair_queue_turn(queue, now_ns);
}

void arpc_flow_init(struct arpc_flow *flow, int64_t now_ns)
{
    *flow = (struct arpc_flow){.credit_ns = -ARPC_FAIR_ENTRY_NS, .earned_ns = now_ns};
}

void arpc_flow_join(struct arpc_flow *flow, struct arpc_flow_group *group)
{
    flow->group = group;
    flow->round = 0; /* of no group: its rounds begin with 1 */
}

/* An equal part. */
static int64_t slice_of(int64_t budget_ns, unsigned count)
{
    int64_t slice_ns = budget_ns / (count > 0 ? count : 1);
    return slice_ns > ARPC_FAIR_SLICE_NS ? slice_ns : ARPC_FAIR_SLICE_NS;
}

void arpc_fair_queue_turn(struct arpc_fair_queue *queue, int64_t now_ns)
{
    queue->budget_ns = arpc_fair_queue_alone(queue, now_ns) ? ARPC_FAIR_ALONE_NS : ARPC_FAIR_BUDGET_NS;
    queue->read_left_ns = queue->budget_ns;
    queue->pump_left_ns = queue->budget_ns;
    queue->calm_read_ns = ARPC_FAIR_CALM_NS;
    queue->calm_pump_ns = ARPC_FAIR_CALM_NS;
    queue->pump_slice_ns = slice_of(queue->budget_ns, queue->pumps);
    queue->pumps = 0;
    queue->turn++;
    if (!queue->put_off) {
        queue->round++;
        queue->slice_ns = slice_of(queue->budget_ns, queue->readers);
        queue->readers = 0;
    }
    queue->put_off = false;
}

/* Its group, as it is in this turn. */
static struct arpc_flow_group *group_of(struct arpc_fair_queue *queue, const struct arpc_flow *flow)
{
    struct arpc_flow_group *group = flow->group != NULL ? flow->group : &queue->common;
    if (group->turn == queue->turn)
        return group;
    group->turn = queue->turn;
    group->pump_slice_ns = slice_of(queue->pump_slice_ns, group->pumps);
    group->pumps = 0;
    group->pump_ns = 0;
    if (!group->put_off) {
        group->own_round++;
        group->slice_ns = slice_of(queue->slice_ns, group->readers);
        group->readers = 0;
    }
    group->put_off = false;
    return group;
}

/* Earns up to now, unless it waits; whether it has credit. */
static bool is_calm(struct arpc_flow *flow, int64_t now_ns)
{
    int64_t room_ns = ARPC_FAIR_CREDIT_NS - flow->credit_ns;
    int64_t earned_ns = flow->unread || flow->unpumped ? 0 : (now_ns - flow->earned_ns) / ARPC_FAIR_EARNING;
    flow->credit_ns += earned_ns < room_ns ? earned_ns : room_ns;
    flow->earned_ns = now_ns;
    return flow->credit_ns >= 0;
}

static void pay(struct arpc_fair_queue *queue, struct arpc_flow *flow, int64_t took_ns, int64_t now_ns)
{
    if (flow->credit_ns >= 0)
        queue->calm_ns = now_ns;
    if (queue->last != flow)
        queue->others_ns = now_ns;
    queue->last = flow;
    flow->credit_ns -= took_ns;
    if (flow->credit_ns < -ARPC_FAIR_DEBT_NS)
        flow->credit_ns = -ARPC_FAIR_DEBT_NS;
}

/* It is the busy ones' turn: whether it is its turn too. */
static bool is_next(struct arpc_fair_queue *queue, struct arpc_flow *flow)
{
    struct arpc_flow_group *group = group_of(queue, flow);
    bool new_own_round = flow->round != group->own_round;
    bool new_round = group->round != queue->round;
    if (!new_own_round && flow->round_ns >= group->slice_ns)
        return false; /* the others of its address first */
    if (queue->read_left_ns <= 0 || (!new_round && group->round_ns >= queue->slice_ns)) {
        queue->put_off = queue->put_off || new_round; /* the round lasts until every address has read, however little */
        group->put_off = true;
        return false;
    }
    if (new_round) {
        group->round = queue->round;
        group->round_ns = 0;
        queue->readers++;
    }
    if (new_own_round) {
        flow->round = group->own_round;
        flow->round_ns = 0;
        group->readers++;
    }
    return true;
}

bool arpc_fair_queue_may_read(struct arpc_fair_queue *queue, struct arpc_flow *flow, int64_t now_ns)
{
    flow->reads_first = is_calm(flow, now_ns) && queue->calm_read_ns > 0;
    bool may = flow->reads_first || is_next(queue, flow);
    flow->unread = flow->unread || !may;
    return may;
}

int64_t arpc_fair_queue_read_ns(struct arpc_fair_queue *queue, const struct arpc_flow *flow)
{
    int64_t slice_ns = group_of(queue, flow)->slice_ns;
    return flow->reads_first && slice_ns < ARPC_FAIR_CALM_NS / 4 ? ARPC_FAIR_CALM_NS / 4 : slice_ns;
}

void arpc_fair_queue_read(struct arpc_fair_queue *queue, struct arpc_flow *flow, int64_t took_ns, int64_t now_ns,
                          bool drained)
{
    if (flow->reads_first) {
        queue->calm_read_ns -= took_ns;
    } else {
        queue->read_left_ns -= took_ns;
        flow->round_ns += took_ns;
        group_of(queue, flow)->round_ns += took_ns;
    }
    flow->unread = !drained;
    pay(queue, flow, took_ns, now_ns);
}

bool arpc_fair_queue_pump_first(const struct arpc_fair_queue *queue, struct arpc_flow *flow, int64_t now_ns)
{
    flow->pumps_first = is_calm(flow, now_ns) && queue->calm_pump_ns > 0;
    flow->unpumped = !flow->pumps_first;
    return flow->pumps_first;
}

bool arpc_fair_queue_may_pump(const struct arpc_fair_queue *queue)
{
    return queue->pump_left_ns > 0;
}

bool arpc_fair_queue_pump_next(struct arpc_fair_queue *queue, struct arpc_flow *flow)
{
    struct arpc_flow_group *group = group_of(queue, flow);
    queue->pumps += group->pumps++ == 0;
    return arpc_fair_queue_may_pump(queue) && group->pump_ns < queue->pump_slice_ns;
}

int64_t arpc_fair_queue_pump_ns(struct arpc_fair_queue *queue, const struct arpc_flow *flow)
{
    return flow->pumps_first ? queue->budget_ns : group_of(queue, flow)->pump_slice_ns;
}

void arpc_fair_queue_pumped(struct arpc_fair_queue *queue, struct arpc_flow *flow, int64_t took_ns, int64_t now_ns,
                            bool more)
{
    if (flow->pumps_first) {
        queue->calm_pump_ns -= took_ns;
    } else {
        queue->pump_left_ns -= took_ns;
        group_of(queue, flow)->pump_ns += took_ns;
    }
    flow->unpumped = more;
    pay(queue, flow, took_ns, now_ns);
}

bool arpc_fair_queue_was_used(const struct arpc_fair_queue *queue)
{
    return queue->put_off || queue->read_left_ns < queue->budget_ns || queue->pump_left_ns < queue->budget_ns;
}

bool arpc_fair_queue_alone(const struct arpc_fair_queue *queue, int64_t now_ns)
{
    return now_ns - queue->others_ns > ARPC_FAIR_RECENT_NS;
}

bool arpc_fair_queue_calm_expected(const struct arpc_fair_queue *queue, int64_t now_ns)
{
    return now_ns - queue->calm_ns < ARPC_FAIR_RECENT_NS;
}
