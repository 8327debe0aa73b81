/* What a side said before its connection ended arrives, although the other side goes on sending: over real sockets. */
#include "tests/conformance/channel_fixture.h"

#include "tests/conformance/echo_wire.h"
#include "tests/unit/rpc_frames.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

static struct sockaddr_in loopback(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

/* ---- a client that reads little in a turn, and says something before each of the server's pumps ---- */

#define ANSWER      (2 * MIB)
#define READ_A_TURN 4096

struct client {
    int fd;
    uv_check_t check; /* started after the server's, and so called before it */
    uint8_t *bytes;   /* all that was received */
    size_t size;
    size_t parsed;
    bool final_goaway;
    bool trailers;
    bool over;
    bool reset;
    bool closed;
};

static void say(const struct client *client, const void *bytes, size_t size)
{
    (void)send(client->fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT); /* a server that is gone shows when reading */
}

static void parse(struct client *client)
{
    while (client->size - client->parsed >= 9) {
        const uint8_t *head = client->bytes + client->parsed;
        size_t size = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
        if (client->size - client->parsed < 9 + size)
            return;
        struct frames_out out = {0};
        if (head[3] == FRAME_PING && (head[4] & FLAG_ACK) == 0)
            frames_ping_ack(&out, head + 9);
        say(client, out.bytes, out.size);
        client->final_goaway = client->final_goaway || (head[3] == FRAME_GOAWAY && head[9] == 0);
        client->trailers = client->trailers || (head[3] == FRAME_HEADERS && (head[4] & FLAG_END_STREAM) != 0);
        client->parsed += 9 + size;
    }
}

static void on_check(uv_check_t *check)
{
    static const uint8_t window_update[13] = {0, 0, 4, 8, [12] = 1};
    struct client *client = check->data;
    ssize_t got = recv(client->fd, client->bytes + client->size, READ_A_TURN, MSG_DONTWAIT);
    client->reset = client->reset || (got < 0 && errno != EAGAIN);
    client->over = client->over || client->reset || got == 0;
    client->size += got > 0 ? (size_t)got : 0;
    assert_true(client->size < ANSWER + MIB);
    parse(client);
    say(client, window_update, sizeof window_update);
}

static void open_client(struct fixture *fixture, struct client *client)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    static const uint8_t windows[] = {
        0, 0, 6, 4, 0, 0, 0, 0, 0, 0,    4, 0x10, 0, 0, 0, /* SETTINGS_INITIAL_WINDOW_SIZE of 256 MiB */
        0, 0, 4, 8, 0, 0, 0, 0, 0, 0x10, 0, 0,    0,       /* and as much for the connection */
    };
    static const char *const request[] = {
        ":method",  "POST",         ":scheme",          "http", ":path", PATH("Repeat"), ":authority", "test", "te",
        "trailers", "content-type", "application/grpc", NULL};
    struct sockaddr_in address = loopback(fixture->port);
    struct frames_out out = {0};
    *client = (struct client){.fd = socket(AF_INET, SOCK_STREAM, 0), .bytes = malloc(ANSWER + 2 * MIB)};
    assert_non_null(client->bytes);
    assert_int_equal(connect(client->fd, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)), 0);
    say(client, preface, sizeof preface - 1);
    say(client, windows, sizeof windows);
    frames_headers(&out, 1, false, request);
    say(client, out.bytes, out.size);
    assert_int_equal(uv_check_init(&fixture->loop, &client->check), 0);
    client->check.data = client;
    assert_int_equal(uv_check_start(&client->check, on_check), 0);
}

static void on_check_closed(uv_handle_t *handle)
{
    struct client *client = handle->data;
    client->closed = true;
}

static void close_client(struct fixture *fixture, struct client *client)
{
    (void)close(client->fd);
    uv_close((uv_handle_t *)&client->check, on_check_closed);
    channel_run_until_bool(fixture, &client->closed);
    free(client->bytes);
}

/* One message of ANSWER bytes. */
static void ask(struct client *client)
{
    uint8_t message[32] = {0};
    size_t used = 5;
    struct frames_out out = {0};
    echo_put_number(message, &used, 1, 1);
    echo_put_number(message, &used, 2, ANSWER);
    message[4] = (uint8_t)(used - 5);
    frames_data(&out, 1, true, message, used);
    say(client, out.bytes, out.size);
}

/* The call is begun, the server drains, and the client knows it. */
static void drain_with_a_call(struct fixture *fixture, struct client *client, bool *drained)
{
    channel_start_server(fixture, "127.0.0.1:0");
    open_client(fixture, client);
    channel_wait_open(fixture, 1);
    arpc_server_drain(fixture->server, GUARD_MS, channel_set_flag, drained);
    while (!client->final_goaway)
        (void)uv_run(&fixture->loop, UV_RUN_NOWAIT);
}

static void the_last_answer_of_a_drained_server_arrives_whole(void **state)
{
    struct fixture *fixture = *state;
    struct client client;
    bool drained = false;
    drain_with_a_call(fixture, &client, &drained);
    ask(&client);
    while (!client.over)
        (void)uv_run(&fixture->loop, UV_RUN_NOWAIT);
    assert_false(client.reset);
    assert_true(client.trailers);
    assert_true(client.size > ANSWER);
    close_client(fixture, &client);
    channel_run_until_bool(fixture, &drained);
}

static void a_client_that_does_not_close_is_left_after_a_while(void **state)
{
    struct fixture *fixture = *state;
    struct client client;
    bool drained = false;
    drain_with_a_call(fixture, &client, &drained);
    ask(&client);
    while (!drained)
        (void)uv_run(&fixture->loop, UV_RUN_NOWAIT);
    assert_true(client.trailers);
    close_client(fixture, &client);
}

/* ---- a server that answers and is gone before its client says the next word ---- */

struct gone {
    struct fixture *fixture;
    uv_tcp_t listener;
    uv_tcp_t socket;
    struct frames_in in;
    uint8_t buffer[4096];
    struct seen later;
};

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    (void)suggested;
    struct gone *gone = handle->data;
    *buf = uv_buf_init((char *)gone->buffer, sizeof gone->buffer);
}

static void say_all(struct gone *gone, const struct frames_out *out)
{
    uv_buf_t buf = uv_buf_init((char *)(uintptr_t)out->bytes, (unsigned)out->size);
    assert_int_equal(uv_try_write((uv_stream_t *)&gone->socket, &buf, 1), (int)out->size);
}

/* The answer is with the client's kernel, then comes a reset, then the client writes, and only then it reads. */
static void answer_and_go(struct gone *gone)
{
    struct frames_out out = {0};
    uv_os_fd_t fd;
    int left = 1;
    frames_answer(&out, gone->in.requests[0].stream, "well");
    say_all(gone, &out);
    assert_int_equal(uv_fileno((uv_handle_t *)&gone->socket, &fd), 0);
    while (left > 0)
        assert_int_equal(ioctl(fd, TIOCOUTQ, &left), 0);
    assert_int_equal(uv_tcp_close_reset(&gone->socket, NULL), 0);
    channel_call_with(gone->fixture, PATH("Unary"), NULL, &gone->later, "more", 4);
}

static void on_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buf)
{
    struct gone *gone = stream->data;
    bool greeted = gone->in.preface;
    struct frames_out out = {0};
    assert_true(size >= 0);
    frames_hear(&gone->in, (const uint8_t *)buf->base, (size_t)size);
    if (!greeted && gone->in.preface) {
        frames_settings(&out);
        say_all(gone, &out);
    }
    if (gone->in.request_count > 0 && gone->in.requests[0].ended)
        answer_and_go(gone);
}

static void on_connection(uv_stream_t *listener, int status)
{
    struct gone *gone = listener->data;
    assert_int_equal(status, 0);
    assert_int_equal(uv_tcp_init(listener->loop, &gone->socket), 0);
    assert_int_equal(uv_accept(listener, (uv_stream_t *)&gone->socket), 0);
    assert_int_equal(uv_tcp_nodelay(&gone->socket, 1), 0);
    gone->socket.data = gone;
    uv_close((uv_handle_t *)listener, NULL); /* the next one is refused */
    assert_int_equal(uv_read_start((uv_stream_t *)&gone->socket, on_alloc, on_read), 0);
}

static void an_answer_that_came_before_a_reset_counts_although_the_client_wrote_first(void **state)
{
    struct fixture *fixture = *state;
    struct gone *gone = calloc(1, sizeof *gone);
    struct seen seen = {0};
    struct sockaddr_in address = loopback(0);
    int size = sizeof address;
    assert_non_null(gone);
    gone->fixture = fixture;
    gone->listener.data = gone;
    frames_in_open(&gone->in);
    assert_int_equal(uv_tcp_init(&fixture->loop, &gone->listener), 0);
    assert_int_equal(uv_tcp_bind(&gone->listener, (const struct sockaddr *)&address, 0), 0);
    assert_int_equal(uv_listen((uv_stream_t *)&gone->listener, 8, on_connection), 0);
    assert_int_equal(uv_tcp_getsockname(&gone->listener, (struct sockaddr *)&address, &size), 0);
    (void)snprintf(fixture->target, sizeof fixture->target, "127.0.0.1:%d", ntohs(address.sin_port));
    channel_start_channel(fixture, fixture->target);
    channel_call_with(fixture, PATH("Unary"), NULL, &seen, "hello", 5);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
    assert_int_equal(seen.messages, 1);
    channel_run_until(fixture, &gone->later.closed);
    assert_int_equal(gone->later.status, ARPC_STATUS_UNAVAILABLE);
    channel_stop_channel(fixture);
    frames_in_close(&gone->in);
    free(gone);
}

int main(void)
{
#define WITH_LOOP(test) cmocka_unit_test_setup_teardown(test, channel_setup_bare, channel_teardown)
    const struct CMUnitTest tests[] = {
        WITH_LOOP(the_last_answer_of_a_drained_server_arrives_whole),
        WITH_LOOP(a_client_that_does_not_close_is_left_after_a_while),
        WITH_LOOP(an_answer_that_came_before_a_reset_counts_although_the_client_wrote_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
