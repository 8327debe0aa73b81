/* How often and when a client tries a call again: gRFC A6, with its names. */
#ifndef ARPC_RETRY_H
#define ARPC_RETRY_H

#include <stdint.h>

/* A6: more attempts than that are not made, whatever a policy says. */
#define ARPC_RETRY_ATTEMPTS_MAX 5

/* Every field's 0 means the default. */
struct arpc_retry_policy {
    unsigned max_attempts;      /* 4, the first one among them; 1: none after it; at most ARPC_RETRY_ATTEMPTS_MAX */
    int64_t initial_backoff_ms; /* 100; each wait is made up to a fifth longer or shorter */
    int64_t max_backoff_ms;     /* 5000 */
    double backoff_multiplier;  /* 2 */
    uint32_t retryable_status_codes; /* bits 1 << enum arpc_status: UNAVAILABLE */
};

#endif
