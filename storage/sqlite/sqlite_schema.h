/* The schema of ampd.db and its migrations. */
#ifndef AMPD_SQLITE_SCHEMA_H
#define AMPD_SQLITE_SCHEMA_H

#include "storage/sqlite/sqlite_handle.h"

/*
 * Brings the file to the newest schema, one transaction per migration. AMP_EVERSION: the file has a newer one;
 * AMP_EDATALOSS: a database of another program, or, with `has_models`, a file that has lost what it held.
 */
int store_migrate(struct sqlite_store *store, bool has_models, struct amp_error *error);

#endif
