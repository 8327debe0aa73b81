/*
 * Where the parameters of the worker's state machine lie: in memory of its own, in the user's, or in the servers'
 * copies that the I/O layer has mapped; and what the I/O layer needs to know to place gradients in a slot. Threads: one
 * at a time, with the lock of the I/O layer (client_core.h).
 */
#ifndef AMPCLIENT_CORE_MEMORY_H
#define AMPCLIENT_CORE_MEMORY_H

#include "client/core/client_core.h"

#define AMPCLIENT_MEMORY_ALIGN 64 /* alignment of the parameters in bytes: a line of the cache */

/* Bytes that the parameters take in the cast's dtype, with pads. 0 before the first Join, and with units. */
size_t ampclient_core_memory_size(const struct ampclient_core *core);
/*
 * Says whether the I/O layer has the server's copies mapped; if so, pulls of a step are in_memory from then on. Only
 * between two steps, since values in copies that were mapped before are forgotten. may_pull_ahead: the model waits for
 * each of its workers, so that a version which is pulled before its step begins is not overwritten before that step is
 * pushed.
 */
void ampclient_core_set_in_memory(struct ampclient_core *core, bool in_memory, bool may_pull_ahead);
/*
 * A server has ended the sharing: pulls bring bytes from now on. In any state. The copies stay mapped, and values there
 * stay readable, until the next ampclient_core_set_in_memory.
 */
void ampclient_core_leave_memory(struct ampclient_core *core);
/*
 * Whether memory is shared with the servers now, as the last call of ampclient_core_set_in_memory or
 * ampclient_core_leave_memory has said. False with units.
 */
bool ampclient_core_in_memory(const struct ampclient_core *core);
/* After Join: the flat index of the parameter's first element. */
uint64_t ampclient_core_start(const struct ampclient_core *core, uint32_t parameter);
/* After Join: the first block of the shard that owns this block. */
uint64_t ampclient_core_shard_first(const struct ampclient_core *core, uint64_t block);
/* After Join: the blocks of a shard, from *first to *end - 1; none if they are equal. */
void ampclient_core_shard_blocks(const struct ampclient_core *core, uint32_t shard, uint64_t *first, uint64_t *end);

/*
 * Gives memory of the user for the parameters, borrowed until the core is freed; without it the core allocates its own.
 * Once, between Join and the first pull. AMP_ESTATE (too late, a second time, or with units), AMP_EINVAL (NULL, too
 * small, or not aligned to AMPCLIENT_MEMORY_ALIGN) with a text; nothing is borrowed then.
 */
int ampclient_core_use_memory(struct ampclient_core *core, void *memory, size_t size, struct amp_error *error);

/* After Join: elements of every block of the flat space but the last. */
uint64_t ampclient_core_whole_block(const struct ampclient_core *core);
/* The dtype of the push in hand; AMP_DTYPE_NONE before its first gradient. */
enum amp_dtype ampclient_core_push_dtype(const struct ampclient_core *core);
/* The incarnation that the last Join gave; zeroed before the first. */
struct ampclient_incarnation ampclient_core_incarnation(const struct ampclient_core *core);
/* Copies the model's name, with a final zero. */
void ampclient_core_name(const struct ampclient_core *core, char name[AMPCLIENT_NAME_MAX]);

/* ---- private to client/core ---- */

/* Allocates core->parameters, zeroed, unless it is there already or the handle has units. 0; AMP_ENOMEM. */
int ampclient_core_make_parameters(struct ampclient_core *core);

#endif
