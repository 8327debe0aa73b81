/* A pull of the worker's machine: the same version from every shard. Private to client/core. */
#ifndef AMPCLIENT_CORE_PULL_H
#define AMPCLIENT_CORE_PULL_H

#include "client/core/client_events.h"
#include "client/core/client_outputs.h"

struct ampclient_core;

/* A pull under way: the same version from every shard. */
struct ampclient_pull {
    enum ampclient_pull_by by;
    uint64_t calls[AMPCLIENT_SHARDS_MAX]; /* 0: not out */
    bool done[AMPCLIENT_SHARDS_MAX];
    /*
     * The pull of the next step was begun when the verdict came, before the user asks for it. It writes nothing that
     * the user can see, and one that fails before the user asks is forgotten.
     */
    bool ahead;
    bool has_header;
    struct ampclient_pull_header header; /* of the first shard that answered */
    bool unchanged;                      /* the version is the one that is held */
    uint64_t blocks_here, blocks_wanted;
    uint32_t resends; /* for blocks that came damaged */
    uint8_t *have;    /* [blocks] */
};

/* Begins it, unless it is under way; ends it if everything has come ahead. */
void ampclient_core_pull_start(struct ampclient_core *core);
/* READY, after a verdict: begins the next step's pull, where it may be begun ahead (ampclient_core_set_in_memory). */
void ampclient_core_pull_ahead(struct ampclient_core *core);
void ampclient_core_pull_header(struct ampclient_core *core, uint64_t call, const struct ampclient_pull_header *header);
void ampclient_core_pull_block(struct ampclient_core *core, uint64_t call, uint64_t block);
bool ampclient_core_pull_ended(struct ampclient_core *core, uint64_t call, const struct ampclient_ended *ended);
void ampclient_core_pull_cancel(struct ampclient_core *core);

#endif
