/* SYNC found nothing lost: the coordinator goes on where it was (adopt.c). Private to server/core. */
#ifndef AMPD_CORE_ADOPT_H
#define AMPD_CORE_ADOPT_H

#include <stdbool.h>

struct ampd_checkpoint_record;
struct ampd_model;

bool ampd_adopt_can(const struct ampd_model *model); /* all shards have answered, and hold what it takes */
void ampd_adopt(struct ampd_model *model,
                const struct ampd_checkpoint_record *checkpoint); /* the newest; epoch 0: none */

#endif
