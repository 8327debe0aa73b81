/*
 * Memory that a model shares with servers on this host (AttachMemory): their cast copies, mapped here to be read, and a
 * slot on each shard, mapped to be written. If memory cannot be shared, bytes are sent as to any other host.
 *
 * The user's thread attaches, between two steps. The loop's thread has the calls; when one of them ends, the slots have
 * ended, and the memory is not used any more. It stays mapped until the user's thread attaches again, or the model is
 * freed, since the user may have views of it.
 */
#ifndef AMPCLIENT_ATTACH_H
#define AMPCLIENT_ATTACH_H

#include "client/core/client_memory.h"
#include "client/io/model.h"

/* Most blocks in the slot that one message announces: the server reads them while the next ones are written. */
#define AMPCLIENT_PLACED_MAX 16

/* The mapped memory, in use while ampclient_core_in_memory is true. Read with the mutex, changed between two steps. */
struct ampclient_attached {
    enum amp_dtype dtype;        /* widest dtype of gradients that the slots have room for */
    uint8_t *copies[2];          /* version v lies in copies[v % 2]: the flat space in the cast's dtype */
    uint8_t *slot;               /* the slots of all shards end to end: the flat space in `dtype` */
    size_t copy_size, slot_size; /* bytes of each copy, and of the slot */
    bool waits;                  /* the model waits for each of its workers, so that pulls may be begun ahead */
};

/*
 * Tries to attach, if nothing is attached; attaches again if wider gradients were pushed, the incarnation is another
 * one, or a server has ended the slot. Where there is no room for a slot that is wider than the cast, the incarnation
 * gets one that is not, and keeps that. After a refusal the same incarnation does not try again, after any other
 * failure it does so after a pause. A failure is no error of the caller, and at most a line in the log. User's thread,
 * between two steps, without the mutex.
 */
void ampclient_attach(struct ampclient_model *model);

/* Stops using the memory, since a server says that there is no slot, or its call has ended. Loop's thread, no mutex. */
void ampclient_attach_lost(struct ampclient_model *model);

/* Cancels the calls of AttachMemory; each leaves model->attach_calls when it has closed. Loop's thread. */
void ampclient_attach_cancel(struct ampclient_model *model);

/* Calls shared_cb for the mappings, and unmaps them. The calls have ended, or there is no loop any more. */
void ampclient_attach_free(struct ampclient_model *model);

/*
 * The place of a block, as elements of `dtype`, in the slot of its shard. NULL: memory is not shared now, or the slot
 * is too narrow for this dtype. With the mutex.
 */
uint8_t *ampclient_attached_place(const struct ampclient_model *model, uint64_t block, enum amp_dtype dtype);

#endif
