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
    bool head_left;   /* the request's HEADERS were put into a batch, so that the server may have seen them */
    bool again;       /* the attempt has failed; the next one begins when its stream is over and its bytes are gone */
    int64_t begin_ms; /* not before that; 0: at any time */
};

/*
 * The attempt has failed with this status, and `reach` says how far the request got. True: the call begins again, and
 * the caller sees to it that the stream ends. False: the caller closes the call.
 */
bool arpc_call_try_again(struct arpc_call *call, int status, enum arpc_reach reach);
/* Once the stream is over and no batch has bytes of the call: moves a call that begins again to the parking link. */
void arpc_call_begin_again(struct arpc_call *call);
/* From now on the call cannot begin again: drops the messages that were kept for that. */
void arpc_call_commit(struct arpc_call *call);

#endif
