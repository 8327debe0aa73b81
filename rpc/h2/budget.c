#include "rpc/h2/budget.h"

#include <stddef.h>

/* Honest data inflates to less than this many times its size, and costs no more than if it had come so. */
#define INFLATED_FREE 16

void arpc_budget_init(struct arpc_budget *budget, int64_t most, int64_t most_per_address, int64_t least_ms)
{
    *budget = (struct arpc_budget){.most = most > 0 ? most : INT64_MAX,
                                   .most_per_address = most_per_address > 0 ? most_per_address : INT64_MAX,
                                   .least_ms = least_ms};
    amp_list_init(&budget->accounts);
}

void arpc_account_init(struct arpc_account *account, struct arpc_budget *budget)
{
    *account = (struct arpc_account){.budget = budget};
    amp_list_init(&account->in_budget);
    amp_list_init(&account->charges);
}

void arpc_memory_budgets_init(struct arpc_memory_budgets *budgets, const struct arpc_limits *limits)
{
    arpc_budget_init(&budgets->unfinished, limits->unfinished, limits->unfinished_per_address, 0);
    arpc_budget_init(&budgets->unadmitted, limits->unadmitted * (int64_t)ARPC_CALL_BYTES, 0, 0);
    arpc_budget_init(&budgets->waiting, limits->waiting, 0, 0);
    arpc_budget_init(&budgets->open, limits->open, 0, 0);
    arpc_budget_init(&budgets->unsent, limits->unsent, 0, 0);
}

void arpc_host_init(struct arpc_host *host, struct arpc_memory_budgets *budgets, const struct arpc_limits *limits,
                    int64_t now_ms)
{
    arpc_account_init(&host->unfinished, budgets != NULL ? &budgets->unfinished : NULL);
    arpc_account_init(&host->unadmitted, budgets != NULL ? &budgets->unadmitted : NULL);
    arpc_account_init(&host->waiting, budgets != NULL ? &budgets->waiting : NULL);
    arpc_account_init(&host->open, budgets != NULL ? &budgets->open : NULL);
    arpc_account_init(&host->unsent, budgets != NULL ? &budgets->unsent : NULL);
    arpc_bucket_init(&host->inflated, limits->inflated_burst, now_ms);
}

static void begin(struct arpc_charge *charge, struct arpc_account *account, int64_t now_ms)
{
    charge->account = account;
    charge->since_ms = now_ms;
    amp_list_push(&account->charges, &charge->in_account);
    if (amp_list_empty(&account->in_budget))
        amp_list_push(&account->budget->accounts, &account->in_budget);
}

static void end(struct arpc_charge *charge)
{
    struct arpc_account *account = charge->account;
    amp_list_remove(&charge->in_account);
    if (amp_list_empty(&account->charges))
        amp_list_remove(&account->in_budget);
    charge->account = NULL;
}

void arpc_charge_set(struct arpc_charge *charge, struct arpc_account *account, int64_t amount, int64_t now_ms)
{
    if (account->budget == NULL || amount == charge->amount)
        return;
    int64_t more = amount - charge->amount;
    if (charge->amount == 0)
        begin(charge, account, now_ms);
    charge->amount = amount;
    account->used += more;
    account->budget->used += more;
    if (amount == 0)
        end(charge);
}

/*
 * Of several that have as much, the one that has had something for longest: else whoever comes last would be the one
 * that goes.
 */
static struct arpc_account *largest_of(const struct arpc_budget *budget)
{
    struct arpc_account *largest = NULL;
    for (struct amp_list *it = budget->accounts.next; it != &budget->accounts; it = it->next) {
        struct arpc_account *account = AMP_CONTAINER(it, struct arpc_account, in_budget);
        if (largest == NULL || account->used > largest->used)
            largest = account;
    }
    return largest; /* there is one: the budget is used */
}

struct arpc_charge *arpc_charge_excess(struct arpc_charge *charge, int64_t now_ms)
{
    struct arpc_account *own = charge->account;
    if (own == NULL)
        return NULL;
    const struct arpc_budget *budget = own->budget;
    struct arpc_account *from = own;
    if (own->used <= budget->most_per_address) {
        if (budget->used <= budget->most)
            return NULL;
        from = largest_of(budget);
    }
    struct arpc_charge *oldest = AMP_CONTAINER(from->charges.next, struct arpc_charge, in_account);
    /* Else a crowd of one address would push out its own before they could come to anything, and so all of them. */
    bool young = from == own && now_ms - oldest->since_ms < budget->least_ms;
    return young ? charge : oldest;
}

bool arpc_host_may_inflate(struct arpc_host *host, const struct arpc_limits *limits, int64_t now_ms)
{
    arpc_bucket_fill(&host->inflated, limits->inflated_burst, limits->inflated_per_s, now_ms);
    return limits->inflated_burst == 0 || host->inflated.level > 0;
}

void arpc_host_inflated(struct arpc_host *host, size_t compressed, size_t inflated)
{
    size_t costless = compressed * INFLATED_FREE;
    if (inflated > costless)
        arpc_bucket_spend(&host->inflated, (int64_t)(inflated - costless));
}
