/*
 * Pushes, and the slots that their gradients lie in (push.c). All functions run on the thread that steps the core;
 * `local` is a block's index from the shard's first block. Private to server/core.
 */
#ifndef AMPD_CORE_PUSH_H
#define AMPD_CORE_PUSH_H

#include "amp/dtype.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_call;
struct ampd_core;
struct ampd_event_block;
struct ampd_event_push;
struct ampd_event_push_end;
struct ampd_model;
struct ampd_segment_count;
struct ampd_unfit;

/* The staging slot of one rank: what it pushes for the open step. */
struct ampd_slot {
    uint8_t *states;  /* [blocks of this shard] enum ampd_block_state */
    uint64_t present; /* blocks PRESENT for the open step */
    uint64_t writer;  /* the call that may write the slot, or 0; it stays until the I/O layer has let go */
    bool has_header;  /* a push of the open step has begun: incarnation, weight and lr are its own */
    struct ampd_incarnation incarnation; /* of the worker whose bytes are in the slot */
    enum amp_dtype dtype; /* of the bytes in the slot, also after the header is forgotten; NONE: there were none yet */
    float weight;
    double lr;                         /* learning rate of the step with schedule WORKER, else 0 */
    bool ended;                        /* the trailer is here */
    bool complete;                     /* the trailer and every block are here, or listed as absent */
    uint8_t *absent;                   /* ended: bit per parameter that the push does not have; NULL: it has all */
    struct ampd_metrics metrics;       /* ended: loss and metrics of the trailer */
    uint32_t vanished;                 /* incomplete trailers that are still excused after a restart: AMPD_VANISHED */
    struct ampd_segment_count *counts; /* [parameters] what is not finite in the blocks of the open step */
    uint8_t *user_state;               /* of the newest header; owned */
    uint32_t user_state_size;
};

/*
 * A Push begins (AMPD_EVENT_PUSH_BEGIN): it gets the slot, its stored result or an error, or waits for its step. Renews
 * the worker's lease and copies the user state. A header that cannot be is refused with AMP_EINVAL.
 */
void ampd_push_begin(struct ampd_core *core, uint64_t call, const struct ampd_event_push *push);
/* A listed block is in memory: PRESENT, and its vote pass may begin. A wrong checksum ends the call with DATA_LOSS. */
void ampd_push_block(struct ampd_call *call, const struct ampd_event_block *block);
/*
 * The trailer is here: the slot has no writer any more, and the push is judged. It is answered when its step is
 * decided.
 */
void ampd_push_end(struct ampd_core *core, struct ampd_call *call, const struct ampd_event_push_end *end);
/* The stream of this call is over, or has let go of its slot: blocks that were RECEIVING are EMPTY. */
void ampd_push_closed(struct ampd_model *model, uint64_t call);
/* Judges every push that waits again. */
void ampd_push_retry(struct ampd_model *model);
/* Neither apply nor a job reads the block any more: lists it to the streams that may write it. */
void ampd_push_unblock(struct ampd_model *model, uint64_t local);
/* Ends a push with UNAVAILABLE (MODEL_STALLED), naming the rank that the model waits for. Its slot stays as it is. */
void ampd_push_stalled(struct ampd_model *model, struct ampd_call *call);
/* Judges all slots whose trailer came while the step before was still being applied. */
void ampd_push_check_ends(struct ampd_model *model);
/* Answers all pushes of the step that was just decided, except those that are being revoked. */
void ampd_push_answer(struct ampd_model *model);
/*
 * Empties a slot of all that is for the open step. Its stream and the pushes that wait with it are ended with ABORTED
 * (FENCED or RANK_TAKEN). Blocks that apply has yet to read stay.
 */
void ampd_slot_empty(struct ampd_model *model, uint32_t rank);
/* Empties the slot of a push that UNFIT names, after ending its calls with what the push does not agree with. */
void ampd_slot_unfit(struct ampd_model *model, const struct ampd_unfit *unfit);
/* Whether a parameter with a part in the block (a global index) is in the slot's absent list. */
bool ampd_slot_any_absent(const struct ampd_model *model, const struct ampd_slot *slot, uint64_t block);
/*
 * The step is decided: forgets header, trailer and counts, so that the slot can take a push of the next step. A stream
 * whose trailer was not here is revoked and answered LATE.
 */
void ampd_slot_next(struct ampd_model *model, uint32_t rank);

#endif
