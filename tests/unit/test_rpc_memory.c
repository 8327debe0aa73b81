/*
 * The n-th allocation fails, for each n until none does: ours and nghttp2's, on both sides of a connection that lives
 * through all that one can: calls of each kind, metadata, details, compression, a drain. Never a crash or a leak (a
 * sanitizer sees), every call of the client is told its end once, every body is given back once.
 */
#include "tests/unit/rpc_pair.h"

#include "base/assert.h"
#include "rpc/h2/request.h"

#include <nghttp2/nghttp2.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define COUNT(a) (sizeof a / sizeof *(a))

/* ---- memory ---- */

/* The linker's --wrap puts these in the place of those that they are named after. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *data, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *data, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t size);

static long countdown = -1; /* allocations that still succeed; negative: all do */
static bool from_then_on;   /* all later ones fail too */
static size_t denials;

static bool denied(void)
{
    if (countdown < 0)
        return false;
    if (countdown > 0) {
        countdown--;
        return false;
    }
    denials++;
    if (!from_then_on)
        countdown = -1;
    return true;
}

void *__wrap_malloc(size_t size)
{
    return denied() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return denied() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *data, size_t size)
{
    return denied() ? NULL : __real_realloc(data, size);
}

char *__wrap_strdup(const char *text)
{
    return denied() ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t size)
{
    return denied() ? NULL : __real_strndup(text, size);
}

static void *h2_malloc(size_t size, void *arg)
{
    (void)arg;
    return __wrap_malloc(size);
}

static void h2_free(void *data, void *arg)
{
    (void)arg;
    free(data);
}

static void *h2_calloc(size_t count, size_t size, void *arg)
{
    (void)arg;
    return __wrap_calloc(count, size);
}

static void *h2_realloc(void *data, size_t size, void *arg)
{
    (void)arg;
    return __wrap_realloc(data, size);
}

static nghttp2_mem h2_memory = {.malloc = h2_malloc, .free = h2_free, .calloc = h2_calloc, .realloc = h2_realloc};

/* ---- the server ---- */

static uint8_t body[200000];
static int released;
static int borrowed;

static void count_release(void *arg)
{
    (void)arg;
    released++;
}

static void send_view(struct arpc_call *call, size_t size)
{
    if (arpc_call_send(call, "head", 4, body, size, count_release, NULL) == 0)
        borrowed++;
}

static void on_closed(struct arpc_call *call, const struct arpc_result *result)
{
    (void)call;
    (void)result;
}

static void reply(struct arpc_call *call, const uint8_t *data, size_t size)
{
    static const uint8_t value[] = {0, 1, 2, 255};
    (void)arpc_call_add_initial(call, "x-back-bin", value, sizeof value);
    (void)arpc_call_add_trailing(call, "x-last", "yes", 3);
    (void)arpc_call_reply(call, data, size);
}

static void refuse(struct arpc_call *call)
{
    static const struct arpc_pair pairs[] = {{"epoch", "7"}, {"step", "12"}};
    const struct arpc_details details = {.reason = "STALE_STEP",
                                         .pairs = pairs,
                                         .pair_count = 2,
                                         .retry_ms = 100,
                                         .field = "step",
                                         .field_text = "is old"};
    arpc_call_finish(call, ARPC_STATUS_ABORTED, "the step is old \xc3\xbc", &details);
}

static void pull(struct arpc_call *call)
{
    for (int i = 0; i < 3; i++)
        send_view(call, sizeof body);
    arpc_call_finish(call, ARPC_STATUS_OK, NULL, NULL);
}

static void collect_end(struct arpc_call *call)
{
    (void)arpc_call_reply(call, "done", 4);
}

static void hold(struct arpc_call *call)
{
    arpc_call_pause(call);
}

static const struct arpc_handler reply_handler = {.message = reply, .closed = on_closed};
static const struct arpc_handler fail_handler = {.half_close = refuse, .closed = on_closed};
static const struct arpc_handler pull_handler = {.half_close = pull, .closed = on_closed};
static const struct arpc_handler collect_handler = {.half_close = collect_end, .closed = on_closed};
static const struct arpc_handler hold_handler = {.started = hold, .closed = on_closed};
static const struct arpc_method methods[] = {
    {"t.T", "Unary", ARPC_UNARY, true, 0, 1 << 20, &reply_handler},
    {"t.T", "Fail", ARPC_UNARY, true, 0, 1 << 20, &fail_handler},
    {"t.T", "Pull", ARPC_SERVER_STREAM, true, 0, 1 << 20, &pull_handler},
    {"t.T", "Collect", ARPC_CLIENT_STREAM, true, 0, 1 << 20, &collect_handler},
    {"t.T", "Hold", ARPC_CLIENT_STREAM, true, 0, 1 << 20, &hold_handler},
};

/* ---- the client ---- */

struct told {
    int closed;
    int status;
    int messages;
};

static void on_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct told *told = arpc_call_user(call);
    (void)data;
    (void)size;
    told->messages++;
    assert_int_equal(told->closed, 0);
}

static void on_client_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct told *told = arpc_call_user(call);
    told->closed++;
    told->status = result->status;
}

static const struct arpc_handler client_handler = {.message = on_message, .closed = on_client_closed};

enum { UNARY, MISSING, FAIL, PULL, COLLECT, HOLD, AGAIN, CALLS };

static const struct {
    const char *path;
    int status; /* when nothing fails */
} kinds[CALLS] = {
    [UNARY] = {"/t.T/Unary", ARPC_STATUS_OK},          [MISSING] = {"/t.T/Missing", ARPC_STATUS_UNIMPLEMENTED},
    [FAIL] = {"/t.T/Fail", ARPC_STATUS_ABORTED},       [PULL] = {"/t.T/Pull", ARPC_STATUS_OK},
    [COLLECT] = {"/t.T/Collect", ARPC_STATUS_OK},      [HOLD] = {"/t.T/Hold", ARPC_STATUS_DEADLINE_EXCEEDED},
    [AGAIN] = {"/t.T/Unary", ARPC_STATUS_UNAVAILABLE},
};

/* Whether the call could begin: then its end is to be told. */
static bool begin(struct rpc_pair *pair, int kind, struct told *told)
{
    static const struct arpc_pair metadata[] = {{"x-kept", "value"}, {"x-kept-bin", "AAEC"}};
    struct arpc_call *call;
    *told = (struct told){.status = -1};
    if (arpc_request_new(&pair->client.link, kinds[kind].path, metadata, 2, &client_handler, &call, NULL) != 0)
        return false;
    call->in.max_message = 1 << 20;
    call->user = told;
    call->in.single_inbound = kind != PULL;
    call->deadline_ms = pair->now_ms + 1000;
    arpc_link_due(&pair->client.link, call->deadline_ms);
    (void)arpc_call_send(call, "a request", 9, body, kind == UNARY ? 3000 : 0, NULL, NULL);
    for (int i = 0; kind >= COLLECT && kind <= HOLD && i < 3; i++)
        send_view(call, sizeof body);
    arpc_call_half_close(call);
    return true;
}

/* ---- the scenario ---- */

static const char *const keep[] = {"x-kept", "x-kept-bin", "x-back-bin", "x-last", NULL};

static void prepare(struct rpc_pair *pair)
{
    rpc_pair_prepare(pair, methods, COUNT(methods));
    pair->client.config.memory = &h2_memory;
    pair->server.config.memory = &h2_memory;
    pair->client.config.keep_metadata = keep;
    pair->server.config.keep_metadata = keep;
    pair->server.config.compress = true;
    released = 0;
    borrowed = 0;
}

static void talk(struct rpc_pair *pair, bool *begun, struct told *told)
{
    for (int kind = 0; kind < AGAIN; kind++)
        begun[kind] = begin(pair, kind, &told[kind]);
    rpc_pair_run(pair);
    rpc_pair_pass(pair, 2000);
    arpc_link_drain(&pair->server.link);
    rpc_pair_run(pair);
    begun[AGAIN] = begin(pair, AGAIN, &told[AGAIN]); /* the server takes no more */
    rpc_pair_run(pair);
    rpc_pair_pass(pair, 2000);
}

/* True if an allocation was denied. */
static bool live_with_failure(long n)
{
    static struct rpc_pair pair;
    struct told told[CALLS];
    bool begun[CALLS] = {false};
    size_t before = denials;
    prepare(&pair);
    countdown = n;
    bool client = rpc_side_open(&pair.client) == 0;
    bool server = client && rpc_side_open(&pair.server) == 0;
    if (server)
        talk(&pair, begun, told);
    countdown = -1;
    if (client)
        rpc_side_close(&pair.client);
    if (server)
        rpc_side_close(&pair.server);
    else
        arpc_method_table_close(&pair.server.config.methods);
    assert_int_equal(pair.client.config.calls, 0);
    assert_int_equal(pair.server.config.calls, 0);
    assert_int_equal(released, borrowed);
    for (int kind = 0; kind < CALLS; kind++) {
        if (begun[kind])
            assert_int_equal(told[kind].closed, 1);
        if (denials == before) {
            assert_true(begun[kind]);
            assert_int_equal(told[kind].status, kinds[kind].status);
        }
    }
    return denials > before;
}

static void each_allocation_may_fail_once(void **state)
{
    (void)state;
    long n = 0;
    from_then_on = false;
    while (live_with_failure(n))
        n++;
    (void)printf("%ld allocations\n", n);
    assert_true(n > 100);
}

static void memory_may_run_out_at_each_allocation(void **state)
{
    (void)state;
    long n = 0;
    from_then_on = true;
    while (live_with_failure(n))
        n++;
}

int main(void)
{
    for (size_t i = 0; i < sizeof body; i++)
        body[i] = (uint8_t)(i * 7);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_allocation_may_fail_once),
        cmocka_unit_test(memory_may_run_out_at_each_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
