/* What an implementation of the store gives. Only store.c and the implementations include this. */
#ifndef AMPD_STORE_IMPL_H
#define AMPD_STORE_IMPL_H

#include "storage/store.h"

struct ampd_store_ops {
    int (*open_reader)(struct ampd_store *store, struct ampd_store **reader, struct amp_error *error);
    void (*close)(struct ampd_store *store);
    int (*boot)(struct ampd_store *store, uint32_t shard, const uint8_t *boot_id, struct ampd_fence *fence,
                struct amp_error *error);
    int (*get_fence)(struct ampd_store *store, uint32_t shard, struct ampd_fence *fence, struct amp_error *error);
    int (*put_fence)(struct ampd_store *store, uint32_t shard, const struct ampd_fence *fence, struct amp_error *error);
    int (*put_model)(struct ampd_store *store, const struct ampd_model_spec *spec, int64_t at_us,
                     struct amp_error *error);
    int (*put_epoch)(struct ampd_store *store, const char *model, const struct ampd_epoch_record *epoch,
                     const struct ampd_step_row *first, struct amp_error *error);
    int (*put_worker)(struct ampd_store *store, const char *model, const struct ampd_worker_record *worker,
                      struct amp_error *error);
    int (*put_verdicts)(struct ampd_store *store, const struct ampd_verdict_put *puts, uint32_t count, bool full,
                        uint32_t *stored, struct amp_error *error);
    int (*put_checkpoint)(struct ampd_store *store, const char *model, const struct ampd_checkpoint_record *checkpoint,
                          bool adopted, struct amp_error *error);
    int (*put_parts)(struct ampd_store *store, const char *model, const struct ampd_checkpoint_record *checkpoint,
                     struct amp_error *error);
    int (*drop_checkpoint)(struct ampd_store *store, const char *model, uint64_t epoch, uint64_t step,
                           struct amp_error *error);
    int (*mark_deleting)(struct ampd_store *store, const char *model, struct amp_error *error);
    int (*delete_model)(struct ampd_store *store, const char *model, struct amp_error *error);
    int (*each_deleted)(struct ampd_store *store, void *arg, struct amp_error *error,
                        int (*name_cb)(void *arg, const char *name));
    int (*purge)(struct ampd_store *store, uint32_t limit, bool *more, struct amp_error *error);
    int (*load)(struct ampd_store *store, struct ampd_model_record **records, size_t *count, struct amp_error *error);
    /* lo and hi are inclusive bounds that already hold the filter's epoch and from; step_max is never 0; which is not NULL. */
    int (*page_history)(struct ampd_store *store, const char *model, const struct ampd_history_filter *filter,
                        const struct ampd_history_key *lo, const struct ampd_history_key *hi, uint32_t limit, void *arg,
                        struct amp_error *error, ampd_history_cb *row_cb);
    int (*page_overflows)(struct ampd_store *store, const char *model, const struct ampd_history_filter *filter,
                          const struct ampd_overflow_filter *which, const struct ampd_history_key *lo,
                          const struct ampd_history_key *hi, uint32_t limit, void *arg, struct amp_error *error,
                          ampd_overflows_cb *row_cb);
};

/* The first member of every handle. */
struct ampd_store {
    const struct ampd_store_ops *ops;
};

/* The sentences that both implementations answer with, so that callers and tests see the same. */
int ampd_store_no_model(struct amp_error *error, const char *model);
int ampd_store_model_exists(struct amp_error *error, const char *model);
int ampd_store_old_epoch(struct amp_error *error, uint64_t given, uint64_t newest);
int ampd_store_step_exists(struct amp_error *error, uint64_t epoch, uint64_t step);
int ampd_store_step_gap(struct amp_error *error, uint64_t epoch, uint64_t step);
int ampd_store_no_checkpoint(struct amp_error *error, uint64_t epoch, uint64_t step);

#endif
