/* Fetches one shard's file of a checkpoint, for ampctl checkpoint export. */
#ifndef AMPCTL_FETCH_H
#define AMPCTL_FETCH_H

#include "client/ampctl/ask.h"

#include <stdatomic.h>

struct ampctl_part {
    const char *model; /* these five are borrowed for the call, */
    const struct ampctl_checkpoint_key *key;
    uint32_t shard, shards;
    const char *path;           /* made anew */
    const atomic_bool *stopped; /* once it is true, the call ends; may be set in a signal's handler */
    uint64_t size_max;          /* what the server says is believed up to here */
    uint8_t manifest[16];       /* and this is filled in */
};

/*
 * One call to the part's shard, with the time limit of `ctl`. What the file holds is not verified: read it with its
 * manifest. 0, or an exit code after a sentence; then a piece of the file may be there. Where the client's thread
 * hangs, in the write to a file system that is gone perhaps, the link is broken, and what that thread uses stays to the
 * program's end.
 */
int ampctl_fetch_part(struct ampctl *ctl, struct ampctl_part *part);

#endif
