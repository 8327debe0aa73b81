/*
 * The unix socket `memory.sock`, from which workers fetch the descriptors of shared memory, since HTTP/2 cannot carry
 * them. A process connects and sends the nonce that AttachMemory gave it. It gets one byte with three descriptors
 * (SCM_RIGHTS), or, if the nonce is not its own, the end of the stream. All functions are called on the loop.
 */
#ifndef AMPD_IO_MEMORY_SOCKET_H
#define AMPD_IO_MEMORY_SOCKET_H

struct ampd_server;
struct io_memory_socket;

/*
 * Listens in the given directory, unless shared memory is switched off. If that fails, the log has a line about it, and
 * server->attachments->socket stays NULL. Any local user can connect: whether a caller gets descriptors depends on its
 * nonce and its process alone (io_attachment_take).
 */
void io_memory_socket_open(struct ampd_server *server, const char *directory);
/* Closes the socket, if it is open; the loop must run until its handles are closed. */
void io_memory_socket_close(struct ampd_server *server);

/* The path of the socket, which AttachMemory answers with; valid until the socket is closed. */
const char *io_memory_socket_path(const struct io_memory_socket *socket);

#endif
