/* What conn.c, conn_read.c and conn_write.c share. Internal to these. */
#ifndef ARPC_IO_CONN_PARTS_H
#define ARPC_IO_CONN_PARTS_H

#include "rpc/io/conn.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the first read, before anything is known about the peer. */
#define ARPC_READ_SIZE_FIRST ((size_t)1 << 10)

/* Bytes of the first write while other connections wait, and the least of later ones: a frame of most peers. */
#define ARPC_WRITE_SIZE_FIRST ((size_t)64 << 10)
#define ARPC_WRITE_SIZE_MIN   ((size_t)16 << 10)

static inline int64_t arpc_conn_now(const struct arpc_conn *conn)
{
    return (int64_t)uv_now(conn->deferred->loop);
}

static inline void arpc_conn_sent(struct arpc_conn *conn, size_t size)
{
    conn->sent += (int64_t)size;
    *conn->bytes_sent += size;
}

/* conn.c */
/* Bytes that the peer's kernel has taken of those that were sent; all of them if the system does not say. */
int64_t arpc_conn_acked(const struct arpc_conn *conn);
/* Closes it for a code of libuv; `what` could not be done. */
void arpc_conn_close_uv(struct arpc_conn *conn, int uv_code, const char *what);
/* Closes it for the error of its link. */
void arpc_conn_link_failed(struct arpc_conn *conn);

/* conn_read.c */
/* 0 or AMP_EIO. */
int arpc_conn_read_start(struct arpc_conn *conn);

/* conn_write.c */
/* Writes one batch of about this many bytes, or the rest of one. True if more may follow at once. */
bool arpc_conn_write(struct arpc_conn *conn, size_t most);
/* Adjusts how much is written at a time, from what one write of `wrote` bytes took. */
void arpc_conn_set_write_size(struct arpc_conn *conn, size_t wrote, int64_t took_ns, int64_t most_ns);
/* The batch under way has left, or never will. */
void arpc_conn_batch_finished(struct arpc_conn *conn);

#endif
