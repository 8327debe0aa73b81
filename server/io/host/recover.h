/* A start: what is stored is read, what a crash has left is removed, and the core hears of it. */
#ifndef AMPD_IO_RECOVER_H
#define AMPD_IO_RECOVER_H

#include "base/err.h"
#include "storage/records.h"
#include "server/core/core.h"

#include <stddef.h>

struct ampd_server;

/* What the store has. */
struct io_found {
    struct ampd_server *server;
    struct ampd_model_record *records; /* owned: ampd_model_records_free */
    size_t count;
    struct ampd_fence fences[AMPD_PARTS_MAX]; /* by shard; counter 0: none was seen */
};

/*
 * Off the loop (off_loop.h), of a struct io_found in which the server is set: reads the store, takes up what another
 * process has left (take_up.h), and removes what a crash has. 0 or an error; the caller frees what is owned in both
 * cases.
 */
int io_recover_find(void *found, struct amp_error *error);

/*
 * Tells the core the models and fences that were found; START comes next. 0; AMP_EEXHAUSTED: a model does not fit into
 * memory_max.
 */
int io_recover(struct ampd_server *server, const struct io_found *found, struct amp_error *error);

#endif
