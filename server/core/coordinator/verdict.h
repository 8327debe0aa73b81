/* From the votes of all shards to a verdict (verdict.c). On shard 0, on the core's thread. Private to server/core. */
#ifndef AMPD_CORE_VERDICT_H
#define AMPD_CORE_VERDICT_H

struct ampd_model;
struct ampd_verdict_message;

/*
 * Makes the verdict of the closed step, of which all shards' votes must be here: with its row and the range
 * warnings, without actions. The caller owns it.
 */
struct ampd_verdict_message *ampd_verdict_make(struct ampd_model *model);

#endif
