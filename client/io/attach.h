/*
 * Memory that a model shares with servers on this host (AttachMemory): their cast copies, mapped here to be read, and a
 * slot on each shard, mapped to be written. Where it cannot be had, bytes travel as they do to any other host.
 *
 * The user's thread attaches, between two steps; the loop's thread has the calls, whose end is that of the slots, and
 * stops using the memory then. It stays mapped until the user's thread attaches anew, or the model is freed: the user
 * may have views of it.
 */
#ifndef AMPCLIENT_ATTACH_H
#define AMPCLIENT_ATTACH_H

#include "client/core/client_memory.h"
#include "client/io/model.h"

/* Blocks that are placed by one message: the server reads them while the next ones are written. */
#define AMPCLIENT_PLACED_MAX 16

/* With the mutex. The mapped memory; what is on is changed with the mutex, the rest between two steps alone. */
struct ampclient_attached {
    bool on;              /* the calls are open */
    enum amp_dtype dtype; /* widest that has room in the slots */
    uint8_t *copies[2];   /* the flat space in the cast's dtype */
    uint8_t *slot;        /* the flat space in `dtype` */
    size_t copy_size, slot_size;
    bool waits; /* the model waits for each of its workers: pulls may be begun ahead */
};

/*
 * User's thread, between two steps: attaches if it is not; anew where wider gradients have come or a server has let go;
 * after a refusal not again by the same incarnation, after any other failure in a while. What goes wrong is a line
 * of the log at most.
 */
void ampclient_attach(struct ampclient_model *model);

/* Loop's thread, without the mutex: a server says that there is no slot, or its call has ended. */
void ampclient_attach_lost(struct ampclient_model *model);

/* Loop's thread: the calls end. */
void ampclient_attach_cancel(struct ampclient_model *model);

/* Unmaps. The calls have ended, or there is no loop any more. */
void ampclient_attach_free(struct ampclient_model *model);

/*
 * With the mutex. Where a block of `dtype` lies in the slot of its shard, or NULL: it cannot be placed.
 */
uint8_t *ampclient_attached_place(const struct ampclient_model *model, uint64_t block, enum amp_dtype dtype);

#endif
