/*
 * A data directory of a shard that another process has been since, and what becomes of it: it is compared with what the
 * other shards hold, and where they know more, it is set aside under another name, so that it can be filled anew like
 * that of a standby (refill.c). What is set aside is never read again by ampd.
 */
#ifndef AMPD_IO_STALE_H
#define AMPD_IO_STALE_H

#include "base/err.h"
#include "storage/datadir.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * So many of what was set aside are kept, the newest: the one before for who wants to look, and one that a second loss
 * made.
 */
#define IO_STALE_KEPT 2

/*
 * Whether who has `now`, which lacks nothing that counts, has more than `own`: a later epoch of a model, a model that
 * `own` has not, or not one that `own` still has, since it was deleted.
 */
bool io_stale_is_older(const struct ampd_model_record *own, size_t own_count, const struct ampd_model_record *now,
                       size_t now_count);

/*
 * Renames the directory to "PATH.stale-N", N one above those that are there, and opens an empty one in its place; but
 * for the newest IO_STALE_KEPT those set aside are removed. Nothing in it may be open. `aside` is where it is now. On
 * failure the directory is closed, and has the one name or the other.
 */
int io_stale_set_aside(struct ampd_datadir *dir, char aside[AMPD_DATADIR_PATH_MAX], struct amp_error *error);

#endif
