/*
 * Marks the checkpoint directory that the shards of a cluster share with the name of that cluster, in the file CLUSTER.
 * Without it two clusters with models of the same name could be given one directory by mistake and overwrite each
 * other's checkpoint files. A start would notice that the files are not its own (take_up.c), but its own would be gone.
 */
#ifndef AMPD_IO_SHARED_DIR_H
#define AMPD_IO_SHARED_DIR_H

#include "base/err.h"

/*
 * Makes the directory (mode 0700) if it does not exist, and writes the cluster's name into it if it has none. Blocks on
 * the disk; safe where several processes do it at the same time. 0 also where the name was there already. AMP_ESTATE:
 * the directory belongs to another cluster, and the text says what to do. AMP_EINVAL: it cannot be made or used, or the
 * path is too long; AMP_EIO, AMP_EEXHAUSTED.
 */
int io_shared_dir_claim(const char *path, const char *cluster, struct amp_error *error);

#endif
