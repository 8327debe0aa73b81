/* Bounds of the core that belong to no one state machine. Private to server/core. */
#ifndef AMPD_CORE_LIMITS_H
#define AMPD_CORE_LIMITS_H

#include "storage/records.h"

#define AMPD_SHARDS_MAX   AMPD_PARTS_MAX
#define AMPD_CALL_BUCKETS 4096 /* hash buckets of the table of calls */
#define AMPD_RETRY_MS     200  /* RetryInfo of UNAVAILABLE: recovery and drain take about that long */
/* Checkpoints under way at a time: one is written, one waits, and then a shard applies no more. */
#define AMPD_CHECKPOINTS_WRITING_MAX 4
/* Of these, when one may begin between two verdicts: the last place is for a verdict's, whose step then waits. */
#define AMPD_CHECKPOINTS_ASKED_MAX (AMPD_CHECKPOINTS_WRITING_MAX - 1)
/* Blocks given to the checkpoint's writer at a time: 3 MiB with AdamW, written in milliseconds. */
#define AMPD_PART_BATCH   4
#define AMPD_PART_OUT_MAX 8    /* blocks that the writer may hold: it always has the next batch */
#define AMPD_SWEEP_MS     5000 /* longest time between two looks for calls that have waited too long */
#define AMPD_SWEEPS       6    /* such looks in a short lease, so that what it bounds is a sixth longer at most */
/* Pushes of one rank that wait: each keeps a user state, and the oldest gives way to the newest. */
#define AMPD_HELD_PUSHES 4
/*
 * Incomplete trailers of a slot that are excused after a restart (ampd_slot.vanished), since they fit what the process
 * before has said was PRESENT: a client that lost an answer sends two of them, and three if it is called twice.
 */
#define AMPD_VANISHED    3
#define AMPD_TROUBLE_MAX 512 /* bytes of a sentence with a model's name and a path */
#define AMPD_NO_RANK     UINT32_MAX
#define AMPD_NO_BUFFER   UINT32_MAX
#define AMPD_BLOCK_BYTES 24 /* kept for each block, apart from slots: pending, published, votes, serials, jobs */

#endif
