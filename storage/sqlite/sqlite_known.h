/* A writer's cache of models (struct store_known), so that the row of a verdict needs no query before it is stored. */
#ifndef AMPD_SQLITE_KNOWN_H
#define AMPD_SQLITE_KNOWN_H

#include "storage/sqlite/sqlite_handle.h"

/*
 * Gives the cache's entry of a model, which is filled by a query if it is not there. *out is the store's and valid
 * until the next store_know or store_forget. AMP_ENOTFOUND, or an error of a read.
 */
int store_know(struct sqlite_store *store, const char *model, struct store_known **out, struct amp_error *error);

/* Empties the cache. */
void store_forget(struct sqlite_store *store);

/* Queries the id and the newest epoch (0: none) of a model, without the cache. AMP_ENOTFOUND, or an error of a read. */
int store_find_model(struct sqlite_store *store, const char *name, int64_t *id, uint64_t *epoch,
                     struct amp_error *error);

#endif
