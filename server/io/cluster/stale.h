/*
 * Outdated data directories: another process has been this shard since the directory was. Its models are compared with
 * those of another shard, and where it is older, it is renamed (set aside), so that an empty one can be filled in its
 * place (refill.c). ampd never reads what was set aside; it is kept for the operator. Both functions may run on any
 * thread, and the second one blocks on the disk.
 */
#ifndef AMPD_IO_STALE_H
#define AMPD_IO_STALE_H

#include "base/err.h"
#include "storage/datadir.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stddef.h>

/*
 * How many directories that were set aside are kept, the newest ones: one for an operator who wants to look at the lost
 * data, and one in case that a second loss happens meanwhile.
 */
#define IO_STALE_KEPT 2

/*
 * Whether the models in `own` are older than those in `now`, which another shard has sent and which are up to date:
 * `now` has a later epoch of a model, a model that `own` lacks, or no longer a model that `own` has (it was deleted).
 */
bool io_stale_is_older(const struct ampd_model_record *own, size_t own_count, const struct ampd_model_record *now,
                       size_t now_count);

/*
 * Renames the directory to "PATH.stale-N", where N is one more than the highest there, and opens a new, empty one under
 * PATH. Then removes the directories set aside earlier, except the newest IO_STALE_KEPT. No file in the directory may
 * be open. `aside` gets the new name. On failure *dir may be closed, and the old directory has one of the two names.
 * AMP_EINVAL: the path is too long; AMP_EIO, AMP_EEXHAUSTED, or a code of ampd_datadir_open.
 */
int io_stale_set_aside(struct ampd_datadir *dir, char aside[AMPD_DATADIR_PATH_MAX], struct amp_error *error);

#endif
