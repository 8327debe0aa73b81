/*
 * Channels with several endpoints: dead ones, silent ones, names with many addresses, resolvers that take their time.
 */
#include "tests/conformance/channel_fixture.h"

#include <netdb.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

/* ---- a resolver of the test's own ---- */

static sem_t slow_release;
static sem_t slow_left;

static struct addrinfo *numeric(const char *host, const char *port)
{
    struct addrinfo *list = NULL;
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(port))};
    bool is_v6 = strchr(host, ':') != NULL;
    int ok = is_v6 ? inet_pton(AF_INET6, host, &v6.sin6_addr) : inet_pton(AF_INET, host, &v4.sin_addr);
    if (ok != 1)
        return NULL;
    /* One piece from malloc, as freeaddrinfo of the test expects. */
    list = calloc(1, sizeof *list + sizeof v6);
    if (list == NULL)
        abort();
    list->ai_family = is_v6 ? AF_INET6 : AF_INET;
    list->ai_socktype = SOCK_STREAM;
    list->ai_addr = (struct sockaddr *)(void *)(list + 1);
    list->ai_addrlen = is_v6 ? sizeof v6 : sizeof v4;
    memcpy(list->ai_addr, is_v6 ? (void *)&v6 : (void *)&v4, list->ai_addrlen);
    return list;
}

/* In place of the C library's: "many.test" has three addresses of which the last is alive, "slow.test" waits. */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **out)
{
    *out = numeric(host, port);
    if (*out != NULL)
        return 0;
    if ((hints->ai_flags & AI_NUMERICHOST) != 0)
        return EAI_NONAME;
    if (strcmp(host, "slow.test") == 0) {
        (void)sem_wait(&slow_release);
        (void)sem_post(&slow_left);
        return EAI_AGAIN;
    }
    if (strcmp(host, "many.test") != 0)
        return EAI_NONAME;
    *out = numeric("::1", "1");
    (*out)->ai_next = numeric("127.0.0.2", "1");
    (*out)->ai_next->ai_next = numeric("127.0.0.1", port);
    return 0;
}

void freeaddrinfo(struct addrinfo *list)
{
    while (list != NULL) {
        struct addrinfo *next = list->ai_next;
        free(list);
        list = next;
    }
}

/* ---- peers ---- */

/* A listener that answers nothing: with `full`, not even SYN. Its port. */
static int silent_listener(int *port, int *filler, size_t fillers)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(fd, fillers > 0 ? 0 : 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    *port = ntohs(address.sin_port);
    for (size_t i = 0; i < fillers; i++) {
        filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        assert_true(filler[i] >= 0);
        (void)connect(filler[i], (struct sockaddr *)&address, size);
    }
    return fd;
}

#define FILLERS 4

struct black_hole {
    int fd;
    int port;
    int fillers[FILLERS];
};

static void open_black_hole(struct black_hole *hole)
{
    hole->fd = silent_listener(&hole->port, hole->fillers, FILLERS);
}

static void close_black_hole(struct black_hole *hole)
{
    for (size_t i = 0; i < FILLERS; i++)
        (void)close(hole->fillers[i]);
    (void)close(hole->fd);
}

static void __attribute__((format(printf, 3, 4)))
channel_to(struct fixture *fixture, int64_t connect_ms, const char *format, ...)
{
    struct arpc_channel_options options = {
        .size = sizeof options, .connect_ms = connect_ms, .initial_backoff_ms = 10, .seed = 1};
    struct amp_error error = {0};
    va_list args;
    va_start(args, format);
    (void)vsnprintf(fixture->target, sizeof fixture->target, format, args);
    va_end(args);
    if (fixture->channel != NULL)
        channel_stop_channel(fixture);
    int rc = arpc_channel_new(&fixture->loop, fixture->target, &options, &fixture->channel, &error);
    if (rc != 0)
        (void)fprintf(stderr, "%s\n", error.text);
    assert_int_equal(rc, 0);
    fixture->channel_closed = false;
}

static void expect_unary(struct fixture *fixture, int status, struct seen *seen)
{
    *seen = (struct seen){0};
    channel_call_with(fixture, PATH("Unary"), NULL, seen, "x", 1);
    channel_run_until(fixture, &seen->closed);
    if (seen->status != status)
        (void)fprintf(stderr, "%s\n", seen->message);
    assert_int_equal(seen->status, status);
}

/* ---- tests ---- */

static void dead_and_unknown_endpoints_are_passed_over(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen;
    channel_to(fixture, 0, "127.0.0.1:1,nobody.test:1,unix:/nowhere/socket,[::1]:1,127.0.0.1:%d", fixture->port);
    expect_unary(fixture, ARPC_STATUS_OK, &seen);
}

static void a_failed_attempt_names_every_endpoint(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen;
    channel_to(fixture, 0, "127.0.0.1:1,nobody.test:1,unix:/nowhere/socket");
    expect_unary(fixture, ARPC_STATUS_UNAVAILABLE, &seen);
    assert_non_null(strstr(seen.message, "127.0.0.1:1: "));
    assert_non_null(strstr(seen.message, "nobody.test:1: "));
    assert_non_null(strstr(seen.message, "unix:/nowhere/socket: "));
}

static void all_addresses_of_a_name_are_tried(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen;
    channel_to(fixture, 0, "many.test:%d", fixture->port);
    expect_unary(fixture, ARPC_STATUS_OK, &seen);
}

static void a_silent_endpoint_takes_no_more_than_its_share(void **state)
{
    struct fixture *fixture = *state;
    struct black_hole hole;
    struct seen seen;
    int port;
    int silent = silent_listener(&port, NULL, 0);
    open_black_hole(&hole);
    uint64_t begin_ms = uv_hrtime() / 1000000;
    channel_to(fixture, 3000, "127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", hole.port, port, fixture->port);
    expect_unary(fixture, ARPC_STATUS_OK, &seen);
    uint64_t took_ms = uv_hrtime() / 1000000 - begin_ms;
    assert_true(took_ms >= 1990); /* two of three shares; what is left of the third was enough */
    close_black_hole(&hole);
    (void)close(silent);
}

static void an_address_that_takes_no_connection_is_left_long_before_its_share_is_over(void **state)
{
    struct fixture *fixture = *state;
    struct black_hole hole;
    struct seen seen;
    open_black_hole(&hole);
    uint64_t begin_ms = uv_hrtime() / 1000000;
    channel_to(fixture, 60000, "127.0.0.1:%d,127.0.0.1:%d", hole.port, fixture->port);
    expect_unary(fixture, ARPC_STATUS_OK, &seen);
    assert_true(uv_hrtime() / 1000000 - begin_ms < 20000); /* its share is 30 s */
    close_black_hole(&hole);
}

static void an_attempt_ends_at_its_deadline(void **state)
{
    struct fixture *fixture = *state;
    struct black_hole hole;
    struct seen seen;
    open_black_hole(&hole);
    channel_to(fixture, 200, "127.0.0.1:%d,127.0.0.1:%d", hole.port, hole.port);
    uint64_t begin_ms = uv_hrtime() / 1000000;
    expect_unary(fixture, ARPC_STATUS_UNAVAILABLE, &seen);
    uint64_t took_ms = uv_hrtime() / 1000000 - begin_ms;
    assert_true(took_ms >= 190 && took_ms < 20000);
    assert_non_null(strstr(seen.message, "timed out; "));
    close_black_hole(&hole);
}

static void a_resolver_that_does_not_answer_holds_up_neither_others_nor_the_close(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen;
    assert_int_equal(sem_init(&slow_release, 0, 0), 0);
    assert_int_equal(sem_init(&slow_left, 0, 0), 0);
    channel_to(fixture, 2000, "slow.test:1,127.0.0.1:%d", fixture->port);
    expect_unary(fixture, ARPC_STATUS_OK, &seen);
    channel_to(fixture, 0, "slow.test:1");
    arpc_channel_connect(fixture->channel);
    while (arpc_channel_state(fixture->channel) != ARPC_CHANNEL_CONNECTING)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    channel_stop_channel(fixture);
    for (int i = 0; i < 2; i++)
        assert_int_equal(sem_post(&slow_release), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(sem_wait(&slow_left), 0);
}

static void after_a_loss_the_next_endpoint_is_tried_first(void **state)
{
    struct fixture *fixture = *state;
    struct arpc_server_options options = {.size = sizeof options, .arg = &fixture->state};
    struct arpc_server_stats stats;
    struct arpc_server *other;
    struct seen seen;
    int port;
    bool closed = false;
    assert_int_equal(arpc_server_new(&fixture->loop, &options, echo_methods, echo_method_count, &other, NULL), 0);
    assert_int_equal(arpc_server_listen(other, "127.0.0.1:0", &port, NULL), 0);
    channel_to(fixture, 0, "127.0.0.1:%d,127.0.0.1:%d", port, fixture->port);
    expect_unary(fixture, ARPC_STATUS_OK, &seen);
    arpc_server_stats(other, &stats);
    assert_int_equal(stats.calls_total, 1);
    arpc_server_close(other, channel_set_flag, &closed);
    channel_run_until_bool(fixture, &closed);
    while (arpc_channel_state(fixture->channel) != ARPC_CHANNEL_IDLE)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    expect_unary(fixture, ARPC_STATUS_OK, &seen);
    arpc_server_stats(fixture->server, &stats);
    assert_int_equal(stats.calls_total, 1);
}

static void an_idle_connection_is_closed_and_the_next_call_makes_another(void **state)
{
    struct fixture *fixture = *state;
    struct arpc_channel_options options = {.size = sizeof options, .idle_timeout_ms = 30, .initial_backoff_ms = 10};
    struct arpc_server_stats stats;
    struct seen seen;
    channel_stop_channel(fixture);
    assert_int_equal(arpc_channel_new(&fixture->loop, fixture->target, &options, &fixture->channel, NULL), 0);
    expect_unary(fixture, ARPC_STATUS_OK, &seen);
    while (arpc_channel_state(fixture->channel) != ARPC_CHANNEL_IDLE)
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
    do {
        (void)uv_run(&fixture->loop, UV_RUN_ONCE);
        arpc_server_stats(fixture->server, &stats);
    } while (stats.connections > 0);
    expect_unary(fixture, ARPC_STATUS_OK, &seen);
    arpc_server_stats(fixture->server, &stats);
    assert_int_equal(stats.connections_total, 2);
}

static void bad_lists_are_refused(void **state)
{
    struct fixture *fixture = *state;
    static const char *const lists[] = {
        "",
        ",",
        "127.0.0.1:1,",
        ",127.0.0.1:1",
        "127.0.0.1:1, 127.0.0.1:2x",
        "a:1,b",
        "a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1,a:1",
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        struct arpc_channel *channel;
        struct amp_error error = {0};
        assert_int_equal(arpc_channel_new(&fixture->loop, lists[i], NULL, &channel, &error), AMP_EINVAL);
        assert_true(error.text[0] != 0);
    }
}

int main(void)
{
#define WITH_BOTH(test) cmocka_unit_test_setup_teardown(test, channel_setup, channel_teardown)
    const struct CMUnitTest tests[] = {
        WITH_BOTH(dead_and_unknown_endpoints_are_passed_over),
        WITH_BOTH(a_failed_attempt_names_every_endpoint),
        WITH_BOTH(all_addresses_of_a_name_are_tried),
        WITH_BOTH(a_silent_endpoint_takes_no_more_than_its_share),
        WITH_BOTH(an_address_that_takes_no_connection_is_left_long_before_its_share_is_over),
        WITH_BOTH(an_attempt_ends_at_its_deadline),
        WITH_BOTH(a_resolver_that_does_not_answer_holds_up_neither_others_nor_the_close),
        WITH_BOTH(after_a_loss_the_next_endpoint_is_tried_first),
        WITH_BOTH(an_idle_connection_is_closed_and_the_next_call_makes_another),
        WITH_BOTH(bad_lists_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
