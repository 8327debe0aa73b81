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

/* An equal part of the budget. */
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
    if (!shares->put_off) {
        shares->round++;
        shares->slice_ns = slice_of(shares->budget_ns, shares->readers);
        shares->readers = 0;
    }
    shares->put_off = false;
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
    bool new_round = share->round != shares->round;
    if (!new_round && share->round_ns >= shares->slice_ns)
        return false; /* the others first */
    if (shares->read_left_ns <= 0) {
        shares->put_off = true;
        return false;
    }
    if (new_round) {
        share->round = shares->round;
        share->round_ns = 0;
        shares->readers++;
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

int64_t arpc_shares_read_ns(const struct arpc_shares *shares, const struct arpc_share *share)
{
    return share->reads_first && shares->slice_ns < ARPC_SHARE_CALM_NS / 4 ? ARPC_SHARE_CALM_NS / 4 : shares->slice_ns;
}

void arpc_shares_read(struct arpc_shares *shares, struct arpc_share *share, int64_t took_ns, int64_t now_ns,
                      bool drained)
{
    if (share->reads_first) {
        shares->calm_read_ns -= took_ns;
    } else {
        shares->read_left_ns -= took_ns;
        share->round_ns += took_ns;
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

int64_t arpc_shares_pump_ns(const struct arpc_shares *shares, const struct arpc_share *share)
{
    return share->pumps_first ? shares->budget_ns : shares->pump_slice_ns;
}

void arpc_shares_pumped(struct arpc_shares *shares, struct arpc_share *share, int64_t took_ns, int64_t now_ns,
                        bool more)
{
    if (share->pumps_first) {
        shares->calm_pump_ns -= took_ns;
    } else {
        shares->pump_left_ns -= took_ns;
        shares->pumps++;
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
