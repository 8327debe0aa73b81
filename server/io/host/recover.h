/* Recovery at a start: reads what is stored, removes what a crash has left, and gives the core what was found. */
#ifndef AMPD_IO_RECOVER_H
#define AMPD_IO_RECOVER_H

#include "base/err.h"
#include "storage/records.h"
#include "server/core/core.h"

#include <stddef.h>

struct ampd_server;

/* What the store has, filled by io_recover_find. */
struct io_found {
    struct ampd_server *server;
    struct ampd_model_record *records; /* owned: ampd_model_records_free */
    size_t count;
    struct ampd_fence fences[AMPD_PARTS_MAX]; /* by shard; counter 0: none was seen */
};

/*
 * Reads the store, takes up checkpoints of another process (take_up.h), and removes what a crash has left. `found` is a
 * struct io_found, zero except `server`; its records are the caller's to free, also after an error. Runs off the loop
 * (off_loop.h), before there is a core. 0 or an error.
 */
int io_recover_find(void *found, struct amp_error *error);

/*
 * Gives the core the models and fences that were found (MODEL_FOUND, FENCE_FOUND), and begins io_purge. On the loop,
 * once, in SERVER_RUNNING; the caller then gives the core START. 0; AMP_EEXHAUSTED: a model does not fit into
 * memory_max.
 */
int io_recover(struct ampd_server *server, const struct io_found *found, struct amp_error *error);

#endif
