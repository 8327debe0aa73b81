/*
 * Where the parameters of the worker's machine lie: in memory of its own, in the user's, or in the servers' copies that
 * the host has mapped; and what the host needs to know to place gradients beside them. Thread rule: that of the core.
 */
#ifndef AMPCLIENT_CORE_MEMORY_H
#define AMPCLIENT_CORE_MEMORY_H

#include "client/core/client_core.h"

#define AMPCLIENT_MEMORY_ALIGN 64 /* of the parameters: a line of the cache */

/* Bytes that the parameters take, in the cast's dtype, after Join; 0 before it, and with units. */
size_t ampclient_core_memory_size(const struct ampclient_core *core);
/*
 * Whether the host has the server's copies mapped: pulls of a step are in_memory from then on. Values that lie in
 * copies which were mapped before are forgotten, so between two steps. may_pull_ahead: the model waits for each of its
 * workers, so that a version which is pulled before its step begins is not written over before that step is pushed.
 */
void ampclient_core_set_in_memory(struct ampclient_core *core, bool in_memory, bool may_pull_ahead);
/* From now on pulls bring bytes, as the memory is gone; values that lie there stay as they are until then. */
void ampclient_core_leave_memory(struct ampclient_core *core);
/* Where the parameter begins in the flat space; the first block of the shard that has this one. */
uint64_t ampclient_core_start(const struct ampclient_core *core, uint32_t parameter);
uint64_t ampclient_core_shard_first(const struct ampclient_core *core, uint64_t block);

/*
 * The user's memory for the parameters, borrowed until the core is freed; without it the core has its own. Between Join
 * and the first pull, once. AMP_ESTATE, AMP_EINVAL (too small, not a multiple of AMPCLIENT_MEMORY_ALIGN) with a text.
 */
int ampclient_core_use_memory(struct ampclient_core *core, void *memory, size_t size, struct amp_error *error);

/* Elements of every block of the flat space but the last. */
uint64_t ampclient_core_whole_block(const struct ampclient_core *core);
/* The dtype of the push in hand. */
enum amp_dtype ampclient_core_push_dtype(const struct ampclient_core *core);
/* Who attaches: the newest incarnation, after Join; and the model's name. */
struct ampclient_incarnation ampclient_core_incarnation(const struct ampclient_core *core);
void ampclient_core_name(const struct ampclient_core *core, char name[AMPCLIENT_NAME_MAX]);

/* ---- private to client/core ---- */

/* Memory of the core's own before a pull that brings bytes, if there is none yet. AMP_ENOMEM. */
int ampclient_core_make_parameters(struct ampclient_core *core);

#endif
