/* A client's call between two attempts, each on a connection of its own. Internal to rpc/h2. */
#ifndef ARPC_H2_PARK_H
#define ARPC_H2_PARK_H

#include "rpc/arpc_call.h"
#include "rpc/wire/retry.h"

#include <stdbool.h>
#include <stdint.h>

struct arpc_call;

struct arpc_call_attempt {
    struct arpc_retry retry;
    bool head_left;   /* the request's HEADERS are in a batch, or were */
    bool again;       /* the attempt has failed; the next one begins when its stream is over and its bytes are gone */
    int64_t begin_ms; /* not before that; 0: at any time */
};

/* The attempt has failed like this. True if the call begins again: the caller sees to it that the stream ends. */
bool arpc_call_try_again(struct arpc_call *call, int status, enum arpc_reach reach);
/* Moves a call that is to begin again to the parking link. */
void arpc_call_begin_again(struct arpc_call *call);
/* The call can not begin again from here on: what was kept for that goes. */
void arpc_call_commit(struct arpc_call *call);

#endif
