/* Pulls of a version (pull.c). Private to server/core. */
#ifndef AMPD_CORE_PULL_H
#define AMPD_CORE_PULL_H

#include <stdbool.h>
#include <stdint.h>

struct ampd_call;
struct ampd_core;
struct ampd_event_pull;
struct ampd_model;

void ampd_pull_begin(struct ampd_core *core, uint64_t call, const struct ampd_event_pull *pull);
void ampd_pull_closed(const struct ampd_call *call); /* the host has sent all of it, or it has broken off */
void ampd_pull_retry(struct ampd_model *model);
void ampd_pull_published(struct ampd_model *model, unsigned copy, uint64_t local);
/* Ends the pulls of versions below `version` that read the copy. True: nobody reads them any more. */
bool ampd_pull_revoke(struct ampd_model *model, unsigned copy, uint64_t version);

#endif
