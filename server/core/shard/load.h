/* The first values of a model, on a shard (load.c). Private to server/core. */
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

/* The first values of a model, on their way. */
struct ampd_shard_load {
    uint64_t loader;            /* the call that writes masters, or 0 */
    uint64_t granted;           /* number of the loader that may in this epoch, or 0 */
    uint32_t planes;            /* that it brings: masters, and with a full load the moments */
    uint8_t *have;              /* per block: a bit for each of them */
    uint64_t count;             /* of those bits */
    bool moved;                 /* a block that was not there has come, or the grant, since the last WANT */
    struct ampd_load_base base; /* of the epoch, where it began without a checkpoint */
};

void ampd_load_begin(struct ampd_core *core, uint64_t call, const struct ampd_event_load *load);
void ampd_load_block(struct ampd_core *core, struct ampd_call *call, const struct ampd_event_block *block);
void ampd_load_state(struct ampd_core *core, struct ampd_call *call, const struct ampd_event_load_state *state);
void ampd_load_end(struct ampd_core *core, struct ampd_call *call);
void ampd_load_closed(struct ampd_model *model, uint64_t call); /* the loader's stream is gone */
void ampd_load_next(struct ampd_model *model);                  /* grants the next loader, or answers all */
void ampd_load_cast_done(struct ampd_model *model);
void ampd_load_void(struct ampd_model *model);          /* a restore: whoever loads is told to begin anew */
bool ampd_load_streams(const struct ampd_model *model); /* masters may be written: not only waited for */
void ampd_load_loaded(struct ampd_model *model);        /* LOADED to the coordinator, if it may lack it */
void ampd_load_wants(struct ampd_model *model);         /* WANT, if a loader waits or loads; also now and then */
void ampd_load_tell(struct ampd_model *model);          /* in a new session: all that a broken one may have lost */
void ampd_load_granted(struct ampd_model *model, const struct ampd_message *message);

#endif
