/* How often and when a client tries a call again: gRFC A6, with its names. */
#ifndef ARPC_RETRY_H
#define ARPC_RETRY_H

#include <stdint.h>

/* Most attempts of a call, whatever its policy says (A6). */
#define ARPC_RETRY_ATTEMPTS_MAX 5

/* Every field's 0 means the default. */
struct arpc_retry_policy {
    unsigned max_attempts;           /* 4, counting the first one; 1: no retry; at most ARPC_RETRY_ATTEMPTS_MAX */
    int64_t initial_backoff_ms;      /* 100; each wait varies by up to 20 % */
    int64_t max_backoff_ms;          /* 5000 */
    double backoff_multiplier;       /* 2 */
    uint32_t retryable_status_codes; /* bits 1 << enum arpc_status: UNAVAILABLE */
};

#endif
