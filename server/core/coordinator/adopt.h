/*
 * How a coordinator goes on in the same epoch when SYNC has found nothing lost (adopt.c; `durability: step`). Shard 0
 * alone, on the thread that steps the core. Private to server/core.
 */
#ifndef AMPD_CORE_ADOPT_H
#define AMPD_CORE_ADOPT_H

#include <stdbool.h>

struct ampd_checkpoint_record;
struct ampd_model;

/* Whether all shards have answered SYNC with a memory that is READY, none of them more than a step ahead of shard 0. */
bool ampd_adopt_can(const struct ampd_model *model);

/*
 * Takes the state of the model from the answers, stores a verdict that another shard holds and this store lacks, and
 * resumes. `checkpoint`: the newest that all shards hold; epoch 0: there is none. ampd_adopt_can must be true.
 */
void ampd_adopt(struct ampd_model *model, const struct ampd_checkpoint_record *checkpoint);

#endif
