/*
 * Memory that is shared with workers of this host (AttachMemory). A worker gets the descriptors of a model's two cast
 * copies, to read, and of a slot of its own, to write. The slot belongs to the call: it ends with the connection at the
 * latest, and the next incarnation gets another one, so that nothing a worker writes later is ever read.
 *
 * Nothing of a slot is read but by pread, once for each block: what a worker does to the file meanwhile can make its
 * own numbers wrong, and no more.
 */
#ifndef AMPD_IO_ATTACH_MEMORY_H
#define AMPD_IO_ATTACH_MEMORY_H

#include "base/list.h"
#include "server/core/core.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_server;
struct io_memory_socket;
struct io_server_call;

struct io_attachments {
    struct amp_list list;            /* struct attachment */
    struct io_memory_socket *socket; /* NULL: nothing is shared */
};

void io_attachments_init(struct io_attachments *attachments);

/*
 * The call that a worker's slot belongs to, and in *fd the slot's descriptor, open as long as the caller has a
 * reference to the call (io_server_call_ref; none is taken here). NULL: this worker has no slot, *fd is as it was. On
 * the loop.
 */
struct io_server_call *io_attached_slot(const struct ampd_server *server, const char *model, uint32_t rank,
                                        struct ampd_incarnation incarnation, int *fd);

/*
 * Reads `size` bytes at `offset` of a slot into memory of the server's own. 0; AMP_EINVAL: the slot ends before that,
 * or cannot be read. Any thread.
 */
int io_slot_read(int fd, void *to, size_t size, uint64_t offset);

/* Bytes of all slots. */
uint64_t io_attachments_bytes(const struct ampd_server *server);

/* Whether this worker has one. */
bool io_attached(const struct ampd_server *server, const char *model, uint32_t rank,
                 struct ampd_incarnation incarnation);

/* The server is ending: so do all of these calls. */
void io_attachments_end(struct ampd_server *server);

/*
 * The descriptors for who comes with that nonce, once, if it is the process that made the call: copies and slot, each
 * still the attachment's. False: nobody is to have them.
 */
bool io_attachment_take(struct ampd_server *server, const uint8_t nonce[16], int64_t pid, int64_t uid, int fds[3]);

#endif
