/* From the votes of all shards to a verdict (verdict.c). Private to server/core. */
#ifndef AMPD_CORE_VERDICT_H
#define AMPD_CORE_VERDICT_H

struct ampd_model;
struct ampd_verdict_message;

struct ampd_verdict_message *ampd_verdict_make(struct ampd_model *model); /* the caller's */

#endif
