/* What a shard votes: all that its passes have found (vote.c). Private to server/core. */
#ifndef AMPD_CORE_VOTE_H
#define AMPD_CORE_VOTE_H

#include <stdbool.h>
#include <stdint.h>

struct ampd_model;
struct ampd_vote;

void ampd_vote_fill(struct ampd_model *model, struct ampd_vote *vote);
bool ampd_vote_absent(const struct ampd_model *model, uint32_t parameter); /* from all contributors */

#endif
