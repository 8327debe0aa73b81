/*
 * What a shard votes: all that its passes have found (vote.c). Pure functions of the model's tensors and slots; they
 * run on the thread that steps the core. Private to server/core.
 */
#ifndef AMPD_CORE_VOTE_H
#define AMPD_CORE_VOTE_H

#include <stdbool.h>
#include <stdint.h>

struct ampd_model;
struct ampd_vote;

/*
 * Fills a zeroed vote on the closed step, whose vote passes must be done. The caller owns vote->subtrees and
 * vote->shared (NULL where there are none).
 */
void ampd_vote_fill(struct ampd_model *model, struct ampd_vote *vote);

/* Whether the parameter is absent from all contributors of the closed step. */
bool ampd_vote_absent(const struct ampd_model *model, uint32_t parameter);

#endif
