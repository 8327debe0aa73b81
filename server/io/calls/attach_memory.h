/*
 * Memory that is shared with workers of this host (AttachMemory). A worker gets three file descriptors: those of its
 * model's two cast copies, to read, and that of a slot of its own, to write gradients into. A slot belongs to one
 * AttachMemory call: it ends with the call, and the worker's next incarnation gets another slot, so that nothing which
 * a worker writes into an old one is ever read.
 *
 * The server reads a slot through a mapping, each element once (ampd_take_block), into memory of its own: a worker that
 * changes it meanwhile can spoil its own gradient, and nothing else. The size is sealed from the start, and the pages
 * by the worker once it has mapped them; a slot that is not so is not read (amp_shared_keeps_pages). So reading never
 * faults.
 *
 * All functions are called on the loop.
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

/* All attachments of the server. */
struct io_attachments {
    struct amp_list list;            /* struct attachment, the newest first */
    struct io_memory_socket *socket; /* NULL: this server shares no memory */
};

void io_attachments_init(struct io_attachments *attachments);

/* A slot as the server has mapped it. The worker may write to it at any time. */
struct io_slot {
    const uint8_t *memory;
    uint64_t size; /* bytes */
};

/*
 * Finds the newest open AttachMemory call of this worker, and fills *slot. A worker that has taken pages out of its
 * slot, or has not sealed it against that, has its call ended. The memory stays mapped as long as somebody has a
 * reference to the call; this function takes none (io_server_call_ref does). NULL: the worker has no slot, and *slot is
 * unchanged.
 */
struct io_server_call *io_attached_slot(const struct ampd_server *server, const char *model, uint32_t rank,
                                        struct ampd_incarnation incarnation, struct io_slot *slot);

/* How many bytes the slots of all attachments have together. */
uint64_t io_attachments_bytes(const struct ampd_server *server);

/*
 * Whether this worker has an open AttachMemory call, and the model still has the copies that it was given; a call whose
 * copies the model has left to the workers (server/core/shard/memory.c) is ended.
 */
bool io_attached(const struct ampd_server *server, const char *model, uint32_t rank,
                 struct ampd_incarnation incarnation);

/* Ends all AttachMemory calls with UNAVAILABLE (DRAINING), since the server is ending. */
void io_attachments_end(struct ampd_server *server);

/* Whether this process of this user has made a call whose descriptors have not been given. */
bool io_attachment_awaits(const struct ampd_server *server, int64_t pid, int64_t uid);

/*
 * For a process that has sent a nonce to the memory socket: fills fds with the descriptors of copy 0, copy 1 and the
 * slot, which all remain the server's. An attachment's descriptors are given once, and only if the process and its user
 * are those that made the AttachMemory call. False: they must not be sent, whatever fds holds.
 */
bool io_attachment_take(struct ampd_server *server, const uint8_t nonce[16], int64_t pid, int64_t uid, int fds[3]);

#endif
