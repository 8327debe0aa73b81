/* What a writer of the SQLite store keeps in mind of models, so that a verdict asks no table for it. */
#ifndef AMPD_SQLITE_KNOWN_H
#define AMPD_SQLITE_KNOWN_H

#include "storage/sqlite/sqlite_handle.h"

/* The model's id and newest epoch, out of the table of models if they are not known. The store's. */
int store_know(struct sqlite_store *store, const char *model, struct store_known **out, struct amp_error *error);

/* Forgets what is known of models. */
void store_forget(struct sqlite_store *store);

/* The id and newest epoch (0: none) of a model. AMP_ENOTFOUND. */
int store_find_model(struct sqlite_store *store, const char *name, int64_t *id, uint64_t *epoch,
                     struct amp_error *error);

#endif
