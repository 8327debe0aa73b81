/* Bounds of the core that belong to no one machine. Private to server/core. */
#ifndef AMPD_CORE_LIMITS_H
#define AMPD_CORE_LIMITS_H

#include "storage/records.h"

#define AMPD_SHARDS_MAX   AMPD_PARTS_MAX
#define AMPD_CALL_BUCKETS 4096 /* of the table of calls */
#define AMPD_RETRY_MS     200  /* RetryInfo of UNAVAILABLE: recovery and drain take about that */
#define AMPD_CHECKPOINTS_WRITING_MAX                                                                                   \
    4                          /* checkpoints under way: one is written, one waits, and then a shard applies no more */
#define AMPD_PART_BATCH   4    /* blocks given to the writer at a time: 3 MiB with AdamW, written in milliseconds */
#define AMPD_PART_OUT_MAX 8    /* blocks that the writer may hold: it always has the next batch */
#define AMPD_SWEEP_MS     5000 /* longest time between two looks for calls that wait too long */
#define AMPD_SWEEPS       6    /* such looks in a lease, if that is short: what it bounds is a sixth longer at most */
#define AMPD_HELD_PUSHES  4 /* held pushes of one rank: each keeps a user state; the newest takes the oldest's place */
/* Trailers that fit a process before this one: a client that lost an answer sends two, if it is called twice three. */
#define AMPD_VANISHED    3
#define AMPD_TROUBLE_MAX 512 /* a sentence with a model's name and a path */
#define AMPD_NO_RANK     UINT32_MAX
#define AMPD_NO_BUFFER   UINT32_MAX
#define AMPD_BLOCK_BYTES 24 /* known of each block, apart from slots: pending, published, votes, serials, jobs */

#endif
