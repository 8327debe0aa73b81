/* How a shard forgets a model (shard_delete.c); see base/local.h, too. Private to server/core. */
#ifndef AMPD_CORE_SHARD_DELETE_H
#define AMPD_CORE_SHARD_DELETE_H

struct ampd_core;
struct ampd_message;
struct ampd_model;

void ampd_delete_asked(struct ampd_core *core, const struct ampd_message *message); /* DELETE */
void ampd_delete_stored(struct ampd_model *model);

#endif
