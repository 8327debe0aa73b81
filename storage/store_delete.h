/* The end of a model in the store: it is gone at once, and its rows go little by little. See store.h. */
#ifndef AMPD_STORE_DELETE_H
#define AMPD_STORE_DELETE_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_store; /* one handle */

/*
 * FULL. DeleteModel of a model that other shards have too begins: ampd_store_load says so of it, so that it goes on
 * after a start. AMP_ENOTFOUND.
 */
int ampd_store_mark_deleting(struct ampd_store *store, const char *model, struct amp_error *error);

/*
 * FULL. From now on there is no model of this name, whatever happens; its rows go little by little (ampd_store_purge),
 * so that a long history holds no verdict up. Its files are the caller's to remove. AMP_ENOTFOUND.
 */
int ampd_store_delete_model(struct ampd_store *store, const char *model, struct amp_error *error);

/* Hands the name of each deleted model that has rows left to name_cb. Anything but 0 ends the walk and is returned. */
int ampd_store_each_deleted(struct ampd_store *store, void *arg, struct amp_error *error,
                            int (*name_cb)(void *arg, const char *name));

/* Takes at most `limit` rows of deleted models out, in one short transaction; *more: some are left. */
int ampd_store_purge(struct ampd_store *store, uint32_t limit, bool *more, struct amp_error *error);

#endif
