/* Whether ampd.db and its write-ahead log belong together, which SQLite takes for granted. */
#ifndef AMPD_SQLITE_LOG_H
#define AMPD_SQLITE_LOG_H

#include "base/err.h"

/*
 * Called before SQLite opens the file. AMP_EDATALOSS (STORE_DAMAGED): the file lacks more than 16 pages that it had
 * when the log was begun; an older copy that lacks fewer is not noticed. 0 also if there is no log, or it cannot be
 * read: SQLite says so.
 */
int store_check_log(const char *path, struct amp_error *error);

#endif
