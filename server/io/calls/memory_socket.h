/*
 * The unix socket from which descriptors of shared memory are fetched: HTTP/2 cannot carry them. A process connects,
 * sends the nonce that AttachMemory has given it, and gets one byte with three descriptors, or the end of the stream.
 * On the loop.
 */
#ifndef AMPD_IO_MEMORY_SOCKET_H
#define AMPD_IO_MEMORY_SOCKET_H

struct ampd_server;
struct io_memory_socket;

/*
 * Listens in the data directory; a line of the log says so if it cannot. Anybody may connect: the nonce and who sends
 * it decide.
 */
void io_memory_socket_open(struct ampd_server *server, const char *directory);
/* NULL or not opened: nothing. */
void io_memory_socket_close(struct ampd_server *server);

const char *io_memory_socket_path(const struct io_memory_socket *socket);

#endif
