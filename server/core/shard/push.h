/* Pushes, and the slots that their gradients lie in (push.c). Private to server/core. */
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
    uint64_t writer;  /* the call that may write, or 0; until the host has let go */
    bool has_header;
    struct ampd_incarnation incarnation; /* whose bytes they are */
    enum amp_dtype dtype; /* of the bytes in the slot, also when the header is forgotten; NONE: there were none yet */
    float weight;
    double lr;       /* schedule WORKER, else 0 */
    bool ended;      /* the trailer is here */
    bool complete;   /* and every block is, or is absent */
    uint8_t *absent; /* bit per parameter, with ended; NULL: none */
    uint32_t absent_count;
    struct ampd_metrics metrics; /* with ended: of the same trailer */
    uint32_t vanished; /* a restart has taken what was told to be PRESENT: so many unfit trailers mean: ask again */
    struct ampd_segment_count *counts; /* [parameters] of the open step */
    uint8_t *user_state;
    uint32_t user_state_size;
};

void ampd_push_begin(struct ampd_core *core, uint64_t call, const struct ampd_event_push *push);
void ampd_push_block(struct ampd_core *core, struct ampd_call *call, const struct ampd_event_block *block);
void ampd_push_end(struct ampd_core *core, struct ampd_call *call, const struct ampd_event_push_end *end);
void ampd_push_closed(struct ampd_model *model, uint64_t call);   /* the stream lets go of its slot */
void ampd_push_retry(struct ampd_model *model);                   /* looks at every held push again */
void ampd_push_unblock(struct ampd_model *model, uint64_t local); /* the block may be written again */
void ampd_push_stalled(struct ampd_model *model, struct ampd_call *call);
void ampd_push_check_ends(struct ampd_model *model);           /* pushes that ended before apply had */
void ampd_push_answer(struct ampd_model *model);               /* all pushes of the step just decided */
void ampd_slot_empty(struct ampd_model *model, uint32_t rank); /* all that is for the open step */
void ampd_slot_unfit(struct ampd_model *model,
                     const struct ampd_unfit *unfit); /* likewise, and its pushes are refused with the reason */
/* Whether a parameter with a part in the block is in the slot's absent list. */
bool ampd_slot_any_absent(const struct ampd_model *model, const struct ampd_slot *slot, uint64_t block);
void ampd_slot_next(struct ampd_model *model, uint32_t rank); /* the step is decided: metadata for the next one */

#endif
