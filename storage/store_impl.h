/*
 * What an implementation of the store (store.h) provides: a table of operations, and handles that begin with struct
 * ampd_store. Only store.c and the implementations include this header.
 */
#ifndef AMPD_STORE_IMPL_H
#define AMPD_STORE_IMPL_H

#include "storage/store.h"

/* The operations of an implementation: the two below, and one for each row of store_calls.def. */
struct ampd_store_ops {
    int (*open_reader)(struct ampd_store *store, struct ampd_store **reader, struct amp_error *error);
    void (*close)(struct ampd_store *store);
#define AMPD_STORE_CALL(name, parameters, arguments) int(*name) parameters;
#define AMPD_STORE_OP(name, parameters)              int(*name) parameters;
#include "storage/store_calls.def"
#undef AMPD_STORE_CALL
#undef AMPD_STORE_OP
};

/* The first member of every implementation's handle. */
struct ampd_store {
    const struct ampd_store_ops *ops;
    bool log_is_long; /* ampd_store_move_log has something to do; of the thread that writes */
};

/*
 * The errors that both implementations report, so that callers and tests see the same text and reason from both. Each
 * fills *error (NULL is allowed) and returns its code: AMP_ENOTFOUND, AMP_EEXIST, AMP_ESTATE (STALE_EPOCH), AMP_EEXIST,
 * AMP_ESTATE (STEP_GAP) and AMP_ENOTFOUND, in this order.
 */
int ampd_store_no_model(struct amp_error *error, const char *model);
int ampd_store_model_exists(struct amp_error *error, const char *model);
int ampd_store_old_epoch(struct amp_error *error, uint64_t given, uint64_t newest);
int ampd_store_step_exists(struct amp_error *error, uint64_t epoch, uint64_t step);
int ampd_store_step_gap(struct amp_error *error, uint64_t epoch, uint64_t step);
int ampd_store_no_checkpoint(struct amp_error *error, uint64_t epoch, uint64_t step);

/* Whether a row that was decided at this time is beyond a limit of age (struct ampd_history_limit). */
bool ampd_store_is_beyond(const struct ampd_history_limit *limit, int64_t at_us);

#endif
