/*
 * What a connection writes: one batch of its link at a time.
 *
 * Bodies lie in memory that may be taken back at any time between two turns, so libuv, which keeps pointers, never gets
 * them: uv_try_write writes from the slots of the batch at once or not at all, and when the socket is full a small
 * copied piece goes to uv_write, whose callback says that the socket takes bytes again.
 *
 * With TLS the socket gets the session's output, which is a copy anyway, and no more of a batch is encrypted than that
 * has room for.
 */
#include "base/assert.h"
#include "base/err.h"
#include "rpc/io/conn_parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

/* Slots of one write: uv_buf_t is laid out as iovec on Unix (libuv documents it). */
_Static_assert(sizeof(uv_buf_t) == sizeof(struct iovec), "a batch can be given to libuv as it is");

void arpc_conn_batch_finished(struct arpc_conn *conn)
{
    arpc_batch_done(&conn->link, &conn->writing.sending->batch);
    free(conn->writing.sending);
    conn->writing.sending = NULL;
    if (conn->tls != NULL)
        arpc_tls_trim(conn->tls);
}

/*
 * Nothing leaves any more. A server that has closed the connection may have said before what its client has not read
 * yet: why it refuses a handshake, the end of an answer, a GOAWAY. Reading comes to the end of it.
 */
static void cannot_write(struct arpc_conn *conn, int uv_code)
{
    bool gone = uv_code == UV_EPIPE || uv_code == UV_ECONNRESET;
    bool reads = !conn->link.config->server || (conn->tls != NULL && !conn->link.handshake.peer_settings);
    if (gone && reads)
        conn->writing.failed = true;
    else if (!conn->closing)
        arpc_conn_close_uv(conn, uv_code, "writing failed");
}

/* The socket has taken the piece, and the next pump goes on; or nothing leaves any more. */
static void on_written(uv_write_t *req, int status)
{
    struct arpc_conn *conn = req->data;
    conn->writing.busy = false;
    if (status == 0) {
        arpc_conn_sent(conn, conn->writing.left);
        if (conn->tls != NULL)
            arpc_tls_sent(conn->tls, conn->writing.tls_bytes);
    } else {
        cannot_write(conn, status);
    }
    conn->writing.tls_bytes = 0;
    arpc_deferred_add(conn->deferred, &conn->item);
}

/* How many slots are used up by `size` bytes; shortens the one after them. */
static size_t skip_slots(struct iovec *slots, size_t size)
{
    size_t used = 0;
    while (size > 0 && size >= slots[used].iov_len)
        size -= slots[used++].iov_len;
    if (size > 0) {
        slots[used].iov_base = (uint8_t *)slots[used].iov_base + size;
        slots[used].iov_len -= size;
    }
    return used;
}

static const uv_buf_t *uv_slots(const struct iovec *slots)
{
    return (const uv_buf_t *)(const void *)slots;
}

/* Copies the next bytes into the piece. */
static void take_piece(struct arpc_sending *sending)
{
    sending->piece_size = 0;
    while (sending->left > 0 && sending->piece_size < ARPC_PIECE_MAX) {
        struct iovec *slot = &sending->batch.slots[sending->at];
        size_t room = ARPC_PIECE_MAX - sending->piece_size;
        size_t size = slot->iov_len < room ? slot->iov_len : room;
        memcpy(sending->piece + sending->piece_size, slot->iov_base, size);
        sending->piece_size += size;
        sending->left -= size;
        sending->at += skip_slots(slot, size);
    }
}

/* The socket is full: libuv waits with these bytes. */
static void hand_over(struct arpc_conn *conn, const uint8_t *data, size_t size)
{
    uv_buf_t buf = uv_buf_init((char *)(uintptr_t)data, (unsigned)size);
    conn->write.data = conn;
    conn->writing.left = size;
    conn->writing.progress_ms = arpc_conn_now(conn);
    conn->writing.acked = arpc_conn_acked(conn);
    int rc = uv_write(&conn->write, &conn->socket.stream, &buf, 1, on_written);
    if (rc != 0)
        cannot_write(conn, rc);
    conn->writing.busy = rc == 0;
}

/* Gives the output of TLS to the socket. True if all has left. */
static bool write_output(struct arpc_conn *conn)
{
    size_t size;
    const uint8_t *data = arpc_tls_output(conn->tls, &size);
    while (size > 0 && !conn->writing.busy && !conn->writing.failed && !conn->closing) {
        uv_buf_t buf = uv_buf_init((char *)(uintptr_t)data, (unsigned)size);
        int rc = uv_try_write(&conn->socket.stream, &buf, 1);
        if (rc == UV_EAGAIN) {
            conn->writing.tls_bytes = size;
            hand_over(conn, data, size);
        } else if (rc < 0) {
            cannot_write(conn, rc);
        } else {
            arpc_conn_sent(conn, (size_t)rc);
            arpc_tls_sent(conn->tls, (size_t)rc);
            data = arpc_tls_output(conn->tls, &size);
        }
    }
    return size == 0;
}

/* Encrypts the batch and gives it to the socket, as write_batch does. */
static bool write_batch_tls(struct arpc_conn *conn)
{
    struct arpc_sending *sending = conn->writing.sending;
    while (write_output(conn) && sending->left > 0) {
        struct iovec *slots = &sending->batch.slots[sending->at];
        struct amp_error error;
        size_t taken;
        if (arpc_tls_encrypt(conn->tls, slots, sending->batch.count - sending->at, &taken, &error) != 0) {
            arpc_conn_close(conn, &error);
            return true;
        }
        sending->left -= taken;
        sending->at += skip_slots(slots, taken);
    }
    size_t left;
    (void)arpc_tls_output(conn->tls, &left);
    return conn->closing || (left == 0 && sending->left == 0);
}

/* Gives the batch to the socket. True if all has left, or writing failed and the connection is closing. */
static bool write_batch(struct arpc_conn *conn)
{
    if (conn->tls != NULL)
        return write_batch_tls(conn);
    struct arpc_sending *sending = conn->writing.sending;
    while (sending->left > 0) {
        struct iovec *slots = &sending->batch.slots[sending->at];
        unsigned count = (unsigned)(sending->batch.count - sending->at);
        int rc = uv_try_write(&conn->socket.stream, uv_slots(slots), count);
        if (rc == UV_EAGAIN) {
            take_piece(sending);
            hand_over(conn, sending->piece, sending->piece_size);
            return conn->closing;
        }
        if (rc < 0) {
            cannot_write(conn, rc);
            return conn->closing;
        }
        arpc_conn_sent(conn, (size_t)rc);
        sending->left -= (size_t)rc;
        sending->at += skip_slots(slots, (size_t)rc);
    }
    return true;
}

/* Fills a new batch of about `most` bytes. False if there is nothing to send, or the link has failed. */
static bool next_batch(struct arpc_conn *conn, size_t most)
{
    if (!arpc_link_has_output(&conn->link))
        return false;
    struct arpc_sending *sending = malloc(sizeof *sending);
    if (sending == NULL) {
        arpc_link_fail(&conn->link, AMP_ENOMEM, "no memory to send");
        arpc_conn_link_failed(conn);
        return false;
    }
    conn->writing.sending = sending;
    sending->at = 0;
    sending->batch.count = 0;
    sending->batch.bytes = 0;
    sending->batch.pin_count = 0;
    sending->batch.scratch_used = 0;
    sending->batch.most = most;
    int rc = arpc_link_produce(&conn->link, &sending->batch);
    sending->left = sending->batch.bytes;
    if (rc == 0 && sending->left > 0)
        return true;
    arpc_conn_batch_finished(conn);
    if (rc != 0)
        arpc_conn_link_failed(conn);
    return false;
}

bool arpc_conn_write(struct arpc_conn *conn, size_t most)
{
    if (conn->writing.busy || conn->closing || conn->leaving || conn->writing.failed)
        return false;
    if (conn->tls != NULL && !arpc_tls_is_ready(conn->tls)) {
        if (write_output(conn))
            arpc_tls_trim(conn->tls);
        return false;
    }
    if (conn->writing.sending == NULL && !next_batch(conn, most))
        return false;
    if (!write_batch(conn))
        return false;
    arpc_conn_batch_finished(conn);
    return !conn->closing;
}

void arpc_conn_set_write_size(struct arpc_conn *conn, size_t wrote, int64_t took_ns, int64_t most_ns)
{
    if (took_ns > most_ns && wrote > 0)
        conn->writing.batch_size =
            conn->writing.batch_size / 2 > ARPC_WRITE_SIZE_MIN ? conn->writing.batch_size / 2 : ARPC_WRITE_SIZE_MIN;
    else if (took_ns < most_ns / 4 && wrote >= conn->writing.batch_size)
        conn->writing.batch_size =
            conn->writing.batch_size * 2 < ARPC_BATCH_BYTES ? conn->writing.batch_size * 2 : ARPC_BATCH_BYTES;
}
