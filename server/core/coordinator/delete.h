/* How all shards come to forget a model (delete.c). Private to server/core. */
#ifndef AMPD_CORE_DELETE_H
#define AMPD_CORE_DELETE_H

#include <stdint.h>

struct ampd_core;
struct ampd_event_act;
struct ampd_message;
struct ampd_model;

void ampd_delete_call(struct ampd_core *core, uint64_t call, const struct ampd_event_act *act);
void ampd_delete_begin(struct ampd_model *model); /* on shard 0: all forget it */
void ampd_delete_marked(struct ampd_model *model);
void ampd_delete_send(struct ampd_model *model, uint32_t shard);
void ampd_delete_answered(struct ampd_model *model, const struct ampd_message *message);

#endif
