/*
 * libmicrohttpd on the loop: the loop polls its epoll descriptor, and MHD_run does what is due. After each run nothing
 * of HTTP is done for nine times the processor time that the run took (pay), which the loop has for its other work.
 *
 * libmicrohttpd can end a connection that has been silent for long, but not one that sends a few bytes now and then. So
 * the connections are in a list in the order in which their requests began, and those at its front are shut down when
 * that was too long ago (sweep). libmicrohttpd then finds them closed, as if the client had closed them.
 *
 * Where the page (server/io/page) reads the store, its answer comes later, and the connection is suspended until then.
 * A connection with an event stream is suspended while there are no events. It may last for long, so it is not in the
 * list of connections, and the page bounds it.
 */
#include "server/io/http/http.h"

#include "base/assert.h"
#include "base/list.h"
#include "rpc/io/address.h"
#include "server/io/base/clock.h"
#include "server/io/base/server.h"
#include "server/io/http/http_pages.h"
#include "server/io/http/metrics.h"
#include "server/io/page/page.h"

#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Most connections that are counted: some Prometheus servers, probes and browsers. */
#define HTTP_CONNECTIONS_MAX 32
/* Further connections for libmicrohttpd, which were shut down here and not yet closed there. Then none is accepted. */
#define HTTP_CONNECTIONS_LEAVING 32
/* Longest time of a request; a scrape of Prometheus times out after 10 s, too. */
#define HTTP_REQUEST_MS 10000
/* Memory of a connection for the request line and the headers; a longer request is answered with 431 or 414. */
#define HTTP_CONNECTION_BYTES ((size_t)8 << 10)
/* Bounds of a URL, above which the answer is 414. A name of 127 escaped characters and three numbers fit well. */
#define HTTP_URI_MAX       4096
#define HTTP_ARGUMENTS_MAX 16
/* How long a text of metrics is given again. Prometheus asks every few seconds. */
#define HTTP_FRESH_MS 100
/* Most texts of metrics in memory: the newest, and older ones that slow clients have not read to the end. */
#define HTTP_TEXTS_MAX 4
/* HTTP takes at most 1 / HTTP_SHARE of the loop's time. */
#define HTTP_SHARE 10
#define BACKLOG    64
/* Send buffer of the socket of an event stream. If a client does not read, and it fills up, libmicrohttpd ends it. */
#define HTTP_STREAM_SEND_BYTES (32 << 10)
/* Most bytes of an event stream that are taken from the page at a time. */
#define HTTP_STREAM_PIECE ((size_t)4 << 10)

/* A connection. */
struct connection {
    struct amp_list node; /* in io_http.connections, in the order of since_ms; a stream's is in no list */
    uint64_t since_ms;    /* when it was accepted, or its last answer was sent; the loop's clock */
    int fd;               /* libmicrohttpd's socket */
    bool refused;         /* on_uri has answered the request on the socket; libmicrohttpd must not answer it */
    bool idle;            /* its last request was answered, and no other has come */
};

struct io_http {
    struct ampd_server *server;
    struct MHD_Daemon *daemon;
    uv_poll_t poll;
    uv_timer_t timer;
    bool has_handles;
    bool running; /* run() is being executed */
    char endpoint[300];
    struct amp_list connections; /* connections, the oldest first, without streams and those that were shut down */
    unsigned connections_count;
    uint64_t paid_until_us;       /* when the loop's other work has had its time for all runs so far */
    struct MHD_Response *metrics; /* the newest text of metrics, or NULL */
    uint64_t metrics_ms;          /* when it was made; the loop's clock */
    unsigned texts;               /* texts of metrics that are not freed yet */
    uint64_t requests, refused, dropped;
    struct io_page *page;
    struct amp_list asks; /* struct ask: requests of the page under way */
};

/* A request to the page that is under way. */
struct ask {
    struct amp_list node;
    struct io_http *http;
    struct MHD_Connection *connection;
    struct io_page_ask *page_ask;
    bool suspended;
};

/* ---- connections ---- */

/* Ends a connection: libmicrohttpd sees that it is closed, and then calls connection_ends. */
static void shut_down(struct io_http *http, struct connection *conn)
{
    amp_list_remove(&conn->node);
    http->connections_count--;
    http->dropped += conn->idle ? 0 : 1; /* a client of idle ones, as Prometheus is, misses nothing */
    (void)shutdown(conn->fd, SHUT_RDWR); /* it may be closed from the other side already */
}

static struct connection *oldest(struct io_http *http)
{
    return amp_list_empty(&http->connections) ? NULL : AMP_CONTAINER(http->connections.next, struct connection, node);
}

static void connection_begins(struct io_http *http, struct MHD_Connection *connection, void **context)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct connection *conn = info != NULL ? malloc(sizeof *conn) : NULL;
    *context = conn;
    if (info != NULL && conn == NULL)
        (void)shutdown(info->connect_fd, SHUT_RDWR); /* out of memory: the connection would have no bound in time */
    if (conn == NULL)
        return;
    *conn = (struct connection){.since_ms = uv_now(&http->server->loop), .fd = info->connect_fd};
    amp_list_push(&http->connections, &conn->node);
    http->connections_count++;
    if (http->connections_count > HTTP_CONNECTIONS_MAX)
        shut_down(http, oldest(http));
}

static void connection_ends(struct io_http *http, struct connection *conn)
{
    if (conn != NULL && !amp_list_empty(&conn->node)) {
        amp_list_remove(&conn->node);
        http->connections_count--;
    }
    free(conn);
}

static void on_connection(void *arg, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        connection_begins(arg, connection, context);
    else
        connection_ends(arg, *context);
}

static struct connection *connection_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info != NULL ? info->socket_context : NULL;
}

static void end_ask(struct ask *ask)
{
    amp_list_remove(&ask->node);
    io_page_end(ask->page_ask);
    free(ask);
}

/* An answer has been sent, or never will be: the time of the next request begins. */
static void on_completed(void *arg, struct MHD_Connection *connection, void **request,
                         enum MHD_RequestTerminationCode why)
{
    struct io_http *http = arg;
    struct connection *conn = connection_of(connection);
    if (*request != NULL && *request != http)
        end_ask(*request);
    *request = NULL;
    if (conn == NULL || amp_list_empty(&conn->node))
        return;
    amp_list_remove(&conn->node);
    conn->since_ms = uv_now(&http->server->loop);
    conn->idle = true;
    amp_list_push(&http->connections, &conn->node);
}

static void sweep(struct io_http *http)
{
    uint64_t now_ms = uv_now(&http->server->loop);
    for (struct connection *conn; (conn = oldest(http)) != NULL && now_ms - conn->since_ms >= HTTP_REQUEST_MS;)
        shut_down(http, conn);
}

/* ---- answers ---- */

/* A text of metrics, which the responses share that libmicrohttpd makes of it. */
struct shared_text {
    struct io_http *http;
    struct amp_metric_text text;
};

static void free_shared(void *arg)
{
    struct shared_text *shared = arg;
    shared->http->texts--;
    amp_metric_close(&shared->text);
    free(shared);
}

static void add_header(struct MHD_Response *response, const char *name, const char *value)
{
    (void)MHD_add_response_header(response, name, value); /* without memory for it the answer goes without */
}

static struct MHD_Response *with_headers(struct MHD_Response *response, const char *type)
{
    if (response != NULL) {
        add_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
        add_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
        add_header(response, "X-Content-Type-Options", "nosniff");
    }
    return response;
}

/*
 * A response with the metrics of now, or of less than HTTP_FRESH_MS ago; while slow clients read all the texts that may
 * be, which HTTP_REQUEST_MS ends, the newest of these. NULL: out of memory.
 */
static struct MHD_Response *metrics_response(struct io_http *http)
{
    uint64_t now_ms = uv_now(&http->server->loop);
    if (http->metrics != NULL && (now_ms - http->metrics_ms < HTTP_FRESH_MS || http->texts == HTTP_TEXTS_MAX))
        return http->metrics;
    if (http->metrics != NULL)
        MHD_destroy_response(http->metrics);
    http->metrics = NULL;
    struct shared_text *shared = calloc(1, sizeof *shared);
    if (shared == NULL)
        return NULL;
    shared->http = http;
    http->texts++;
    struct io_http_page page = {0};
    amp_metric_init(&page.text, IO_METRICS_BYTES_MAX);
    int rc = io_http_show(http->server, IO_HTTP_METRICS, (struct io_http_query){0}, &page);
    shared->text = page.text;
    if (rc == 0)
        http->metrics = MHD_create_response_from_buffer_with_free_callback_cls(page.text.buf.size, page.text.buf.data,
                                                                               free_shared, shared);
    if (http->metrics == NULL)
        free_shared(shared);
    http->metrics_ms = now_ms;
    return with_headers(http->metrics, page.type);
}

static enum MHD_Result queue(struct MHD_Connection *connection, unsigned status, struct MHD_Response *response)
{
    enum MHD_Result result = response != NULL ? MHD_queue_response(connection, status, response) : MHD_NO;
    if (response != NULL)
        MHD_destroy_response(response); /* the connection has its own reference */
    return result;
}

static enum MHD_Result answer_text(struct MHD_Connection *connection, unsigned status, const char *type,
                                   const char *text, size_t size)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(size, (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
    return queue(connection, status, with_headers(response, type));
}

static enum MHD_Result answer_metrics(struct io_http *http, struct MHD_Connection *connection)
{
    static const char busy[] = "no memory for the metrics: ask again later\n";
    struct MHD_Response *response = metrics_response(http);
    if (response != NULL)
        return MHD_queue_response(connection, IO_HTTP_OK, response);
    http->refused++;
    return answer_text(connection, IO_HTTP_UNAVAILABLE, "text/plain; charset=utf-8", busy, sizeof busy - 1);
}

static bool asks(struct MHD_Connection *connection, const char *name)
{
    return MHD_lookup_connection_value_n(connection, MHD_GET_ARGUMENT_KIND, name, strlen(name), NULL, NULL) == MHD_YES;
}

static enum MHD_Result answer_page(struct io_http *http, struct MHD_Connection *connection, const char *path)
{
    struct io_http_page page = {0};
    struct io_http_query query = {.verbose = asks(connection, "verbose"), .standby_ok = asks(connection, "standbyok")};
    amp_metric_init(&page.text, IO_METRICS_BYTES_MAX);
    int rc = io_http_show(http->server, path, query, &page);
    enum MHD_Result result = rc != 0 ? MHD_NO
                                     : answer_text(connection, (unsigned)page.status, page.type,
                                                   (const char *)page.text.buf.data, page.text.buf.size);
    amp_metric_close(&page.text);
    return result;
}

static enum MHD_Result refuse_method(struct io_http *http, struct MHD_Connection *connection)
{
    static const char text[] = "only GET and HEAD are possible\n";
    struct MHD_Response *response =
        MHD_create_response_from_buffer(sizeof text - 1, (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT);
    http->refused++;
    if (response != NULL) {
        add_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
        add_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    }
    return queue(connection, MHD_HTTP_METHOD_NOT_ALLOWED, response);
}

/* ---- the page ---- */

static void run_soon(struct io_http *http);

/*
 * The page's ready_cb: resumes the connection of the request. It is never called within a callback of libmicrohttpd,
 * which notices a resumed connection at its next run alone, without a wake-up by its descriptor.
 */
static void on_page_ready(void *arg)
{
    struct ask *ask = arg;
    if (!ask->suspended)
        return;
    ask->suspended = false;
    MHD_resume_connection(ask->connection);
    run_soon(ask->http);
}

static void suspend(struct ask *ask)
{
    ask->suspended = true;
    MHD_suspend_connection(ask->connection);
}

static const char *argument_of(void *arg, const char *name)
{
    return MHD_lookup_connection_value(arg, MHD_GET_ARGUMENT_KIND, name);
}

static const char *header_of(struct MHD_Connection *connection, const char *name)
{
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

static enum MHD_Result count_authorization(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
    *(unsigned *)arg += strcasecmp(name, MHD_HTTP_HEADER_AUTHORIZATION) == 0;
    return MHD_YES;
}

/* The header Authorization. One that is given twice becomes a text that is no valid token; gRPC refuses it, too. */
static const char *authorization_of(struct MHD_Connection *connection)
{
    unsigned count = 0;
    (void)MHD_get_connection_values(connection, MHD_HEADER_KIND, count_authorization, &count); /* returns a count */
    return count > 1 ? "twice" : header_of(connection, MHD_HTTP_HEADER_AUTHORIZATION);
}

/* Writes the address of this end of a connection; without one the text stays. */
static void write_local(struct MHD_Connection *connection, char *text, int size)
{
    const struct connection *conn = connection_of(connection);
    struct sockaddr_storage bound;
    socklen_t bound_size = sizeof bound;
    if (conn != NULL && getsockname(conn->fd, (struct sockaddr *)&bound, &bound_size) == 0)
        arpc_address_write((const struct sockaddr *)&bound, text, size, NULL);
}

/* Begins a request to the page. NULL: out of memory. */
static struct ask *begin_ask(struct io_http *http, struct MHD_Connection *connection, const char *path)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    char peer[64] = "", local[64] = "HOST:PORT";
    struct ask *ask = calloc(1, sizeof *ask);
    if (ask == NULL)
        return NULL;
    if (info != NULL)
        arpc_address_write(info->client_addr, peer, sizeof peer, NULL);
    write_local(connection, local, sizeof local);
    *ask = (struct ask){.http = http, .connection = connection};
    const struct io_page_request request = {.path = path,
                                            .host = header_of(connection, MHD_HTTP_HEADER_HOST),
                                            .authorization = authorization_of(connection),
                                            .site = header_of(connection, "Sec-Fetch-Site"),
                                            .peer = peer,
                                            .local = local,
                                            .arg = connection,
                                            .argument_cb = argument_of};
    ask->page_ask = io_page_begin(http->page, &request, on_page_ready, ask);
    if (ask->page_ask == NULL) {
        free(ask);
        return NULL;
    }
    amp_list_push(&http->asks, &ask->node);
    return ask;
}

static struct MHD_Response *with_page_headers(struct MHD_Response *response, const char *type, const char *cache)
{
    if (response == NULL)
        return NULL;
    add_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    add_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, cache);
    for (size_t i = 0; io_page_headers[i] != NULL; i += 2)
        add_header(response, io_page_headers[i], io_page_headers[i + 1]);
    return response;
}

static enum MHD_Result answer_ask(struct MHD_Connection *connection, const struct io_page_answer *answer)
{
    void *data = (void *)(uintptr_t)answer->data;
    struct MHD_Response *response =
        answer->hold == NULL
            ? MHD_create_response_from_buffer(answer->size, data,
                                              answer->copy ? MHD_RESPMEM_MUST_COPY : MHD_RESPMEM_PERSISTENT)
            : MHD_create_response_from_buffer_with_free_callback_cls(answer->size, data, io_page_release, answer->hold);
    if (response == NULL && answer->hold != NULL)
        io_page_release(answer->hold);
    if (response != NULL && answer->status == MHD_HTTP_UNAUTHORIZED)
        add_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (response != NULL && answer->status == MHD_HTTP_SERVICE_UNAVAILABLE)
        add_header(response, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    return queue(connection, answer->status, with_page_headers(response, answer->type, answer->cache));
}

/* Called by libmicrohttpd when it has room for more of a stream. */
static ssize_t read_stream(void *arg, uint64_t offset, char *bytes, size_t max)
{
    struct ask *ask = arg;
    ptrdiff_t size = io_page_stream_read(ask->page_ask, bytes, max);
    if (size < 0)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (size == 0)
        suspend(ask);
    return size;
}

static enum MHD_Result begin_stream(struct ask *ask)
{
    struct connection *conn = connection_of(ask->connection);
    int bytes = HTTP_STREAM_SEND_BYTES;
    if (conn == NULL)
        return MHD_NO;
    (void)setsockopt(conn->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes); /* else the system's size holds */
    if (!amp_list_empty(&conn->node)) {
        amp_list_remove(&conn->node); /* a stream may last longer than a request */
        ask->http->connections_count--;
    }
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, HTTP_STREAM_PIECE, read_stream, ask, NULL);
    if (response != NULL) {
        /* The next request comes by a new connection, which is in the list again. */
        add_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
        add_header(response, "X-Accel-Buffering", "no"); /* nginx would wait for 4 KiB before it hands on any */
    }
    return queue(ask->connection, IO_HTTP_OK, with_page_headers(response, "text/event-stream", "no-store"));
}

static enum MHD_Result answer_page_of(struct ask *ask)
{
    struct io_page_answer answer;
    switch (io_page_take(ask->page_ask, &answer)) {
    case IO_PAGE_READY:
        return answer_ask(ask->connection, &answer);
    case IO_PAGE_STREAMS:
        return begin_stream(ask);
    default:
        suspend(ask); /* this is called again once it is resumed */
        return MHD_YES;
    }
}

/* ---- requests ---- */

/*
 * Called by libmicrohttpd when it has the request line, before it splits the arguments. It keeps each argument in the
 * connection's memory; if that is full, it has no memory for an answer either, and sends none. So a request with too
 * much is answered here, straight on the socket, where nothing else is being sent: the answer before has been sent.
 */
static void *on_uri(void *arg, const char *uri, struct MHD_Connection *connection)
{
    static const char text[] =
        "HTTP/1.1 414 URI Too Long\r\nContent-Type: application/json; charset=utf-8\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n"
        "\r\n{\"error\":\"the URL is too long, or has too many arguments\",\"reason\":\"URI_TOO_LONG\"}\n";
    struct io_http *http = arg;
    struct connection *conn = connection_of(connection);
    unsigned arguments = 0;
    for (const char *at = strchr(uri, '?'); at != NULL; at = strchr(at + 1, '&'))
        arguments++;
    if (conn != NULL)
        conn->idle = false;
    if (conn == NULL || (strlen(uri) <= HTTP_URI_MAX && arguments <= HTTP_ARGUMENTS_MAX))
        return NULL;
    conn->refused = true;
    http->refused++;
    /* The socket has room for it, or the client has gone. */
    (void)send(conn->fd, text, sizeof text - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)shutdown(conn->fd, SHUT_WR);
    return NULL;
}

/* Called by libmicrohttpd with the head of a request, each piece of its body, and at its end. A body is discarded. */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *path, const char *method,
                                  const char *version, const char *upload, size_t *upload_size, void **request)
{
    struct io_http *http = arg;
    if (*request == NULL) {
        const struct connection *conn = connection_of(connection);
        if (conn != NULL && conn->refused)
            return MHD_NO;
        *request = http;
        http->requests++;
        if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
            return refuse_method(http, connection);
        return MHD_YES;
    }
    if (*upload_size > 0) {
        *upload_size = 0;
        return MHD_YES;
    }
    if (*request == http && io_page_has(path)) {
        struct ask *ask = begin_ask(http, connection, path);
        if (ask == NULL)
            return MHD_NO;
        *request = ask;
    }
    if (*request != http)
        return answer_page_of(*request);
    return strcmp(path, IO_HTTP_METRICS) == 0 ? answer_metrics(http, connection) : answer_page(http, connection, path);
}

/* ---- the loop ---- */

static void run(struct io_http *http);

static void on_timer(uv_timer_t *timer)
{
    run(timer->data);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    run(poll->data);
}

/* Processor time of this thread, so that a run does not count as longer because other threads interrupted it. */
static uint64_t worked_us(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now); /* cannot fail for this clock */
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* For how many milliseconds nothing of HTTP may run, after a run that took took_us of the processor. */
static uint64_t pay(struct io_http *http, uint64_t took_us)
{
    uint64_t now_us = io_clock_now_us();
    if (http->paid_until_us < now_us)
        http->paid_until_us = now_us;
    http->paid_until_us += took_us * (HTTP_SHARE - 1);
    return (http->paid_until_us - now_us) / 1000;
}

/* Has run() called as soon as the time for the runs so far is over. Within a run, that one arms the timer itself. */
static void run_soon(struct io_http *http)
{
    uint64_t now_us = io_clock_now_us();
    uint64_t wait_ms = http->paid_until_us > now_us ? (http->paid_until_us - now_us) / 1000 : 0;
    if (!http->running && !uv_is_closing((uv_handle_t *)&http->timer))
        (void)uv_timer_start(&http->timer, on_timer, wait_ms, 0); /* open, and has a callback */
}

/* In how many milliseconds libmicrohttpd, the oldest connection, or (in page_ms) the page has something to do. */
static uint64_t next_ms(struct io_http *http, uint64_t page_ms)
{
    MHD_UNSIGNED_LONG_LONG due_ms = 0;
    const struct connection *conn = oldest(http);
    uint64_t next = HTTP_REQUEST_MS;
    if (conn != NULL) {
        uint64_t age_ms = uv_now(&http->server->loop) - conn->since_ms;
        next = age_ms < HTTP_REQUEST_MS ? HTTP_REQUEST_MS - age_ms : 0;
    }
    if (MHD_get_timeout(http->daemon, &due_ms) == MHD_YES && due_ms < next)
        next = due_ms;
    return next < page_ms ? next : page_ms;
}

static void run(struct io_http *http)
{
    uint64_t before_us = worked_us();
    http->running = true;
    sweep(http);
    uint64_t page_ms = io_page_tick(http->page, uv_now(&http->server->loop));
    (void)MHD_run(http->daemon); /* fails only for a daemon with threads of its own */
    http->running = false;
    uint64_t pause_ms = pay(http, worked_us() - before_us);
    /* Neither can fail: both handles are open, and have a callback. */
    if (pause_ms > 0) {
        (void)uv_poll_stop(&http->poll);
        (void)uv_timer_start(&http->timer, on_timer, pause_ms, 0);
        return;
    }
    (void)uv_poll_start(&http->poll, UV_READABLE, on_poll);
    (void)uv_timer_start(&http->timer, on_timer, next_ms(http, page_ms), 0);
}

/* ---- life ---- */

static int code_of(int number)
{
    switch (number) {
    case EADDRINUSE:
        return AMP_EEXIST;
    case EACCES:
    case EPERM:
        return AMP_EDENIED;
    case EADDRNOTAVAIL:
        return AMP_EINVAL;
    default:
        return AMP_EIO;
    }
}

/* Makes a listening socket, non-blocking, in *out. Returns 0 or a number of errno. */
static int listen_at(struct io_http *http, const struct addrinfo *at, int *out)
{
    struct sockaddr_storage bound;
    socklen_t size = sizeof bound;
    int on = 1;
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* without it a restart may have to wait */
    if (bind(fd, at->ai_addr, at->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &size) != 0) {
        int number = errno;
        (void)close(fd); /* nothing was written to it */
        return number;
    }
    arpc_address_write((const struct sockaddr *)&bound, http->endpoint, sizeof http->endpoint, NULL);
    *out = fd;
    return 0;
}

static int open_socket(struct io_http *http, const char *address, int *fd, struct amp_error *error)
{
    struct arpc_address parsed;
    int rc = arpc_address_parse(address, &parsed, error);
    if (rc == 0 && parsed.is_unix)
        rc = amp_error_set(error, AMP_EINVAL, NULL, "give HOST:PORT or none");
    if (rc != 0) {
        amp_error_wrap(error, "--metrics-listen %.100s", address);
        return rc;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found;
    if (getaddrinfo(parsed.host, parsed.port, &hints, &found) != 0)
        return amp_error_set(error, AMP_EINVAL, NULL, "--metrics-listen %.100s: no such host", address);
    int number = listen_at(http, found, fd);
    freeaddrinfo(found);
    if (number == 0)
        return 0;
    return amp_error_set(
        error, code_of(number), NULL, "--metrics-listen %.100s: cannot listen there: %s; %s", address, strerror(number),
        number == EMFILE || number == ENFILE ? "raise their limit (ulimit -n)" : "give another address, or none");
}

static struct MHD_Daemon *start_daemon(struct io_http *http, int fd)
{
    const struct MHD_OptionItem options[] = {
        {MHD_OPTION_LISTEN_SOCKET, fd, NULL},
        {MHD_OPTION_CONNECTION_LIMIT, HTTP_CONNECTIONS_MAX + HTTP_CONNECTIONS_LEAVING + IO_PAGE_STREAMS_MAX, NULL},
        {MHD_OPTION_CONNECTION_MEMORY_LIMIT, HTTP_CONNECTION_BYTES, NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, HTTP_REQUEST_MS / 1000, NULL},
        {MHD_OPTION_STRICT_FOR_CLIENT, 1, NULL},
        {MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, NULL}, /* main ignores it */
        {MHD_OPTION_URI_LOG_CALLBACK, (intptr_t)on_uri, http},
        {MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)on_connection, http},
        {MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)on_completed, http},
        {MHD_OPTION_END, 0, NULL}};
    return MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, http, MHD_OPTION_ARRAY,
                            options, MHD_OPTION_END);
}

static int open_daemon(struct io_http *http, int fd, struct amp_error *error)
{
    http->daemon = start_daemon(http, fd);
    if (http->daemon == NULL) /* it may have closed the socket or not; the process ends anyway */
        return amp_error_set(error, AMP_ENOMEM, NULL,
                             "cannot start the HTTP port; raise the limit of open files (ulimit -n)");
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    uv_loop_t *loop = &http->server->loop;
    if (info == NULL || uv_poll_init(loop, &http->poll, info->epoll_fd) != 0)
        return amp_error_set(error, AMP_EIO, NULL, "cannot watch the HTTP port");
    (void)uv_timer_init(loop, &http->timer); /* never fails */
    http->has_handles = true;
    http->poll.data = http->timer.data = http;
    run(http);
    return 0;
}

/* The default address cannot be used: that is no reason not to serve, since no option asks for the port. */
static int go_without(struct ampd_server *server, const struct amp_error *error)
{
    amp_log(server->log, AMP_LOG_WARN, "http",
            "msg=\"the HTTP port cannot be opened, so there are no metrics; give it another address with "
            "--metrics-listen HOST:PORT\" err=\"%s\"",
            error->text);
    return 0;
}

int io_http_open(struct ampd_server *server, struct amp_error *error)
{
    const char *given = server->options->metrics_listen;
    const char *address = given != NULL ? given : IO_HTTP_LISTEN;
    int fd;
    if (address[0] == 0 || strcmp(address, IO_HTTP_NONE) == 0)
        return 0;
    struct io_http *http = calloc(1, sizeof *http);
    if (http == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for the HTTP port");
    http->server = server;
    amp_list_init(&http->connections);
    amp_list_init(&http->asks);
    int rc = open_socket(http, address, &fd, error);
    if (rc == 0 && (http->page = io_page_new(server)) == NULL) {
        rc = amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for the page");
        (void)close(fd); /* no connection was accepted */
    }
    if (rc != 0) {
        free(http);
        return given == NULL ? go_without(server, error) : rc;
    }
    server->http = http;
    rc = open_daemon(http, fd, error);
    if (rc == 0)
        amp_log(server->log, AMP_LOG_INFO, "http", "msg=\"metrics and health\" address=%s page=http://%s/",
                http->endpoint, http->endpoint);
    return rc;
}

void io_http_close(struct ampd_server *server)
{
    struct io_http *http = server->http;
    if (http == NULL || http->daemon == NULL)
        return;
    if (http->has_handles) {
        (void)uv_poll_stop(&http->poll); /* before its descriptor is closed */
        uv_close((uv_handle_t *)&http->poll, NULL);
        uv_close((uv_handle_t *)&http->timer, NULL);
    }
    if (http->metrics != NULL)
        MHD_destroy_response(http->metrics);
    io_page_close(http->page);
    AMP_LIST_EACH(it, safe, &http->asks)
    {
        on_page_ready(AMP_CONTAINER(it, struct ask, node)); /* none may be suspended when libmicrohttpd stops */
    }
    MHD_stop_daemon(http->daemon);
    http->metrics = NULL;
    http->daemon = NULL;
}

void io_http_free(struct ampd_server *server)
{
    AMP_ASSERT(server->http == NULL || server->http->daemon == NULL);
    if (server->http != NULL)
        io_page_free(server->http->page);
    free(server->http);
    server->http = NULL;
}

void io_http_write_metrics(const struct ampd_server *server, struct amp_metric_text *text)
{
    static const struct amp_metric requests = {"ampd_http_requests_total", AMP_METRIC_COUNTER, "Requests to this port"};
    static const struct amp_metric refused = {"ampd_http_refused_total", AMP_METRIC_COUNTER,
                                              "Requests to this port that were refused"};
    static const struct amp_metric dropped = {
        "ampd_http_dropped_total", AMP_METRIC_COUNTER,
        "Connections to this port that were closed because they took too long, or to make room for newer ones; idle "
        "ones do not count"};
    const struct io_http *http = server->http;
    amp_metric_one(text, &requests, http != NULL ? (double)http->requests : 0);
    amp_metric_one(text, &refused, http != NULL ? (double)http->refused : 0);
    amp_metric_one(text, &dropped, http != NULL ? (double)http->dropped : 0);
    io_page_write_metrics(http != NULL ? http->page : NULL, text);
}
