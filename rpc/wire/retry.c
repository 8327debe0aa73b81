#include "rpc/wire/retry.h"

#include "rpc/arpc_call.h"

#define TOKEN           1000 /* thousandths */
#define TOKENS_MAX      1000 /* A6 */
#define ATTEMPTS        4
#define INITIAL_MS      100
#define MAX_MS          5000
#define MULTIPLIER      2.0
#define JITTER          0.2 /* A6 */
#define PUSHBACK_DIGITS 18  /* a number that fits into 64 bits; beyond 30 million years it makes no difference */

void arpc_retry_throttle_init(struct arpc_retry_throttle *throttle, unsigned max_tokens, double token_ratio)
{
    unsigned tokens = max_tokens < 1 ? 1 : max_tokens > TOKENS_MAX ? TOKENS_MAX : max_tokens;
    double ratio = token_ratio < (double)tokens ? token_ratio : (double)tokens;
    int64_t thousandths = (int64_t)(ratio * TOKEN + 0.5);
    throttle->max_tokens = (int64_t)tokens * TOKEN;
    throttle->tokens = throttle->max_tokens;
    throttle->token_ratio = thousandths > 0 ? thousandths : 1;
}

void arpc_retry_succeeded(struct arpc_retry_throttle *throttle)
{
    int64_t room = throttle->max_tokens - throttle->tokens;
    throttle->tokens += throttle->token_ratio < room ? throttle->token_ratio : room;
}

/* Takes a token. True if retries are off now. */
static bool throttled(struct arpc_retry_throttle *throttle)
{
    throttle->tokens = throttle->tokens > TOKEN ? throttle->tokens - TOKEN : 0;
    return throttle->tokens <= throttle->max_tokens / 2;
}

void arpc_retry_init(struct arpc_retry *retry, const struct arpc_retry_policy *policy)
{
    struct arpc_retry_policy own = policy != NULL ? *policy : (struct arpc_retry_policy){0};
    if (own.max_attempts == 0)
        own.max_attempts = ATTEMPTS;
    if (own.max_attempts > ARPC_RETRY_ATTEMPTS_MAX)
        own.max_attempts = ARPC_RETRY_ATTEMPTS_MAX;
    if (own.initial_backoff_ms <= 0)
        own.initial_backoff_ms = INITIAL_MS;
    if (own.max_backoff_ms <= 0)
        own.max_backoff_ms = MAX_MS;
    if (!(own.backoff_multiplier > 0))
        own.backoff_multiplier = MULTIPLIER;
    if (own.retryable_status_codes == 0)
        own.retryable_status_codes = 1u << ARPC_STATUS_UNAVAILABLE;
    *retry = (struct arpc_retry){.policy = own};
}

enum arpc_pushback arpc_pushback_parse(const uint8_t *text, size_t size, int64_t *after_ms)
{
    int64_t value = 0;
    if (size == 0 || size > PUSHBACK_DIGITS)
        return ARPC_PUSHBACK_NEVER;
    for (size_t i = 0; i < size; i++) {
        if (text[i] < '0' || text[i] > '9')
            return ARPC_PUSHBACK_NEVER;
        value = value * 10 + (text[i] - '0');
    }
    *after_ms = value;
    return ARPC_PUSHBACK_AFTER;
}

static int64_t backoff_ms(struct arpc_retry *retry, double unit)
{
    const struct arpc_retry_policy *policy = &retry->policy;
    double wait_ms = (double)policy->initial_backoff_ms;
    for (unsigned i = 0; i < retry->since_pushback; i++)
        wait_ms *= policy->backoff_multiplier;
    retry->since_pushback++;
    if (wait_ms > (double)policy->max_backoff_ms)
        wait_ms = (double)policy->max_backoff_ms;
    wait_ms *= 1.0 - JITTER + 2.0 * JITTER * unit;
    return wait_ms < (double)INT64_MAX ? (int64_t)wait_ms : INT64_MAX;
}

/* By the policy, in the order of A6: only what it calls retryable counts as a failure. */
static bool by_policy(struct arpc_retry *retry, struct arpc_retry_throttle *throttle,
                      const struct arpc_attempt_end *end, double unit, int64_t *delay_ms)
{
    if (retry->policy.max_attempts <= 1)
        return false;
    bool retryable =
        end->status > 0 && end->status < 32 && (retry->policy.retryable_status_codes >> end->status & 1u) != 0;
    if (end->pushback == ARPC_PUSHBACK_NEVER) {
        (void)throttled(throttle);
        return false;
    }
    if (!retryable || throttled(throttle) || retry->attempts + 1 >= retry->policy.max_attempts)
        return false;
    if (end->pushback == ARPC_PUSHBACK_AFTER) {
        retry->since_pushback = 0;
        *delay_ms = end->pushback_ms;
    } else {
        *delay_ms = backoff_ms(retry, unit);
    }
    if (*delay_ms >= end->time_left_ms)
        return false;
    retry->attempts++;
    return true;
}

bool arpc_retry_decide(struct arpc_retry *retry, struct arpc_retry_throttle *throttle,
                       const struct arpc_attempt_end *end, double unit, int64_t *delay_ms)
{
    if (retry->committed)
        return false;
    *delay_ms = 0;
    if (end->reach == ARPC_REACH_NONE)
        return true;
    if (end->reach == ARPC_REACH_REFUSED && !retry->refused) {
        retry->refused = true;
        return true;
    }
    return by_policy(retry, throttle, end, unit, delay_ms);
}
