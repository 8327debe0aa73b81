/* The schema of ampd.db and its migrations. */
#ifndef AMPD_STORE_SCHEMA_H
#define AMPD_STORE_SCHEMA_H

#include "storage/store_sqlite.h"

/*
 * Brings the file to the newest schema, one transaction per migration. AMP_EVERSION: the file has a newer one;
 * AMP_EDATALOSS: a database of another program.
 */
int store_migrate(struct sqlite_store *store, struct amp_error *error);

#endif
