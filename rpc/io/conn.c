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

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

/* Turns of flush and write in one pump, so that one busy connection does not keep the others waiting. */
#define PUMP_ROUNDS 8

/* Before this, the read buffer takes no ciphertext: plaintext of records that began in an earlier read goes there. */
#define TLS_SLACK (ARPC_TLS_RECORD_MAX + ARPC_TLS_OVERHEAD_MAX)

/* First bytes that are TLS's: a record with a hello, and one with an alert. HTTP/2 begins with 'P' or 0. */
#define TLS_HELLO 22
#define TLS_ALERT 21

/* A read that is not worth the system call any more, and the first one, before anything is known about the peer. */
#define READ_SIZE_MIN   ((size_t)256)
#define READ_SIZE_FIRST ((size_t)1 << 10)

/* The first write where others wait, and the least later ones may shrink to: a frame, as most peers have them. */
#define WRITE_SIZE_FIRST ((size_t)64 << 10)
#define WRITE_SIZE_MIN   ((size_t)16 << 10)

/* A place that is worth a read of its own: copying less costs no more than a system call. */
#define PLACE_MIN ((size_t)16 << 10)
/* What is read beyond a place in the same call: the heads of the next frame, message and block, and little to copy. */
#define PLACE_BEYOND ((size_t)4 << 10)

/*
 * Of a unix socket. With the system's 208 KiB whoever writes goes to sleep four times in a 1 MiB message, and each time the other
 * side has emptied the buffer before the writer is awake. TCP's buffers grow by themselves, to 4 MiB.
 */
#define UNIX_SEND_BYTES (1 << 20)

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

/*
 * Nothing leaves any more. A server that has closed the connection may have said before what its client has not read yet: why
 * it refuses a handshake, the end of an answer, a GOAWAY. Reading comes to the end of it.
 */
static void cannot_write(struct arpc_conn *conn, int uv_code)
{
    bool gone = uv_code == UV_EPIPE || uv_code == UV_ECONNRESET;
    bool reads = !conn->link.config->server || (conn->tls != NULL && !conn->link.peer_settings);
    if (gone && reads)
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
            cannot_write(conn, rc);
            return conn->closing;
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

/* One batch of about so many bytes, or the rest of one. True if more may follow at once. */
static bool write_some(struct arpc_conn *conn, size_t most)
{
    if (conn->writing || conn->closing || conn->leaving || conn->write_failed)
        return false;
    if (conn->tls != NULL && !arpc_tls_is_ready(conn->tls)) {
        if (write_output(conn))
            arpc_tls_trim(conn->tls);
        return false;
    }
    if (conn->sending == NULL && !next_batch(conn, most))
        return false;
    if (!write_batch(conn))
        return false;
    batch_finished(conn);
    return !conn->closing;
}

/* A connection that is over: whether the peer still takes what was said, as fast as it has to. */
static bool is_taking(struct arpc_conn *conn)
{
    const struct arpc_limits *limits = conn->link.watch.limits;
    int before = conn->left_bytes;
    uv_os_fd_t fd;
    if (uv_fileno(&conn->socket.handle, &fd) != 0 || ioctl(fd, TIOCOUTQ, &conn->left_bytes) != 0)
        return false;
    return conn->left_bytes > 0 && before - conn->left_bytes > limits->write_min_rate * limits->goodbye_ms / 1000;
}

static void on_timer(uv_timer_t *timer)
{
    struct arpc_conn *conn = timer->data;
    conn->armed_ms = INT64_MAX;
    if (conn->leaving && is_taking(conn))
        (void)uv_timer_start(timer, on_timer, (uint64_t)conn->link.watch.limits->goodbye_ms, 0);
    else if (conn->leaving)
        arpc_conn_close(conn, NULL);
    if (conn->closing || conn->leaving)
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

/* Everything is closed, and all calls are told: the owner frees it. */
static void closed(struct arpc_conn *conn)
{
    struct arpc_tls_session *tls = conn->tls;
    if (conn->has_link)
        arpc_link_close(&conn->link);
    arpc_turn_remove(&conn->item);
    conn->closed_cb(conn);
    arpc_tls_session_free(tls);
}

/* Learns from a round of a pump how much may be written at a time. */
static void set_write_size(struct arpc_conn *conn, size_t wrote, int64_t took_ns, int64_t most_ns)
{
    if (took_ns > most_ns && wrote > 0)
        conn->write_size = conn->write_size / 2 > WRITE_SIZE_MIN ? conn->write_size / 2 : WRITE_SIZE_MIN;
    else if (took_ns < most_ns / 4 && wrote >= conn->write_size)
        conn->write_size = conn->write_size * 2 < ARPC_BATCH_BYTES ? conn->write_size * 2 : ARPC_BATCH_BYTES;
}

/* Flushes and writes for up to so long. True if there is more to do. */
static bool pump_for(struct arpc_conn *conn, int64_t most_ns, int64_t begin_ns)
{
    const uint64_t *sent = conn->bytes_sent;
    bool alone = arpc_shares_alone(&conn->turn->shares, begin_ns);
    bool more = true;
    int64_t now_ns = begin_ns;
    for (int round = 0; more && round < PUMP_ROUNDS && now_ns - begin_ns < most_ns; round++) {
        int64_t from_ns = now_ns;
        uint64_t before = *sent;
        more = arpc_link_flush(&conn->link);
        if (conn->link.error != 0 && !conn->closing)
            link_failed(conn);
        more = write_some(conn, alone ? ARPC_BATCH_BYTES : conn->write_size) || more;
        now_ns = (int64_t)uv_hrtime();
        set_write_size(conn, (size_t)(*sent - before), now_ns - from_ns, most_ns);
    }
    return more || arpc_link_has_news(&conn->link);
}

/* An alert or close_notify: it goes if the socket takes it at once. */
static void say_goodbye(struct arpc_conn *conn)
{
    size_t size;
    if (conn->tls == NULL || conn->writing || conn->leaving || conn->write_failed)
        return;
    arpc_tls_close_notify(conn->tls);
    const uint8_t *data = arpc_tls_output(conn->tls, &size);
    uv_buf_t buf = uv_buf_init((char *)(uintptr_t)data, (unsigned)size);
    int rc = size > 0 ? uv_try_write(&conn->socket.stream, &buf, 1) : 0;
    *conn->bytes_sent += rc > 0 ? (uint64_t)rc : 0;
}

static void on_shut(uv_shutdown_t *req, int status)
{
    (void)req;
    (void)status;
}

/*
 * All has been said. A socket that is closed with bytes of the peer unread is reset, and what the kernel had still to send is
 * lost: the end of a long answer, since who reads one sends window updates. So a server closes its own side, and throws away
 * what comes until the client has closed the other, or has had the time for it: goodbye_ms, and again as long as it takes what
 * is left.
 */
static void leave(struct arpc_conn *conn)
{
    const struct arpc_link *link = &conn->link;
    int64_t wait_ms = link->watch.limits->goodbye_ms;
    bool waits = link->config->server && !link->expelled && wait_ms > 0;
    if (waits)
        say_goodbye(conn);
    if (!waits || uv_shutdown(&conn->shutdown, &conn->socket.stream, on_shut) != 0) {
        arpc_conn_close(conn, NULL);
        return;
    }
    conn->leaving = true;
    conn->placing = false;
    conn->left_bytes = INT_MAX;
    (void)uv_timer_start(&conn->timer, on_timer, (uint64_t)wait_ms, 0);
}

static void conn_pump(struct arpc_turn_item *item)
{
    struct arpc_conn *conn = AMP_CONTAINER(item, struct arpc_conn, item);
    struct arpc_shares *shares = &conn->turn->shares;
    int64_t begin_ns = (int64_t)uv_hrtime();
    bool more = conn->has_link && pump_for(conn, arpc_shares_pump_ns(shares, &item->share), begin_ns);
    if (more)
        arpc_turn_add(conn->turn, item);
    if (conn->has_link && !conn->closing && !conn->leaving && !conn->writing && arpc_link_is_over(&conn->link))
        leave(conn);
    if (conn->has_link && !conn->closing && !conn->leaving)
        arm_timer(conn);
    if (conn->has_link && conn->pumped_cb != NULL)
        conn->pumped_cb(conn);
    int64_t end_ns = (int64_t)uv_hrtime();
    arpc_shares_pumped(shares, &item->share, arpc_turn_cost(conn->turn, begin_ns, end_ns), end_ns, more);
    if (conn->handles == 0 && !more)
        closed(conn);
}

/* As much as a slice of this turn is enough for, if what was learnt of its peer still holds. */
static size_t next_read_size(const struct arpc_conn *conn, size_t room)
{
    int64_t slice_ns = arpc_shares_read_ns(&conn->turn->shares, &conn->item.share);
    size_t size = conn->read_size;
    if (slice_ns < conn->read_slice_ns)
        size = (size_t)((double)size * (double)slice_ns / (double)conn->read_slice_ns);
    size = size > READ_SIZE_MIN ? size : READ_SIZE_MIN;
    return size < room ? size : room;
}

/* Where what is received next belongs, if that is known: bytes that nothing is done to but to store them. */
static uint8_t *place_of(struct arpc_conn *conn, size_t *size)
{
    return conn->tls == NULL && !conn->closing && !conn->leaving ? arpc_link_place(&conn->link, size) : NULL;
}

/*
 * Where the next read goes; returns how many slots, 0 if it is enough for this turn. Large messages go straight to their place; the
 * heads between two of them are read with little behind them, so that the next one does, too.
 */
static int plan_read(struct arpc_conn *conn, struct iovec slots[2])
{
    size_t skip = conn->tls != NULL ? TLS_SLACK : 0;
    size_t room = next_read_size(conn, ARPC_READ_SIZE - skip);
    char *buffer = conn->turn->read_buffer + skip;
    size_t fits;
    uint8_t *place = place_of(conn, &fits);
    conn->read_ns = (int64_t)uv_hrtime();
    if (!arpc_shares_may_read(&conn->turn->shares, &conn->item.share, conn->read_ns))
        return 0;
    if (place != NULL && fits >= PLACE_MIN && room >= PLACE_MIN) {
        conn->read_limited = fits < room;
        slots[0] = (struct iovec){place, conn->read_limited ? fits : room};
        slots[1] = (struct iovec){buffer, PLACE_BEYOND};
        return conn->read_limited ? 2 : 1;
    }
    size_t most = place != NULL ? fits + PLACE_BEYOND : conn->placing ? PLACE_BEYOND : room;
    conn->read_limited = most < room;
    slots[0] = (struct iovec){buffer, conn->read_limited ? most : room};
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
        *buf = uv_buf_init(conn->turn->read_buffer, 0);
}

/* Learns from a read of `size` bytes, for which there was this room, how much the next one may take. */
static void set_read_size(struct arpc_conn *conn, size_t size, size_t room, int64_t took_ns)
{
    int64_t slice_ns = arpc_shares_read_ns(&conn->turn->shares, &conn->item.share);
    size_t fits = size;
    if (size < room / 2)
        return; /* it was not the bytes that took the time */
    if (took_ns > slice_ns)
        fits = (size_t)((double)size * (double)slice_ns / (double)took_ns);
    else if (size == room && took_ns < slice_ns / 4)
        fits = size * 4;
    fits = fits < ARPC_READ_SIZE ? fits : ARPC_READ_SIZE;
    conn->read_size = fits > READ_SIZE_MIN ? fits : READ_SIZE_MIN;
    conn->read_slice_ns = slice_ns;
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

/* Takes what came from the first read on, by libuv, or by plan_read. */
static void take_read(struct arpc_conn *conn, const struct iovec *slots, size_t size)
{
    size_t fits;
    const uint8_t *place = place_of(conn, &fits);
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
    else
        take_plaintext(conn, data, part);
    if (size > part)
        take_plaintext(conn, slots[1].iov_base, size - part);
    conn->placing = place == data || place_of(conn, &fits) != NULL;
}

/* Accounts for a read of `size` bytes (0 and below: none), for which there was this room. */
static void read_done(struct arpc_conn *conn, ssize_t size, size_t room)
{
    struct arpc_shares *shares = &conn->turn->shares;
    int64_t now_ns = (int64_t)uv_hrtime();
    int64_t took_ns = arpc_turn_cost(conn->turn, conn->read_ns, now_ns);
    if (size > 0 && (!conn->read_limited || took_ns > arpc_shares_read_ns(shares, &conn->item.share)))
        set_read_size(conn, (size_t)size, room, took_ns);
    bool drained = size < 0 || (size_t)size < room;
    arpc_shares_read(shares, &conn->item.share, took_ns, now_ns, drained);
}

/*
 * Goes on in a large message: the rest of it to its place and what is beyond into the buffer in one system call, which libuv has
 * not. An end of the stream is left to libuv, which meets it again.
 */
static void read_places(struct arpc_conn *conn)
{
    uv_os_fd_t fd;
    struct iovec slots[2];
    int count;
    if (!conn->placing || conn->closing || uv_fileno(&conn->socket.handle, &fd) != 0)
        return;
    while (conn->placing && !conn->closing && (count = plan_read(conn, slots)) > 0) {
        ssize_t got = readv(fd, slots, count);
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            close_uv(conn, -errno, "reading failed");
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
    read_places(conn);
}

void arpc_conn_init(struct arpc_conn *conn, struct arpc_turn *turn, bool pipe, void *owner,
                    void (*pumped_cb)(struct arpc_conn *), void (*closed_cb)(struct arpc_conn *))
{
    *conn = (struct arpc_conn){.turn = turn,
                               .owner = owner,
                               .armed_ms = INT64_MAX,
                               .read_size = READ_SIZE_FIRST,
                               .read_slice_ns = ARPC_SHARE_SLICE_NS,
                               .write_size = WRITE_SIZE_FIRST,
                               .handles = 2};
    conn->pumped_cb = pumped_cb;
    conn->closed_cb = closed_cb;
    amp_list_init(&conn->in_owner);
    arpc_turn_item_init(&conn->item, conn_pump);
    arpc_share_init(&conn->item.share, (int64_t)uv_hrtime());
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
    else
        (void)uv_send_buffer_size(&conn->socket.handle, &(int){UNIX_SEND_BYTES}); /* the same */
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
    /* Hundreds of calls may have to be told: that is work as any other, and has its turn. */
    arpc_turn_add(conn->turn, &conn->item);
}

bool arpc_conn_no_tls(const struct arpc_conn *conn)
{
    bool refused = conn->tls != NULL && !conn->link.peer_info.encrypted;
    return conn->heard && conn->error.code != 0 && (refused || conn->foreign);
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
