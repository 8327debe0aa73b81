/*
 * The first values of a model, on a shard: a Load stream writes them straight into the masters (load.c). All functions
 * run on the thread that steps the core. Private to server/core.
 */
#ifndef AMPD_CORE_LOAD_H
#define AMPD_CORE_LOAD_H

#include "server/core/model/load_base.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_call;
struct ampd_core;
struct ampd_event_block;
struct ampd_event_load;
struct ampd_event_load_state;
struct ampd_message;
struct ampd_model;

/* The load that has the grant, and how much of it is here. */
struct ampd_shard_load {
    uint64_t loader;  /* the call that writes masters, or 0 */
    uint64_t granted; /* the client's number of the load that may write in this epoch, or 0 */
    uint32_t planes;  /* tensors that it brings: 1, the masters; with a full load the moments too */
    uint8_t *have;    /* per block: bit p is set when plane p of it is here */
    uint64_t count;   /* bits set in `have`, over all blocks */
    bool moved;       /* a block or user state that was not here has come, or the grant, since the last WANT */
    struct ampd_load_base base; /* what a load must go on from in this epoch, where that began without a checkpoint */
};

/*
 * A Load stream begins (AMPD_EVENT_LOAD_BEGIN). The call waits until it has the grant, or until the model is loaded.
 * Fails it with AMP_EINVAL (no number with several shards; a base that cannot be), AMP_EEXHAUSTED, or as
 * ampd_core_known does.
 */
void ampd_load_begin(struct ampd_core *core, uint64_t call, const struct ampd_event_load *load);

/*
 * A block of the granted stream is in memory. Ends the call with AMP_EDATALOSS for a wrong checksum, and with
 * AMP_EINVAL for an Inf or NaN in the masters or a NaN in the moments.
 */
void ampd_load_block(struct ampd_call *call, const struct ampd_event_block *block);

/* A user state of a full load; copied. */
void ampd_load_state(struct ampd_call *call, const struct ampd_event_load_state *state);

/* The client has sent all it has: casts the masters, or fails the call with AMP_ESTATE if a block is missing. */
void ampd_load_end(struct ampd_core *core, struct ampd_call *call);

/*
 * The stream of this call is over. If it was the loader's, and values are missing, LOAD_GONE goes to the coordinator.
 */
void ampd_load_closed(struct ampd_model *model, uint64_t call);

/* Answers all loads if the model is loaded; else grants the load that may write, or asks for a grant. */
void ampd_load_next(struct ampd_model *model);

/* All blocks are cast: the memory is READY, and LOADED is sent. */
void ampd_load_cast_done(struct ampd_model *model);

/* A restore begins: ends granted loads with AMP_EUNAVAILABLE; loads that have sent nothing yet go on waiting. */
void ampd_load_void(struct ampd_model *model);

/* Whether a load was granted and has not ended, so that masters may be written. */
bool ampd_load_streams(const struct ampd_model *model);

/* Sends LOADED to the coordinator if the memory is READY and no STATE has said yet that the model is loaded. */
void ampd_load_loaded(struct ampd_model *model);

/*
 * Sends LOAD_WANT for the load with the grant if it has moved, else for the first that waits. Also called now and then.
 */
void ampd_load_wants(struct ampd_model *model);

/* A session begins: sends LOADED, LOAD_GONE and LOAD_WANT again, as far as they are due. */
void ampd_load_resend(struct ampd_model *model);

/* Handles LOAD_GRANT: the load with that number may write, in this epoch and unless another one has the grant. */
void ampd_load_granted(struct ampd_model *model, const struct ampd_message *message);

#endif
