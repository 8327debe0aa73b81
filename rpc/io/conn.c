/*
 * Everything that a connection does to its link is in conn_pump, at the end of a loop's turn: flush what calls asked for,
 * write, tell what has left, until nothing is due or the socket is full. One batch is under way at a time.
 *
 * Bodies lie in memory that may be taken back at any time between two turns, so libuv, which keeps pointers, never gets
 * them: uv_try_write writes from the slots of the batch at once or not at all, and when the socket is full a small copied
 * piece goes to uv_write, whose callback says that the socket takes bytes again.
 *
 * With TLS the socket gets the session's output, which is a copy anyway, and no more of a batch is encrypted than that has
 * room for. What is received is decrypted into the front of the buffer that it was read into.
 */
#include "rpc/io/conn.h"

#include "base/assert.h"
#include "base/err.h"

#include <stdlib.h>
#include <string.h>

/* Turns of flush and write in one pump, so that one busy connection does not keep the others waiting. */
#define PUMP_ROUNDS 8

/* Before this, the read buffer takes no ciphertext: plaintext of records that began in an earlier read goes there. */
#define TLS_SLACK (ARPC_TLS_RECORD_MAX + ARPC_TLS_OVERHEAD_MAX)

/* First bytes that are TLS's: a record with a hello, and one with an alert. HTTP/2 begins with 'P' or 0. */
#define TLS_HELLO 22
#define TLS_ALERT 21

/* A read that is not worth the system call any more, and the first one, before anything is known about the peer. */
#define READ_SIZE_MIN ((size_t)64)
/* What is left for each when the turn is spent. */
#define READ_SIZE_SPENT ((size_t)1 << 10)
#define READ_SIZE_FIRST ((size_t)4 << 10)

/* Slots of one write: uv_buf_t is laid out as iovec on Unix (libuv documents it). */
_Static_assert(sizeof(uv_buf_t) == sizeof(struct iovec), "a batch can be given to libuv as it is");

static void wake(struct arpc_link *link)
{
    struct arpc_conn *conn = AMP_CONTAINER(link, struct arpc_conn, link);
    arpc_turn_add(conn->turn, &conn->item);
}

static int64_t now_of(const struct arpc_conn *conn)
{
    return (int64_t)uv_now(conn->turn->loop);
}

static void batch_finished(struct arpc_conn *conn)
{
    arpc_batch_done(&conn->link, &conn->sending->batch);
    free(conn->sending);
    conn->sending = NULL;
    if (conn->tls != NULL)
        arpc_tls_trim(conn->tls);
}

static void close_uv(struct arpc_conn *conn, int uv_code, const char *what)
{
    struct amp_error error;
    (void)amp_error_set(&error, AMP_EUNAVAILABLE, NULL, "%s: %s", what, uv_strerror(uv_code));
    arpc_conn_close(conn, &error);
}

/* Nothing leaves any more. A server that refuses a handshake closes the connection, but has said why before. */
static void cannot_write(struct arpc_conn *conn, int uv_code)
{
    bool gone = uv_code == UV_EPIPE || uv_code == UV_ECONNRESET;
    if (gone && conn->tls != NULL && !conn->link.peer_settings)
        conn->write_failed = true;
    else if (!conn->closing)
        close_uv(conn, uv_code, "writing failed");
}

/* The socket has taken the piece, and the next pump goes on; or nothing leaves any more. */
static void on_written(uv_write_t *req, int status)
{
    struct arpc_conn *conn = req->data;
    conn->writing = false;
    if (status == 0) {
        *conn->bytes_sent += conn->write_left;
        if (conn->tls != NULL)
            arpc_tls_sent(conn->tls, conn->tls_writing);
    } else {
        cannot_write(conn, status);
    }
    conn->tls_writing = 0;
    arpc_turn_add(conn->turn, &conn->item);
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
    conn->write_left = size;
    conn->write_ms = now_of(conn);
    int rc = uv_write(&conn->write, &conn->socket.stream, &buf, 1, on_written);
    if (rc != 0)
        cannot_write(conn, rc);
    conn->writing = rc == 0;
}

/* Gives the output of TLS to the socket. True if all has left. */
static bool write_output(struct arpc_conn *conn)
{
    size_t size;
    const uint8_t *data = arpc_tls_output(conn->tls, &size);
    while (size > 0 && !conn->writing && !conn->write_failed && !conn->closing) {
        uv_buf_t buf = uv_buf_init((char *)(uintptr_t)data, (unsigned)size);
        int rc = uv_try_write(&conn->socket.stream, &buf, 1);
        if (rc == UV_EAGAIN) {
            conn->tls_writing = size;
            hand_over(conn, data, size);
        } else if (rc < 0) {
            cannot_write(conn, rc);
        } else {
            *conn->bytes_sent += (uint64_t)rc;
            arpc_tls_sent(conn->tls, (size_t)rc);
            data = arpc_tls_output(conn->tls, &size);
        }
    }
    return size == 0;
}

/* Encrypts the batch and gives it to the socket, as write_batch does. */
static bool write_batch_tls(struct arpc_conn *conn)
{
    struct arpc_sending *sending = conn->sending;
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
    struct arpc_sending *sending = conn->sending;
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
            close_uv(conn, rc, "writing failed");
            return true;
        }
        *conn->bytes_sent += (uint64_t)rc;
        sending->left -= (size_t)rc;
        sending->at += skip_slots(slots, (size_t)rc);
    }
    return true;
}

static void link_failed(struct arpc_conn *conn)
{
    struct amp_error error;
    if (conn->link.error == AMP_EDEADLINE && conn->tls != NULL && !arpc_tls_is_ready(conn->tls))
        (void)amp_error_set(&error, AMP_EDEADLINE, NULL, "the TLS handshake with %s did not end in time",
                            conn->link.peer_info.address);
    else
        (void)amp_error_set(&error, conn->link.error, NULL, "HTTP/2: %s", conn->link.error_text);
    arpc_conn_close(conn, &error);
}

/* Fills a new batch of about `most` bytes. False if there is nothing to send, or the link has failed. */
static bool next_batch(struct arpc_conn *conn, size_t most)
{
    if (!arpc_link_has_output(&conn->link))
        return false;
    struct arpc_sending *sending = malloc(sizeof *sending);
    if (sending == NULL) {
        arpc_link_fail(&conn->link, AMP_ENOMEM, "no memory to send");
        link_failed(conn);
        return false;
    }
    conn->sending = sending;
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
    batch_finished(conn);
    if (rc != 0)
        link_failed(conn);
    return false;
}

/* One batch, or the rest of one, which is taken off *share. True if more may follow at once. */
static bool write_some(struct arpc_conn *conn, size_t *share)
{
    if (conn->writing || conn->closing || conn->write_failed)
        return false;
    if (conn->tls != NULL && !arpc_tls_is_ready(conn->tls)) {
        if (write_output(conn))
            arpc_tls_trim(conn->tls);
        return false;
    }
    if (conn->sending == NULL && !next_batch(conn, *share))
        return false;
    *share -= conn->sending->left < *share ? conn->sending->left : *share;
    if (!write_batch(conn))
        return false;
    batch_finished(conn);
    return !conn->closing;
}

static void on_timer(uv_timer_t *timer)
{
    struct arpc_conn *conn = timer->data;
    conn->armed_ms = INT64_MAX;
    if (conn->closing)
        return;
    arpc_link_tick(&conn->link);
    /* The whole piece has to leave: byte by byte is no progress. */
    if (conn->writing && now_of(conn) - conn->write_ms >= conn->link.config->write_stall_ms)
        arpc_link_drop(&conn->link, AMP_EUNAVAILABLE, ARPC_ABUSE_STALLED);
    arpc_turn_add(conn->turn, &conn->item);
}

static void arm_timer(struct arpc_conn *conn)
{
    int64_t due_ms = conn->link.next_due_ms;
    int64_t stalled_ms = conn->writing ? arpc_after(conn->write_ms, conn->link.config->write_stall_ms) : INT64_MAX;
    if (stalled_ms < due_ms)
        due_ms = stalled_ms;
    if (due_ms >= conn->armed_ms) /* it fires too early at worst, and is then armed again */
        return;
    conn->armed_ms = due_ms;
    int64_t wait_ms = due_ms > now_of(conn) ? due_ms - now_of(conn) : 0;
    (void)uv_timer_start(&conn->timer, on_timer, (uint64_t)wait_ms, 0);
}

/* Bytes that one connection may write in this turn. */
static size_t write_share(const struct arpc_turn *turn)
{
    return turn->written < ARPC_TURN_WRITE_BYTES ? turn->write_share : ARPC_WRITE_SHARE_BYTES;
}

static void conn_pump(struct arpc_turn_item *item)
{
    struct arpc_conn *conn = AMP_CONTAINER(item, struct arpc_conn, item);
    if (!conn->has_link)
        return;
    bool more = true;
    const size_t all = write_share(conn->turn);
    size_t share = all;
    for (int round = 0; more && share > 0 && round < PUMP_ROUNDS; round++) {
        more = arpc_link_flush(&conn->link);
        if (conn->link.error != 0 && !conn->closing)
            link_failed(conn);
        more = write_some(conn, &share) || more || !amp_list_empty(&conn->link.events);
    }
    if (more)
        arpc_turn_add(conn->turn, &conn->item);
    conn->turn->written += all - share;
    conn->turn->writers += share < all;
    if (!conn->closing && !conn->writing && arpc_link_is_over(&conn->link))
        arpc_conn_close(conn, NULL);
    if (!conn->closing)
        arm_timer(conn);
    if (conn->pumped_cb != NULL)
        conn->pumped_cb(conn);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    (void)suggested;
    struct arpc_conn *conn = handle->data;
    struct arpc_turn *turn = conn->turn;
    if (conn->read_turn != turn->number) {
        conn->read_turn = turn->number;
        conn->read_ns = 0;
        turn->readers++;
    }
    size_t skip = conn->tls != NULL ? TLS_SLACK : 0;
    size_t room = ARPC_READ_SIZE - skip;
    size_t size = conn->read_size < room ? conn->read_size : room;
    if (turn->read_ns >= ARPC_TURN_READ_NS && size > READ_SIZE_SPENT)
        size = READ_SIZE_SPENT;
    /* Without a buffer libuv leaves the socket alone until the next turn. */
    bool enough = conn->read_ns >= (turn->read_ns < ARPC_TURN_READ_NS ? turn->share_ns : ARPC_READ_SHARE_NS);
    *buf = uv_buf_init(turn->read_buffer + skip, enough ? 0 : (unsigned)size);
}

/* The next read takes as much as this one's share would have been enough for. */
static void set_read_size(struct arpc_conn *conn, size_t size, int64_t took_ns)
{
    int64_t share_ns = conn->turn->share_ns;
    conn->read_ns += took_ns;
    conn->turn->read_ns += took_ns;
    if (took_ns > share_ns && size >= conn->read_size / 2) {
        size_t fits = (size_t)((double)size * (double)share_ns / (double)took_ns);
        conn->read_size = fits > READ_SIZE_MIN ? fits : READ_SIZE_MIN;
    } else if (size == conn->read_size && took_ns < share_ns / 4) {
        conn->read_size = conn->read_size * 4 < ARPC_READ_SIZE ? conn->read_size * 4 : ARPC_READ_SIZE;
    }
}

static void take_plaintext(struct arpc_conn *conn, const uint8_t *data, size_t size)
{
    if (size > 0 && !conn->closing && arpc_link_receive(&conn->link, data, size) != 0)
        link_failed(conn);
}

/* Many records at a time: a message that lies in one piece need not be collected. */
static void receive_tls(struct arpc_conn *conn, const uint8_t *data, size_t size)
{
    struct arpc_tls_session *tls = conn->tls;
    uint8_t *plain = (uint8_t *)conn->turn->read_buffer;
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
    arpc_turn_add(conn->turn, &conn->item);
}

/* One side has TLS and the other does not. */
static void refuse_foreign(struct arpc_conn *conn)
{
    struct amp_error error;
    conn->foreign = true;
    if (conn->link.config->server)
        (void)amp_error_set(&error, AMP_EUNAVAILABLE, NULL, "the client %s speaks TLS, which this port is not for",
                            conn->link.peer);
    else
        (void)amp_error_set(&error, AMP_EUNAVAILABLE, NULL, "the server %s speaks TLS: connect with it (cacert)",
                            conn->link.peer);
    arpc_conn_close(conn, &error);
}

static void read_ended(struct arpc_conn *conn, int uv_code)
{
    struct amp_error error;
    if (uv_code != UV_EOF) {
        close_uv(conn, uv_code, "reading failed");
        return;
    }
    if (conn->tls != NULL)
        arpc_tls_ended(conn->tls, &error);
    else
        (void)amp_error_set(&error, AMP_EUNAVAILABLE, NULL, "the peer closed the connection");
    arpc_conn_close(conn, &error);
}

static void on_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buf)
{
    struct arpc_conn *conn = stream->data;
    if (conn->closing || size == 0)
        return;
    if (size == UV_ENOBUFS)
        return; /* on_alloc: it has had its share of this turn */
    if (size < 0) {
        read_ended(conn, (int)size);
        return;
    }
    uint64_t begin_ns = uv_hrtime();
    bool first = !conn->heard;
    conn->heard = true;
    *conn->bytes_received += (uint64_t)size;
    if (conn->tls != NULL)
        receive_tls(conn, (const uint8_t *)buf->base, (size_t)size);
    else if (first && buf->base[0] == (conn->link.config->server ? TLS_HELLO : TLS_ALERT))
        refuse_foreign(conn);
    else
        take_plaintext(conn, (const uint8_t *)buf->base, (size_t)size);
    set_read_size(conn, (size_t)size, (int64_t)(uv_hrtime() - begin_ns));
}

void arpc_conn_init(struct arpc_conn *conn, struct arpc_turn *turn, bool pipe, void *owner,
                    void (*pumped_cb)(struct arpc_conn *), void (*closed_cb)(struct arpc_conn *))
{
    *conn = (struct arpc_conn){
        .turn = turn, .owner = owner, .armed_ms = INT64_MAX, .read_size = READ_SIZE_FIRST, .handles = 2};
    conn->pumped_cb = pumped_cb;
    conn->closed_cb = closed_cb;
    amp_list_init(&conn->in_owner);
    arpc_turn_item_init(&conn->item, conn_pump);
    /* Neither makes a system call yet. */
    if (pipe)
        (void)uv_pipe_init(turn->loop, &conn->socket.pipe, 0);
    else
        (void)uv_tcp_init(turn->loop, &conn->socket.tcp);
    (void)uv_timer_init(turn->loop, &conn->timer);
    conn->socket.handle.data = conn;
    conn->timer.data = conn;
}

int arpc_conn_start(struct arpc_conn *conn, struct arpc_link_config *config, const char *peer)
{
    return arpc_conn_start_tls(conn, config, peer, NULL, NULL);
}

int arpc_conn_start_tls(struct arpc_conn *conn, struct arpc_link_config *config, const char *peer, struct arpc_tls *tls,
                        const char *host)
{
    int rc = arpc_link_init(&conn->link, config, wake, true);
    if (rc != 0)
        return rc;
    conn->has_link = true;
    const char *name = tls != NULL ? tls->server_name : NULL;
    bool brackets = name != NULL && strchr(name, ':') != NULL;
    (void)snprintf(conn->link.peer, sizeof conn->link.peer, brackets ? "[%s]" : "%s", name != NULL ? name : peer);
    if (tls != NULL)
        rc = arpc_tls_session_new(tls, host, peer, &conn->tls);
    if (rc != 0)
        return rc;
    if (conn->socket.handle.type != UV_TCP)
        conn->link.peer_info.transport = ARPC_TRANSPORT_UNIX;
    else
        conn->link.peer_info.transport = tls != NULL ? ARPC_TRANSPORT_TLS : ARPC_TRANSPORT_TCP;
    if (conn->socket.handle.type == UV_TCP)
        (void)uv_tcp_nodelay(&conn->socket.tcp, 1); /* slower without, not wrong */
    if (uv_read_start(&conn->socket.stream, on_alloc, on_read) != 0)
        return AMP_EIO;
    arpc_turn_add(conn->turn, &conn->item);
    return 0;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct arpc_conn *conn = handle->data;
    if (--conn->handles > 0)
        return;
    AMP_ASSERT(!conn->writing);
    if (conn->sending != NULL)
        batch_finished(conn); /* the rest of it never leaves */
    if (conn->has_link) {
        while (arpc_link_flush(&conn->link))
            ;
        arpc_link_close(&conn->link);
    }
    arpc_turn_remove(&conn->item);
    struct arpc_tls_session *tls = conn->tls;
    conn->closed_cb(conn);
    arpc_tls_session_free(tls);
}

bool arpc_conn_no_tls(const struct arpc_conn *conn)
{
    bool refused = conn->tls != NULL && !conn->link.peer_info.encrypted;
    return conn->heard && conn->error.code != 0 && (refused || conn->foreign);
}

/* An alert or close_notify: it goes if the socket takes it at once. */
static void say_goodbye(struct arpc_conn *conn)
{
    size_t size;
    if (conn->tls == NULL || conn->writing || conn->write_failed)
        return;
    arpc_tls_close_notify(conn->tls);
    const uint8_t *data = arpc_tls_output(conn->tls, &size);
    uv_buf_t buf = uv_buf_init((char *)(uintptr_t)data, (unsigned)size);
    int rc = size > 0 ? uv_try_write(&conn->socket.stream, &buf, 1) : 0;
    *conn->bytes_sent += rc > 0 ? (uint64_t)rc : 0;
}

void arpc_conn_close(struct arpc_conn *conn, const struct amp_error *error)
{
    if (conn->closing)
        return;
    conn->closing = true;
    say_goodbye(conn);
    if (error != NULL)
        conn->error = *error;
    if (conn->has_link) {
        arpc_link_fail(&conn->link, AMP_EUNAVAILABLE, "the connection is closed");
        arpc_link_lost(&conn->link, error != NULL ? error->text : "the connection was closed");
        arpc_turn_add(conn->turn, &conn->item);
    }
    /* What a peer does not read would stay with the kernel for minutes: such a connection is reset. */
    bool unread =
        conn->has_link && (conn->link.abuse == ARPC_ABUSE_STALLED || conn->link.abuse == ARPC_ABUSE_UNREAD_ANSWERS);
    if (!unread || conn->socket.handle.type != UV_TCP || uv_tcp_close_reset(&conn->socket.tcp, on_handle_closed) != 0)
        uv_close(&conn->socket.handle, on_handle_closed);
    uv_close((uv_handle_t *)&conn->timer, on_handle_closed);
}
