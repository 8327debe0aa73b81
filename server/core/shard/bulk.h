/* Jobs over all blocks of a shard: apply, load, restore, replay (bulk.c). Private to server/core. */
#ifndef AMPD_CORE_BULK_H
#define AMPD_CORE_BULK_H

#include "server/core/model/tensors.h"
#include "server/core/wire/messages.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_job;
struct ampd_model;
struct ampd_plan;

/* What jobs over all blocks are under way. */
enum ampd_bulk {
    AMPD_BULK_NONE,
    AMPD_BULK_APPLY,
    AMPD_BULK_LOAD,
    AMPD_BULK_RESTORE,
    AMPD_BULK_REPLAY,
    AMPD_BULK_VOID /* a restore has made it pointless: only its end is waited for */
};

/* The jobs of a model that are out. */
struct ampd_shard_jobs {
    uint64_t out;
    uint32_t *busy;      /* per block: jobs out */
    enum ampd_bulk bulk; /* what runs over all blocks, */
    uint64_t bulk_left;  /* how many of them are left, */
    uint64_t bulk_serial;
};

/* A decided step on its way into the masters and their copies. */
struct ampd_apply {
    struct ampd_plan *plan;
    bool waits;                   /* APPLYING, but its jobs are not out yet */
    struct ampd_applied warnings; /* range warnings of the last apply */
    uint8_t *pending;             /* per block: holds bytes of the decided step that apply has not read */
    uint8_t *published;           /* per block, of the copy that is written now */
    bool copy_valid[AMPD_COPIES];
    uint64_t copy_version[AMPD_COPIES];
    uint64_t streamed;        /* the newest version that a stream was granted */
    uint8_t *blocked;         /* per block: it waits for the checkpoint's writer */
    uint64_t blocked_count;   /* of them; all are at or behind */
    uint64_t blocked_next;    /* this one */
    uint64_t blocked_from_ms; /* since when nothing of the apply has been out but those; 0: something is */
};

void ampd_shard_bulk(struct ampd_model *model, enum ampd_bulk kind, uint32_t work, struct ampd_plan *plan);
void ampd_shard_bulk_done(struct ampd_model *model);
void ampd_shard_try_apply(struct ampd_model *model);
void ampd_shard_try_blocked(struct ampd_model *model); /* applies of blocks that the checkpoint has let go of */
void ampd_shard_forget_bulk(struct ampd_model *model);
void ampd_shard_job_done(struct ampd_model *model, const struct ampd_job *job);

#endif
