/*
 * A pull of all parameters (with units: of the version alone): the same version from every shard. Private to
 * client/core; all functions are for a handle that has joined.
 */
#ifndef AMPCLIENT_CORE_PULL_H
#define AMPCLIENT_CORE_PULL_H

#include "client/core/client_events.h"
#include "client/core/client_outputs.h"

struct ampclient_core;

/*
 * FETCHING: of the newest version; else of a step. In READY it is that of the next step, which was begun when the
 * verdict came, before the user asks for it: it writes nothing that the user can see, and one that fails before the
 * user asks is forgotten.
 */
struct ampclient_pull {
    uint64_t calls[AMPCLIENT_SHARDS_MAX]; /* by shard: number of its Pull; 0: none is under way */
    bool done[AMPCLIENT_SHARDS_MAX];      /* by shard: its Pull has ended well */
    bool has_header;
    struct ampclient_pull_header header; /* of the first shard that answered; the others must agree with it */
    bool unchanged;                      /* the version is the one that is held already */
    uint64_t blocks_here, blocks_wanted; /* number of blocks that are in memory, and that all shards are to bring */
    uint32_t resends; /* pulls made again at once: blocks were damaged, or the newest version was not that of all */
    uint8_t *have;    /* [blocks] 1: the block is in memory; pulls of units use it, too */
};

/*
 * PULLING or FETCHING: begins the Pulls of all shards, unless they are under way. If a pull that was begun ahead has
 * brought everything, completes it.
 */
void ampclient_core_pull_start(struct ampclient_core *core);
/*
 * READY, after a verdict: begins the pull of the next step before the user asks for it, if ampclient_core_set_in_memory
 * allows it; else does nothing.
 */
void ampclient_core_pull_ahead(struct ampclient_core *core);
/* The event PULL_HEADER. Ignores calls that are no Pull of this pull. */
void ampclient_core_pull_header(struct ampclient_core *core, uint64_t call, const struct ampclient_pull_header *header);
/* The event PULL_BLOCK. Ignores calls that are no Pull of this pull, and blocks that are in memory already. */
void ampclient_core_pull_block(struct ampclient_core *core, uint64_t call, uint64_t block);
/* The end of a call. False: it is no Pull of this pull, and nothing is done. */
bool ampclient_core_pull_ended(struct ampclient_core *core, uint64_t call, const struct ampclient_ended *ended);
/* Cancels the Pulls of all shards; in any state. */
void ampclient_core_pull_cancel(struct ampclient_core *core);

#endif
