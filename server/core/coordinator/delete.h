/*
 * DeleteModel: how all shards come to delete a model, the coordinator last (delete.c). All functions run on the thread
 * that steps the core, on shard 0. Private to server/core.
 */
#ifndef AMPD_CORE_DELETE_H
#define AMPD_CORE_DELETE_H

#include <stdint.h>

struct ampd_core;
struct ampd_event_act;
struct ampd_message;
struct ampd_model;

/*
 * DeleteModel. Answered when no shard has the model any more. Fails as ampd_core_coordinated does, except that a model
 * which is being created or, with `force`, one that cannot be brought back is deleted, too. Fails with AMP_ESTATE while
 * a worker holds a lease, unless `force` is given.
 */
void ampd_delete_call(struct ampd_core *core, uint64_t call, const struct ampd_event_act *act);

/*
 * The model becomes DELETING. With several shards the store first marks it, so that a start goes on with the deletion.
 */
void ampd_delete_begin(struct ampd_model *model);

/* The mark is stored, or needs not be: sends DELETE in a new round, and shard 0 begins to delete its own part. */
void ampd_delete_marked(struct ampd_model *model);

/* Sends DELETE to a shard that has not answered the present round. Shard 0 itself gets none. */
void ampd_delete_send(struct ampd_model *model, uint32_t shard);

/* Handles DELETED of the present round. After the last one shard 0 deletes its own part. */
void ampd_delete_answered(struct ampd_model *model, const struct ampd_message *message);

#endif
