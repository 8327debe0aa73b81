/*
 * The directory of checkpoints that the shards of a cluster share: whose it is. Two clusters with models of one name
 * would write over each other's files; each would know the other's for foreign (take_up.c), but its own were gone.
 *
 *   CLUSTER   the name of the cluster, written by the first of its processes
 */
#ifndef AMPD_IO_SHARED_DIR_H
#define AMPD_IO_SHARED_DIR_H

#include "base/err.h"

/*
 * Makes the directory (mode 0700) if it is not there, and writes whose it is if nobody has. AMP_ESTATE: it is another
 * cluster's, and the text says what to do. AMP_EINVAL: it cannot be made; AMP_EIO, AMP_EEXHAUSTED.
 */
int io_shared_dir_claim(const char *path, const char *cluster, struct amp_error *error);

#endif
