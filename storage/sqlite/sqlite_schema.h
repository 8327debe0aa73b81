/* The schema of ampd.db and its migrations. */
#ifndef AMPD_SQLITE_SCHEMA_H
#define AMPD_SQLITE_SCHEMA_H

#include "storage/sqlite/sqlite_handle.h"

/*
 * Brings the file of a new writer to the newest schema, one transaction per migration. `has_models`: the data directory
 * has files of models, so that the file cannot be a new one. AMP_EVERSION (STORE_NEWER): the file has a newer schema;
 * AMP_EDATALOSS: a database of another program (NOT_A_STORE), or an empty file in spite of has_models (STORE_DAMAGED);
 * or an error of a write.
 */
int store_migrate(struct sqlite_store *store, bool has_models, struct amp_error *error);

#endif
