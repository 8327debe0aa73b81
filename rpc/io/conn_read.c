/*
 * What a connection reads, as much as the loop's time allows it: into the loop's buffer, or a large message straight
 * into the memory of whoever takes it. With TLS what is received is decrypted into the front of the buffer that it was
 * read into.
 */
#include "base/err.h"
#include "rpc/arpc_client.h"
#include "rpc/io/conn_parts.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

/* Before this, the read buffer takes no ciphertext: plaintext of records that began in an earlier read goes there. */
#define TLS_SLACK (ARPC_TLS_RECORD_MAX + ARPC_TLS_OVERHEAD_MAX)

/* First bytes that are TLS's: a record with a hello, and one with an alert. HTTP/2 begins with 'P' or 0. */
#define TLS_HELLO 22
#define TLS_ALERT 21

/* A read that is not worth the system call any more. */
#define READ_SIZE_MIN ((size_t)256)

/* A buffer that is worth a read of its own: copying less costs no more than a system call. */
#define DIRECT_MIN ((size_t)16 << 10)
/*
 * What is read beyond such a buffer in the same call: the heads of the next frame, message and block, and little to
 * copy.
 */
#define DIRECT_BEYOND ((size_t)4 << 10)

/* As much as a slice of this turn is enough for, if what was learnt of its peer still holds. */
static size_t next_read_size(const struct arpc_conn *conn, size_t room)
{
    int64_t slice_ns = arpc_fair_queue_read_ns(&conn->deferred->queue, &conn->item.flow);
    size_t size = conn->reading.size;
    if (slice_ns < conn->reading.slice_ns)
        size = (size_t)((double)size * (double)slice_ns / (double)conn->reading.slice_ns);
    size = size > READ_SIZE_MIN ? size : READ_SIZE_MIN;
    return size < room ? size : room;
}

/* Where what is received next belongs, if that is known: bytes that nothing is done to but to store them. */
static uint8_t *direct_buffer(struct arpc_conn *conn, size_t *size)
{
    return conn->tls == NULL && !conn->closing && !conn->leaving ? arpc_link_receive_buffer(&conn->link, size) : NULL;
}

/*
 * Where the next read goes; returns how many slots, 0 if it is enough for this turn. Large messages go straight to
 * their memory; the heads between two of them are read with little behind them, so that the next one does, too.
 */
static int plan_read(struct arpc_conn *conn, struct iovec slots[2])
{
    size_t skip = conn->tls != NULL ? TLS_SLACK : 0;
    size_t room = next_read_size(conn, ARPC_READ_SIZE - skip);
    char *buffer = conn->deferred->read_buffer + skip;
    size_t fits;
    uint8_t *direct = direct_buffer(conn, &fits);
    conn->reading.begun_ns = (int64_t)uv_hrtime();
    if (!arpc_fair_queue_may_read(&conn->deferred->queue, &conn->item.flow, conn->reading.begun_ns))
        return 0;
    if (direct != NULL && fits >= DIRECT_MIN && room >= DIRECT_MIN) {
        conn->reading.limited = fits < room;
        slots[0] = (struct iovec){direct, conn->reading.limited ? fits : room};
        slots[1] = (struct iovec){buffer, DIRECT_BEYOND};
        return conn->reading.limited ? 2 : 1;
    }
    size_t most = direct != NULL ? fits + DIRECT_BEYOND : conn->reading.direct ? DIRECT_BEYOND : room;
    conn->reading.limited = most < room;
    slots[0] = (struct iovec){buffer, conn->reading.limited ? most : room};
    return 1;
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    (void)suggested;
    struct arpc_conn *conn = handle->data;
    struct iovec slots[2];
    /* Without a byte of room libuv leaves the socket alone until the next turn. */
    if (plan_read(conn, slots) > 0)
        *buf = uv_buf_init(slots[0].iov_base, (unsigned)slots[0].iov_len);
    else
        *buf = uv_buf_init(conn->deferred->read_buffer, 0);
}

/* Learns from a read of `size` bytes, for which there was this room, how much the next one may take. */
static void set_read_size(struct arpc_conn *conn, size_t size, size_t room, int64_t took_ns)
{
    int64_t slice_ns = arpc_fair_queue_read_ns(&conn->deferred->queue, &conn->item.flow);
    size_t fits = size;
    if (size < room / 2)
        return; /* it was not the bytes that took the time */
    if (took_ns > slice_ns)
        fits = (size_t)((double)size * (double)slice_ns / (double)took_ns);
    else if (size == room && took_ns < slice_ns / 4)
        fits = size * 4;
    fits = fits < ARPC_READ_SIZE ? fits : ARPC_READ_SIZE;
    conn->reading.size = fits > READ_SIZE_MIN ? fits : READ_SIZE_MIN;
    conn->reading.slice_ns = slice_ns;
}

static void take_plaintext(struct arpc_conn *conn, const uint8_t *data, size_t size)
{
    if (size > 0 && !conn->closing && arpc_link_receive(&conn->link, data, size) != 0)
        arpc_conn_link_failed(conn);
}

/* Many records at a time: a message that lies in one piece need not be collected. */
static void receive_tls(struct arpc_conn *conn, const uint8_t *data, size_t size)
{
    struct arpc_tls_session *tls = conn->tls;
    uint8_t *plain = (uint8_t *)conn->deferred->read_buffer;
    struct amp_error error;
    size_t used = 0;
    size_t got;
    int rc;
    arpc_tls_input(tls, data, size);
    do {
        /* What of the ciphertext has been taken may be written over. */
        size_t room = (size_t)(data - plain) + size - arpc_tls_input_left(tls) - used;
        rc = arpc_tls_decrypt(tls, plain + used, room, &got, &error);
        if (arpc_tls_is_ready(tls) && !conn->link.peer_info.encrypted) {
            conn->link.peer_info.encrypted = true;
            arpc_tls_names(tls, &conn->link.peer_info);
        }
        used += got;
        if (rc != 0 || got == 0 || room - got < ARPC_TLS_RECORD_MAX) {
            take_plaintext(conn, plain, used);
            used = 0;
        }
    } while (rc == 0 && got > 0 && !conn->closing);
    arpc_tls_input(tls, NULL, 0); /* the next read goes over it */
    if (rc != 0)
        arpc_conn_close(conn, &error);
    arpc_deferred_add(conn->deferred, &conn->item);
}

/* The server is one of HTTP/1 alone: it answers the first bytes of HTTP/2 as a request that it does not understand. */
static bool is_http1(const struct arpc_conn *conn, const uint8_t *data, size_t size)
{
    static const char version[] = "HTTP/1.";
    size_t length = strlen(version);
    return !conn->link.config->server && size >= length && memcmp(data, version, length) == 0;
}

static void refuse_http1(struct arpc_conn *conn)
{
    struct amp_error error;
    (void)amp_error_set(&error, AMP_EUNAVAILABLE, NULL, "the server %s " ARPC_SPEAKS_HTTP1, conn->link.peer);
    arpc_conn_close(conn, &error);
}

/* One side has TLS and the other does not. */
static void refuse_foreign(struct arpc_conn *conn)
{
    struct amp_error error;
    conn->foreign = true;
    if (conn->link.config->server)
        (void)amp_error_set(&error, AMP_EUNAVAILABLE, NULL, "the client %s uses TLS, and this port does not",
                            conn->link.peer);
    else
        (void)amp_error_set(&error, AMP_EUNAVAILABLE, NULL, "the server %s " ARPC_USES_TLS " (cacert)",
                            conn->link.peer);
    arpc_conn_close(conn, &error);
}

static void read_ended(struct arpc_conn *conn, int uv_code)
{
    struct amp_error error;
    if (uv_code != UV_EOF) {
        arpc_conn_close_uv(conn, uv_code, "reading failed");
        return;
    }
    bool began = conn->link.config->server || conn->link.handshake.peer_settings;
    if (conn->tls != NULL)
        arpc_tls_ended(conn->tls, &error);
    else
        (void)amp_error_set(&error, AMP_EUNAVAILABLE, NULL, "the peer closed the connection");
    arpc_conn_close(conn, conn->tls != NULL || began ? &error : NULL); /* NULL: connect.c says what may be there */
}

/* Takes what came from the first read on, by libuv, or by plan_read. */
static void take_read(struct arpc_conn *conn, const struct iovec *slots, size_t size)
{
    size_t fits;
    const uint8_t *direct = direct_buffer(conn, &fits);
    bool first = !conn->heard;
    const uint8_t *data = slots[0].iov_base;
    size_t part = size < slots[0].iov_len ? size : slots[0].iov_len;
    conn->heard = true;
    *conn->bytes_received += (uint64_t)size;
    if (conn->leaving)
        return;
    if (conn->tls != NULL)
        receive_tls(conn, data, size);
    else if (first && data[0] == (conn->link.config->server ? TLS_HELLO : TLS_ALERT))
        refuse_foreign(conn);
    else if (first && is_http1(conn, data, part))
        refuse_http1(conn);
    else
        take_plaintext(conn, data, part);
    if (size > part)
        take_plaintext(conn, slots[1].iov_base, size - part);
    conn->reading.direct = direct == data || direct_buffer(conn, &fits) != NULL;
}

/* Accounts for a read of `size` bytes (0 and below: none), for which there was this room. */
static void read_done(struct arpc_conn *conn, ssize_t size, size_t room)
{
    struct arpc_fair_queue *queue = &conn->deferred->queue;
    int64_t now_ns = (int64_t)uv_hrtime();
    int64_t took_ns = arpc_deferred_cost(conn->deferred, conn->reading.begun_ns, now_ns);
    if (size > 0 && (!conn->reading.limited || took_ns > arpc_fair_queue_read_ns(queue, &conn->item.flow)))
        set_read_size(conn, (size_t)size, room, took_ns);
    bool drained = size < 0 || (size_t)size < room;
    arpc_fair_queue_read(queue, &conn->item.flow, took_ns, now_ns, drained);
}

/*
 * Goes on in a large message: the rest of it to its memory and what is beyond into the buffer in one system call, which
 * libuv has not. An end of the stream is left to libuv, which meets it again.
 */
static void read_direct(struct arpc_conn *conn)
{
    uv_os_fd_t fd;
    struct iovec slots[2];
    int count;
    if (!conn->reading.direct || conn->closing || uv_fileno(&conn->socket.handle, &fd) != 0)
        return;
    while (conn->reading.direct && !conn->closing && (count = plan_read(conn, slots)) > 0) {
        ssize_t got = readv(fd, slots, count);
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            arpc_conn_close_uv(conn, -errno, "reading failed");
        if (got > 0)
            take_read(conn, slots, (size_t)got);
        read_done(conn, got, slots[0].iov_len + (count > 1 ? slots[1].iov_len : 0));
        if (got <= 0)
            return;
    }
}

static void on_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buf)
{
    struct arpc_conn *conn = stream->data;
    if (conn->closing || size == 0)
        return;
    if (size == UV_ENOBUFS)
        return; /* on_alloc: others come first */
    if (size > 0)
        take_read(conn, &(struct iovec){buf->base, (size_t)size}, (size_t)size);
    else if (conn->leaving)
        arpc_conn_close(conn, NULL);
    else
        read_ended(conn, (int)size);
    read_done(conn, size, buf->len);
    read_direct(conn);
}

int arpc_conn_read_start(struct arpc_conn *conn)
{
    return uv_read_start(&conn->socket.stream, on_alloc, on_read) == 0 ? 0 : AMP_EIO;
}
