#include "rpc/io/share.h"

void arpc_shares_init(struct arpc_shares *shares, int64_t now_ns)
{
    *shares = (struct arpc_shares){.round = 1,
                                   .slice_ns = ARPC_SHARE_BUDGET_NS,
                                   .pump_slice_ns = ARPC_SHARE_BUDGET_NS,
                                   .others_ns = now_ns,
                                   .calm_ns = now_ns - ARPC_SHARE_RECENT_NS};
    arpc_shares_turn(shares, now_ns);
}

void arpc_share_init(struct arpc_share *share, int64_t now_ns)
{
    *share = (struct arpc_share){.credit_ns = -ARPC_SHARE_ENTRY_NS, .earned_ns = now_ns};
}

void arpc_share_join(struct arpc_share *share, struct arpc_share_group *group)
{
    share->group = group;
    share->round = 0; /* of no group: its rounds begin with 1 */
}

/* An equal part. */
static int64_t slice_of(int64_t budget_ns, unsigned count)
{
    int64_t slice_ns = budget_ns / (count > 0 ? count : 1);
    return slice_ns > ARPC_SHARE_SLICE_NS ? slice_ns : ARPC_SHARE_SLICE_NS;
}

void arpc_shares_turn(struct arpc_shares *shares, int64_t now_ns)
{
    shares->budget_ns = arpc_shares_alone(shares, now_ns) ? ARPC_SHARE_ALONE_NS : ARPC_SHARE_BUDGET_NS;
    shares->read_left_ns = shares->budget_ns;
    shares->pump_left_ns = shares->budget_ns;
    shares->calm_read_ns = ARPC_SHARE_CALM_NS;
    shares->calm_pump_ns = ARPC_SHARE_CALM_NS;
    shares->pump_slice_ns = slice_of(shares->budget_ns, shares->pumps);
    shares->pumps = 0;
    shares->turn++;
    if (!shares->put_off) {
        shares->round++;
        shares->slice_ns = slice_of(shares->budget_ns, shares->readers);
        shares->readers = 0;
    }
    shares->put_off = false;
}

/* Its group, as it is in this turn. */
static struct arpc_share_group *group_of(struct arpc_shares *shares, const struct arpc_share *share)
{
    struct arpc_share_group *group = share->group != NULL ? share->group : &shares->common;
    if (group->turn == shares->turn)
        return group;
    group->turn = shares->turn;
    group->pump_slice_ns = slice_of(shares->pump_slice_ns, group->pumps);
    group->pumps = 0;
    group->pump_ns = 0;
    if (!group->put_off) {
        group->own_round++;
        group->slice_ns = slice_of(shares->slice_ns, group->readers);
        group->readers = 0;
    }
    group->put_off = false;
    return group;
}

/* Earns up to now, unless it waits; whether it has credit. */
static bool is_calm(struct arpc_share *share, int64_t now_ns)
{
    int64_t room_ns = ARPC_SHARE_CREDIT_NS - share->credit_ns;
    int64_t earned_ns = share->unread || share->unpumped ? 0 : (now_ns - share->earned_ns) / ARPC_SHARE_EARNING;
    share->credit_ns += earned_ns < room_ns ? earned_ns : room_ns;
    share->earned_ns = now_ns;
    return share->credit_ns >= 0;
}

static void pay(struct arpc_shares *shares, struct arpc_share *share, int64_t took_ns, int64_t now_ns)
{
    if (share->credit_ns >= 0)
        shares->calm_ns = now_ns;
    if (shares->last != share)
        shares->others_ns = now_ns;
    shares->last = share;
    share->credit_ns -= took_ns;
    if (share->credit_ns < -ARPC_SHARE_DEBT_NS)
        share->credit_ns = -ARPC_SHARE_DEBT_NS;
}

/* It is the busy ones' turn: whether it is its turn too. */
static bool is_next(struct arpc_shares *shares, struct arpc_share *share)
{
    struct arpc_share_group *group = group_of(shares, share);
    bool new_own_round = share->round != group->own_round;
    bool new_round = group->round != shares->round;
    if (!new_own_round && share->round_ns >= group->slice_ns)
        return false; /* the others of its address first */
    if (shares->read_left_ns <= 0 || (!new_round && group->round_ns >= shares->slice_ns)) {
        shares->put_off = shares->put_off || new_round; /* the round lasts until every address has read, however little */
        group->put_off = true;
        return false;
    }
    if (new_round) {
        group->round = shares->round;
        group->round_ns = 0;
        shares->readers++;
    }
    if (new_own_round) {
        share->round = group->own_round;
        share->round_ns = 0;
        group->readers++;
    }
    return true;
}

bool arpc_shares_may_read(struct arpc_shares *shares, struct arpc_share *share, int64_t now_ns)
{
    share->reads_first = is_calm(share, now_ns) && shares->calm_read_ns > 0;
    bool may = share->reads_first || is_next(shares, share);
    share->unread = share->unread || !may;
    return may;
}

int64_t arpc_shares_read_ns(struct arpc_shares *shares, const struct arpc_share *share)
{
    int64_t slice_ns = group_of(shares, share)->slice_ns;
    return share->reads_first && slice_ns < ARPC_SHARE_CALM_NS / 4 ? ARPC_SHARE_CALM_NS / 4 : slice_ns;
}

void arpc_shares_read(struct arpc_shares *shares, struct arpc_share *share, int64_t took_ns, int64_t now_ns,
                      bool drained)
{
    if (share->reads_first) {
        shares->calm_read_ns -= took_ns;
    } else {
        shares->read_left_ns -= took_ns;
        share->round_ns += took_ns;
        group_of(shares, share)->round_ns += took_ns;
    }
    share->unread = !drained;
    pay(shares, share, took_ns, now_ns);
}

bool arpc_shares_pump_first(const struct arpc_shares *shares, struct arpc_share *share, int64_t now_ns)
{
    share->pumps_first = is_calm(share, now_ns) && shares->calm_pump_ns > 0;
    share->unpumped = !share->pumps_first;
    return share->pumps_first;
}

bool arpc_shares_may_pump(const struct arpc_shares *shares)
{
    return shares->pump_left_ns > 0;
}

bool arpc_shares_pump_next(struct arpc_shares *shares, struct arpc_share *share)
{
    struct arpc_share_group *group = group_of(shares, share);
    shares->pumps += group->pumps++ == 0;
    return arpc_shares_may_pump(shares) && group->pump_ns < shares->pump_slice_ns;
}

int64_t arpc_shares_pump_ns(struct arpc_shares *shares, const struct arpc_share *share)
{
    return share->pumps_first ? shares->budget_ns : group_of(shares, share)->pump_slice_ns;
}

void arpc_shares_pumped(struct arpc_shares *shares, struct arpc_share *share, int64_t took_ns, int64_t now_ns,
                        bool more)
{
    if (share->pumps_first) {
        shares->calm_pump_ns -= took_ns;
    } else {
        shares->pump_left_ns -= took_ns;
        group_of(shares, share)->pump_ns += took_ns;
    }
    share->unpumped = more;
    pay(shares, share, took_ns, now_ns);
}

bool arpc_shares_were_used(const struct arpc_shares *shares)
{
    return shares->put_off || shares->read_left_ns < shares->budget_ns || shares->pump_left_ns < shares->budget_ns;
}

bool arpc_shares_alone(const struct arpc_shares *shares, int64_t now_ns)
{
    return now_ns - shares->others_ns > ARPC_SHARE_RECENT_NS;
}

bool arpc_shares_calm_near(const struct arpc_shares *shares, int64_t now_ns)
{
    return now_ns - shares->calm_ns < ARPC_SHARE_RECENT_NS;
}
