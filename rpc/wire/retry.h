/*
 * The retry policy of gRFC A6, without I/O: decides whether a call whose attempt has failed is tried again.
 *
 * There are two kinds of retries. Transparent ones repeat what the server's program has never seen, whatever the
 * policy: any number of times if the request did not leave this process, once if the server refused it. The others
 * follow the call's policy. There is no retry once the call is committed, that is, when the response's headers have
 * come, or when what was sent is not kept. Hedging is not implemented.
 */
#ifndef ARPC_WIRE_RETRY_H
#define ARPC_WIRE_RETRY_H

#include "rpc/arpc_retry.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The token bucket that all calls of a channel share: each failure takes a token, each success gives token_ratio of
 * one. While no more than half are left, nothing is tried again: a server in trouble is not buried in retries. In
 * thousandths of a token, because A6 counts three decimals.
 */
struct arpc_retry_throttle {
    int64_t tokens;
    int64_t max_tokens;
    int64_t token_ratio;
};

/* A full bucket. max_tokens: 1 to 1000; token_ratio above 0. Values out of range become the nearest one in it. */
void arpc_retry_throttle_init(struct arpc_retry_throttle *throttle, unsigned max_tokens, double token_ratio);

/* A call has ended with OK. */
void arpc_retry_succeeded(struct arpc_retry_throttle *throttle);

/* The retries of one call. Zeroed: only transparent ones. */
struct arpc_retry {
    struct arpc_retry_policy policy; /* max_attempts 0 or 1: none */
    unsigned attempts;               /* that failed and were not transparent: grpc-previous-rpc-attempts */
    unsigned since_pushback;         /* back-offs since the last pushback of the server */
    bool refused;                    /* the transparent retry of a refused stream is used up */
    bool committed;
};

/* A policy with its defaults filled in and its limits kept; NULL: all defaults. */
void arpc_retry_init(struct arpc_retry *retry, const struct arpc_retry_policy *policy);

/* How far a failed attempt got. */
enum arpc_reach {
    ARPC_REACH_NONE,    /* no byte of it has left this process */
    ARPC_REACH_REFUSED, /* the server says that it was not looked at: REFUSED_STREAM, or above the last id of GOAWAY */
    ARPC_REACH_SERVER   /* the server may have acted on it */
};

/* grpc-retry-pushback-ms of the trailers. */
enum arpc_pushback { ARPC_PUSHBACK_NONE, ARPC_PUSHBACK_AFTER, ARPC_PUSHBACK_NEVER };

/* Parses its value: AFTER and *after_ms, or NEVER for a negative number and for what is none. */
enum arpc_pushback arpc_pushback_parse(const uint8_t *text, size_t size, int64_t *after_ms);

struct arpc_attempt_end {
    int status; /* not OK */
    enum arpc_reach reach;
    enum arpc_pushback pushback;
    int64_t pushback_ms;
    int64_t time_left_ms; /* of the call's deadline; INT64_MAX: none */
};

/*
 * Whether there is another attempt, and *delay_ms until it. `unit` is a random number in [0, 1). A wait that would
 * outlast the deadline is not begun: the caller gets the status that there is.
 */
bool arpc_retry_decide(struct arpc_retry *retry, struct arpc_retry_throttle *throttle,
                       const struct arpc_attempt_end *end, double unit, int64_t *delay_ms);

#endif
