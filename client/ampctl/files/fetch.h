/* Fetches the file of one shard of a checkpoint, for ampctl checkpoint export. */
#ifndef AMPCTL_FETCH_H
#define AMPCTL_FETCH_H

#include "client/ampctl/ask.h"

#include <stdatomic.h>

struct ampctl_part {
    const char *model; /* all pointers are borrowed during the call */
    const struct ampctl_checkpoint_key *key;
    uint32_t shard, shards;
    const char *path;           /* of the file to be written */
    const atomic_bool *stopped; /* once it is true, the call ends; may be set in a signal's handler */
    uint64_t size_max;          /* largest size of the file that is believed */
    uint8_t manifest[16];       /* output: identifies what the file must hold */
};

/*
 * Makes one call to the part's shard, with the time limit of `ctl`. The contents are not verified: read the file with
 * its manifest. 0, or an exit code after a sentence on stderr; then a piece of the file may be there. If the client's
 * thread hangs, for example in a write to a file system that is gone, the link is broken, and the memory that the
 * thread uses is never freed.
 */
int ampctl_fetch_part(struct ampctl *ctl, struct ampctl_part *part);

#endif
