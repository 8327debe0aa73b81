/*
 * Deletion of a model in the store (store.h, which has FULL, threads and common errors): the model is gone at once, and
 * its rows are removed in small transactions afterwards.
 */
#ifndef AMPD_STORE_DELETE_H
#define AMPD_STORE_DELETE_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_store; /* one open handle; see store.h */

/*
 * FULL. Marks a model as being deleted. For a model of several shards, which all have to delete it: ampd_store_load
 * reports the mark (ampd_model_record.deleting), so that a restarted server completes the deletion. AMP_ENOTFOUND.
 */
int ampd_store_mark_deleting(struct ampd_store *store, const char *model, struct amp_error *error);

/*
 * FULL. Deletes a model: after 0 no model has this name, and the name may be used again. The rows are removed by
 * ampd_store_purge, so that a long history delays no verdict. The caller removes the files. AMP_ENOTFOUND.
 */
int ampd_store_delete_model(struct ampd_store *store, const char *model, struct amp_error *error);

/*
 * Hands the name of each deleted model that has rows left to name_cb; the text is valid until the callback returns. A
 * result other than 0 ends the walk and is returned.
 */
int ampd_store_each_deleted(struct ampd_store *store, void *arg, struct amp_error *error,
                            int (*name_cb)(void *arg, const char *name));

/*
 * Removes at most `limit` rows of the history of one deleted model, in one short transaction, and with the last of them
 * what else is stored of it. *more: rows of deleted models are left, so call again. Does nothing if there are none.
 */
int ampd_store_purge(struct ampd_store *store, uint32_t limit, bool *more, struct amp_error *error);

#endif
