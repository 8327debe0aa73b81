/*
 * The state machines of the core as tables: names, and which state may follow which. The diagrams in the essays of the
 * files that own the machines are compared with these tables by a test.
 */
#ifndef AMPD_STATES_H
#define AMPD_STATES_H

#include <stdbool.h>
#include <stdint.h>

/* One machine. Bit t of allowed[f]: state t may follow state f. */
struct ampd_machine {
    const char *name;
    const char *const *states;
    unsigned count;
    const uint32_t *allowed;
};

/* The step that collects, on a shard and on the coordinator (docs/step-protocol.md section 2). NONE: no such step. */
enum ampd_step_state { AMPD_STEP_NONE, AMPD_STEP_OPEN, AMPD_STEP_CLOSED, AMPD_STEP_VOTED, AMPD_STEP_STATES };

/* The last decided step, on a shard and on the coordinator. NONE: none was decided in this epoch. */
enum ampd_decided_state {
    AMPD_DECIDED_NONE,
    AMPD_DECIDED_APPLYING, /* its verdict is there, but not all blocks (coordinator: not all shards) have it applied */
    AMPD_DECIDED_APPLIED,
    AMPD_DECIDED_STATES
};

/* The memory of a model on a shard. */
enum ampd_memory_state {
    AMPD_MEMORY_LOST,      /* after a start: answers only SYNC, RESTORE and EPOCH */
    AMPD_MEMORY_RESTORING, /* a checkpoint is being read */
    AMPD_MEMORY_REPLAYING, /* a checkpoint is in memory, and the steps after it are applied from the journal */
    AMPD_MEMORY_RESTORED,  /* the checkpoint is in memory; the new epoch has not come yet */
    AMPD_MEMORY_EMPTY,     /* no values: waits for Load */
    AMPD_MEMORY_LOADING,   /* a load has the grant; its values are not all here and cast */
    AMPD_MEMORY_READY,     /* values and an epoch: steps may open */
    AMPD_MEMORY_STATES
};

/* One block of one rank's slot (docs/step-protocol.md section 2). */
enum ampd_block_state {
    AMPD_BLOCK_EMPTY,
    AMPD_BLOCK_RECEIVING, /* granted to the one stream that may write the slot */
    AMPD_BLOCK_PRESENT,   /* all its bytes are here */
    AMPD_BLOCK_STATES
};

/* The one checkpoint part of a model on a shard that is being written. */
enum ampd_part_state {
    AMPD_PART_FREE,
    AMPD_PART_WRITING, /* blocks go to the I/O layer, one after the other */
    AMPD_PART_SEALING, /* all blocks are in the file, which is being made durable */
    AMPD_PART_ENDING,  /* abandoned: the I/O layer or a job has not let go yet */
    AMPD_PART_STORING, /* the store's catalogue is being written */
    AMPD_PART_STATES
};

/* One block of that part. */
enum ampd_part_block_state {
    AMPD_PART_BLOCK_DONE,   /* in the file, or no part is being written */
    AMPD_PART_BLOCK_WAITS,  /* not given to the writer yet, and not copied: must not be written over */
    AMPD_PART_BLOCK_SAVING, /* a job copies it to a buffer, and then writes over it */
    AMPD_PART_BLOCK_SAVED,  /* its copy is in a buffer */
    AMPD_PART_BLOCK_OUT,    /* the I/O layer reads it, or its copy */
    AMPD_PART_BLOCK_STATES
};

/* A model as the coordinator runs it. */
enum ampd_coord_state {
    AMPD_COORD_CREATING,  /* the model is being stored */
    AMPD_COORD_SYNCING,   /* the shards are asked what they hold */
    AMPD_COORD_RESTORING, /* a checkpoint is read on all shards */
    AMPD_COORD_STORING,   /* the new epoch is being stored on all shards */
    AMPD_COORD_CREATED,   /* it has no values: waits for Load */
    AMPD_COORD_LOADED,    /* it has values; their checkpoint is being written */
    AMPD_COORD_WAITING,   /* ranks are missing before the first OPEN of the epoch */
    AMPD_COORD_RUNNING,
    AMPD_COORD_STALLED,   /* a rank that the step needs has been gone for loss_timeout */
    AMPD_COORD_FINISHING, /* max_steps decided; the last checkpoint is being written */
    AMPD_COORD_DONE,      /* max_steps decided and in a checkpoint */
    AMPD_COORD_DELETING,  /* all shards delete the model */
    AMPD_COORD_STATES
};

/* The lease of a rank (docs/step-protocol.md section 1). */
enum ampd_lease_state {
    AMPD_LEASE_NONE,  /* nobody has held the rank */
    AMPD_LEASE_LIVE,  /* every sign of life renews it */
    AMPD_LEASE_ENDED, /* only a Join brings the rank back */
    AMPD_LEASE_LEFT,  /* given back: the rank is free */
    AMPD_LEASE_STATES
};

/* A call that waits or streams. */
enum ampd_call_state {
    AMPD_CALL_HELD,      /* not granted yet; its body is unread */
    AMPD_CALL_STREAMING, /* granted: the I/O layer reads or writes memory of the model */
    AMPD_CALL_ENDED,     /* its body is here, and it waits for the answer */
    AMPD_CALL_REVOKING,  /* answered as soon as the I/O layer has let go of that memory */
    AMPD_CALL_STATES
};

extern const struct ampd_machine ampd_machine_step, ampd_machine_decided, ampd_machine_memory, ampd_machine_block,
    ampd_machine_part, ampd_machine_part_block, ampd_machine_coord, ampd_machine_lease, ampd_machine_call;

/* Whether `to` may follow `from`. */
bool ampd_machine_allows(const struct ampd_machine *machine, unsigned from, unsigned to);

#endif
