/*
 * A connection: its life, and its turns. Everything that it does to its link is in conn_pump, at the end of a loop's
 * turn: flush what calls asked for, write (conn_write.c), tell what has left, until nothing is due or the socket is
 * full. What comes is read in conn_read.c.
 */
#include "rpc/io/conn.h"

#include "base/assert.h"
#include "base/err.h"
#include "base/stood_still.h"
#include "rpc/io/conn_parts.h"

#include <limits.h>
#include <string.h>
#include <sys/ioctl.h>

/* Turns of flush and write in one pump, so that one busy connection does not keep the others waiting. */
#define PUMP_ROUNDS 8

/*
 * Of a unix socket. With the system's 208 KiB whoever writes goes to sleep four times in a 1 MiB message, and each time
 * the other side has emptied the buffer before the writer is awake. TCP's buffers grow by themselves, to 4 MiB.
 */
#define UNIX_SEND_BYTES (1 << 20)

static void wake(struct arpc_link *link)
{
    struct arpc_conn *conn = AMP_CONTAINER(link, struct arpc_conn, link);
    arpc_deferred_add(conn->deferred, &conn->item);
}

void arpc_conn_close_uv(struct arpc_conn *conn, int uv_code, const char *what)
{
    struct amp_error error;
    (void)amp_error_set(&error, AMP_EUNAVAILABLE, NULL, "%s: %s", what, uv_strerror(uv_code));
    arpc_conn_close(conn, &error);
}

void arpc_conn_link_failed(struct arpc_conn *conn)
{
    struct amp_error error;
    if (conn->link.error == AMP_EDEADLINE && conn->tls != NULL && !arpc_tls_is_ready(conn->tls))
        (void)amp_error_set(&error, AMP_EDEADLINE, NULL, "the TLS handshake with %s did not end in time",
                            conn->link.peer_info.address);
    else
        (void)amp_error_set(&error, conn->link.error, NULL, "HTTP/2: %s", conn->link.error_text);
    arpc_conn_close(conn, &error);
}

int64_t arpc_conn_acked(const struct arpc_conn *conn)
{
    int left;
    uv_os_fd_t fd;
    if (uv_fileno(&conn->socket.handle, &fd) != 0 || ioctl(fd, TIOCOUTQ, &left) != 0)
        return conn->sent;
    /* Of a piece that libuv has, the socket may have taken a part. */
    size_t part = conn->writing.busy ? conn->writing.left - uv_stream_get_write_queue_size(&conn->socket.stream) : 0;
    return conn->sent + (int64_t)part - left;
}

/* Whether the peer's kernel has taken more bytes than this since the last check, and has not taken all. */
static bool is_taking(struct arpc_conn *conn, int64_t bytes)
{
    int64_t before = conn->acked;
    conn->acked = arpc_conn_acked(conn);
    return conn->acked < conn->sent && conn->acked - before > bytes;
}

/*
 * Whether a piece waits for the socket, and the peer's kernel takes too little of what is before it. That the socket is
 * not writable says less: a third of its buffer has to be free for that, which may be megabytes.
 */
static bool is_stalled(struct arpc_conn *conn)
{
    int64_t stall_ms = conn->link.config->write_stall_ms;
    int64_t now_ms = arpc_conn_now(conn);
    if (!conn->writing.busy || now_ms - conn->writing.progress_ms < stall_ms)
        return false;
    int64_t before = conn->writing.acked;
    conn->writing.acked = arpc_conn_acked(conn);
    conn->writing.progress_ms = now_ms;
    return conn->writing.acked - before < conn->link.watch.limits->write_min_rate * stall_ms / 1000;
}

static void on_timer(uv_timer_t *timer);

static void arm(struct arpc_conn *conn, int64_t wait_ms)
{
    conn->armed_ms = arpc_conn_now(conn) + wait_ms;
    (void)uv_timer_start(&conn->timer, on_timer, (uint64_t)wait_ms, 0); /* cannot fail: it has a callback */
}

static void on_timer(uv_timer_t *timer)
{
    struct arpc_conn *conn = timer->data;
    const struct arpc_limits *limits = conn->link.watch.limits;
    bool stood_still = !conn->stood_still && arpc_conn_now(conn) - conn->armed_ms > AMP_STOOD_STILL_MS;
    conn->armed_ms = INT64_MAX;
    conn->stood_still = stood_still;
    if (stood_still) {
        arm(conn, AMP_STOOD_STILL_MS);
        return;
    }
    /* A connection that is over stays as long as the peer takes what was said as fast as it has to. */
    if (conn->leaving && is_taking(conn, limits->write_min_rate * limits->goodbye_ms / 1000))
        arm(conn, limits->goodbye_ms);
    else if (conn->leaving)
        arpc_conn_close(conn, NULL);
    if (conn->closing || conn->leaving)
        return;
    if (is_taking(conn, 0))
        arpc_link_taken(&conn->link);
    arpc_link_tick(&conn->link);
    if (is_stalled(conn))
        arpc_link_drop(&conn->link, AMP_EUNAVAILABLE, ARPC_ABUSE_STALLED);
    arpc_deferred_add(conn->deferred, &conn->item);
}

static void arm_timer(struct arpc_conn *conn)
{
    int64_t due_ms = conn->link.next_due_ms;
    int64_t stalled_ms =
        conn->writing.busy ? arpc_after(conn->writing.progress_ms, conn->link.config->write_stall_ms) : INT64_MAX;
    if (stalled_ms < due_ms)
        due_ms = stalled_ms;
    /* When it is armed already it fires too early at worst, and is then armed again. */
    if (due_ms < conn->armed_ms && !conn->stood_still)
        arm(conn, due_ms > arpc_conn_now(conn) ? due_ms - arpc_conn_now(conn) : 0);
}

/* Everything is closed, and all calls are told: the owner frees it. */
static void closed(struct arpc_conn *conn)
{
    struct arpc_tls_session *tls = conn->tls;
    if (conn->has_link)
        arpc_link_close(&conn->link);
    arpc_deferred_remove(&conn->item);
    conn->closed_cb(conn);
    arpc_tls_session_free(tls);
}

/* Flushes and writes for up to so long. True if there is more to do. */
static bool pump_for(struct arpc_conn *conn, int64_t most_ns, int64_t begin_ns)
{
    const uint64_t *sent = conn->bytes_sent;
    bool alone = arpc_fair_queue_alone(&conn->deferred->queue, begin_ns);
    bool more = true;
    int64_t now_ns = begin_ns;
    for (int round = 0; more && round < PUMP_ROUNDS && now_ns - begin_ns < most_ns; round++) {
        int64_t from_ns = now_ns;
        uint64_t before = *sent;
        more = arpc_link_flush(&conn->link);
        if (conn->link.error != 0 && !conn->closing)
            arpc_conn_link_failed(conn);
        more = arpc_conn_write(conn, alone ? ARPC_BATCH_BYTES : conn->writing.batch_size) || more;
        now_ns = (int64_t)uv_hrtime();
        arpc_conn_set_write_size(conn, (size_t)(*sent - before), now_ns - from_ns, most_ns);
    }
    return more || arpc_link_has_news(&conn->link);
}

/* An alert or close_notify: it goes if the socket takes it at once. */
static void say_goodbye(struct arpc_conn *conn)
{
    size_t size;
    if (conn->tls == NULL || conn->writing.busy || conn->leaving || conn->writing.failed)
        return;
    arpc_tls_close_notify(conn->tls);
    const uint8_t *data = arpc_tls_output(conn->tls, &size);
    uv_buf_t buf = uv_buf_init((char *)(uintptr_t)data, (unsigned)size);
    int rc = size > 0 ? uv_try_write(&conn->socket.stream, &buf, 1) : 0;
    if (rc > 0)
        arpc_conn_sent(conn, (size_t)rc);
}

static void on_shut(uv_shutdown_t *req, int status)
{
    (void)req;
    (void)status;
}

/*
 * All has been said. A socket that is closed with bytes of the peer unread is reset, and what the kernel had still to
 * send is lost: the end of a long answer, since who reads one sends window updates. So a server closes its own side,
 * and throws away what comes until the client has closed the other, or has had the time for it: goodbye_ms, and again
 * as long as it takes what is left.
 */
static void leave(struct arpc_conn *conn)
{
    const struct arpc_link *link = &conn->link;
    int64_t wait_ms = link->watch.limits->goodbye_ms;
    bool waits = link->config->server && !link->goaway.expelled && wait_ms > 0;
    if (waits)
        say_goodbye(conn);
    if (!waits || uv_shutdown(&conn->shutdown, &conn->socket.stream, on_shut) != 0) {
        arpc_conn_close(conn, NULL);
        return;
    }
    conn->leaving = true;
    conn->reading.direct = false;
    conn->acked = -INT_MAX; /* whatever it has taken by the first check is enough */
    arm(conn, wait_ms);
}

static void conn_pump(struct arpc_deferred_item *item)
{
    struct arpc_conn *conn = AMP_CONTAINER(item, struct arpc_conn, item);
    struct arpc_fair_queue *queue = &conn->deferred->queue;
    int64_t begin_ns = (int64_t)uv_hrtime();
    bool more = conn->has_link && pump_for(conn, arpc_fair_queue_pump_ns(queue, &item->flow), begin_ns);
    if (more)
        arpc_deferred_add(conn->deferred, item);
    if (conn->has_link && !conn->closing && !conn->leaving && !conn->writing.busy && arpc_link_is_over(&conn->link))
        leave(conn);
    if (conn->has_link && !conn->closing && !conn->leaving)
        arm_timer(conn);
    if (conn->has_link && conn->pumped_cb != NULL)
        conn->pumped_cb(conn);
    int64_t end_ns = (int64_t)uv_hrtime();
    arpc_fair_queue_pumped(queue, &item->flow, arpc_deferred_cost(conn->deferred, begin_ns, end_ns), end_ns, more);
    if (conn->handles == 0 && !more)
        closed(conn);
}

void arpc_conn_init(struct arpc_conn *conn, struct arpc_deferred *deferred, bool pipe, void *owner,
                    void (*pumped_cb)(struct arpc_conn *), void (*closed_cb)(struct arpc_conn *))
{
    *conn = (struct arpc_conn){.deferred = deferred,
                               .owner = owner,
                               .armed_ms = INT64_MAX,
                               .reading.size = ARPC_READ_SIZE_FIRST,
                               .reading.slice_ns = ARPC_FAIR_SLICE_NS,
                               .writing.batch_size = ARPC_WRITE_SIZE_FIRST,
                               .handles = 2};
    conn->pumped_cb = pumped_cb;
    conn->closed_cb = closed_cb;
    amp_list_init(&conn->in_owner);
    arpc_deferred_item_init(&conn->item, conn_pump);
    arpc_flow_init(&conn->item.flow, (int64_t)uv_hrtime());
    /* Neither makes a system call yet. */
    if (pipe)
        (void)uv_pipe_init(deferred->loop, &conn->socket.pipe, 0);
    else
        (void)uv_tcp_init(deferred->loop, &conn->socket.tcp);
    (void)uv_timer_init(deferred->loop, &conn->timer);
    conn->socket.handle.data = conn;
    conn->timer.data = conn;
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
    if (arpc_conn_read_start(conn) != 0)
        return AMP_EIO;
    arpc_deferred_add(conn->deferred, &conn->item);
    return 0;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct arpc_conn *conn = handle->data;
    if (--conn->handles > 0)
        return;
    AMP_ASSERT(!conn->writing.busy);
    if (conn->writing.sending != NULL)
        arpc_conn_batch_finished(conn); /* the rest of it never leaves */
    /* Hundreds of calls may have to be told: that is work as any other, and has its turn. */
    arpc_deferred_add(conn->deferred, &conn->item);
}

bool arpc_conn_no_tls(const struct arpc_conn *conn)
{
    bool refused = conn->tls != NULL && !conn->link.peer_info.encrypted;
    return conn->heard && conn->error.code != 0 && (refused || conn->foreign);
}

void arpc_conn_dismiss(struct arpc_conn *conn)
{
    (void)arpc_conn_write(conn, ARPC_WRITE_SIZE_MIN);
    arpc_conn_close(conn, NULL);
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
        arpc_deferred_add(conn->deferred, &conn->item);
    }
    /* What a peer does not read would stay with the kernel for minutes: such a connection is reset. */
    bool unread =
        conn->has_link && (conn->link.abuse == ARPC_ABUSE_STALLED || conn->link.abuse == ARPC_ABUSE_UNREAD_ANSWERS);
    if (!unread || conn->socket.handle.type != UV_TCP || uv_tcp_close_reset(&conn->socket.tcp, on_handle_closed) != 0)
        uv_close(&conn->socket.handle, on_handle_closed);
    uv_close((uv_handle_t *)&conn->timer, on_handle_closed);
}
