/* The watch on etcd's keys by itself: what it asks for is answered, or refused, by this test. */
#include "server/io/etcd/etcd_watch.h"

#include "proto/msg_etcd.h"
#include "rpc/arpc_client.h"

#include <string.h>
#include <uv.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define POLL_MS 3600000 /* not within a test */

/* What the watch has asked for, and how it is answered. */
struct fake {
    uv_loop_t loop;
    struct amp_log log;
    unsigned looks, streams, settled;
    bool refuses; /* there is no memory for a stream */
    bool reading;
    io_etcd_done_cb done_cb;
    void *done_arg;
    const struct arpc_handler *handler;
    void *stream; /* the user of the one that there is; NULL: none */
};
static struct fake fake;

/* ---- in front of the client of etcd, and of the calls on it (--wrap) ---- */

uv_loop_t *__wrap_io_etcd_loop(const struct io_etcd *etcd);
uv_loop_t *__wrap_io_etcd_loop(const struct io_etcd *etcd)
{
    return &fake.loop;
}

const struct amp_log *__wrap_io_etcd_log(const struct io_etcd *etcd);
const struct amp_log *__wrap_io_etcd_log(const struct io_etcd *etcd)
{
    return &fake.log;
}

uint32_t __wrap_io_etcd_preferred(const struct io_etcd *etcd);
uint32_t __wrap_io_etcd_preferred(const struct io_etcd *etcd)
{
    return 0;
}

void __wrap_io_etcd_failed(struct io_etcd *etcd, uint32_t index);
void __wrap_io_etcd_failed(struct io_etcd *etcd, uint32_t index)
{
    assert_int_equal(index, 0);
}

int __wrap_io_etcd_call(struct io_etcd *etcd, const char *path, const struct amp_buf *request, io_etcd_done_cb done_cb,
                        void *arg);
int __wrap_io_etcd_call(struct io_etcd *etcd, const char *path, const struct amp_buf *request, io_etcd_done_cb done_cb,
                        void *arg)
{
    assert_false(fake.reading);
    fake.reading = true;
    fake.looks++;
    fake.done_cb = done_cb;
    fake.done_arg = arg;
    return 0;
}

int __wrap_io_etcd_stream(struct io_etcd *etcd, uint32_t index, const char *path, const struct arpc_handler *handler,
                          void *user, struct arpc_call **out);
int __wrap_io_etcd_stream(struct io_etcd *etcd, uint32_t index, const char *path, const struct arpc_handler *handler,
                          void *user, struct arpc_call **out)
{
    if (fake.refuses)
        return AMP_ENOMEM;
    fake.streams++;
    fake.handler = handler;
    fake.stream = user;
    *out = user;
    return 0;
}

void *__wrap_arpc_call_user(const struct arpc_call *call);
void *__wrap_arpc_call_user(const struct arpc_call *call)
{
    return fake.stream;
}

int __wrap_arpc_call_send(struct arpc_call *call, const void *data, size_t size, const void *more, size_t more_size,
                          arpc_release_cb release_cb, void *release_arg);
int __wrap_arpc_call_send(struct arpc_call *call, const void *data, size_t size, const void *more, size_t more_size,
                          arpc_release_cb release_cb, void *release_arg)
{
    return 0;
}

static bool cancelled;

void __wrap_arpc_call_cancel(struct arpc_call *call, int status, const char *message);
void __wrap_arpc_call_cancel(struct arpc_call *call, int status, const char *message)
{
    cancelled = true;
}

/* ---- what etcd says ---- */

static void end_stream(void)
{
    const struct arpc_result result = {.status = ARPC_STATUS_UNAVAILABLE};
    fake.handler->closed(fake.stream, &result);
    fake.stream = NULL;
}

static void answer(int64_t revision)
{
    const struct ampd_etcd_range_response response = {.has_header = true, .header.revision = revision};
    const struct amp_error none = {0};
    struct amp_buf buf;
    amp_buf_init(&buf, IO_ETCD_MESSAGE_MAX);
    assert_int_equal(ampd_etcd_range_response_encode(&response, &buf), 0);
    assert_true(fake.reading);
    fake.reading = false;
    fake.done_cb(fake.done_arg, &none, buf.data, buf.size);
    amp_buf_close(&buf);
}

static void tell_put(int64_t revision)
{
    struct ampd_etcd_event event = {.type = AMPD_ETCD_PUT, .has_kv = true};
    event.kv.key = (struct ampd_msg_bytes){(uint8_t *)(uintptr_t) "p/a", 3};
    event.kv.mod_revision = revision;
    struct ampd_etcd_watch_response response = {.has_header = true, .header.revision = revision};
    response.events.items = &event;
    response.events.count = 1;
    struct amp_buf buf;
    amp_buf_init(&buf, IO_ETCD_MESSAGE_MAX);
    assert_int_equal(ampd_etcd_watch_response_encode(&response, &buf), 0);
    fake.handler->message(fake.stream, buf.data, buf.size);
    amp_buf_close(&buf);
}

/* ---- the reader ---- */

static void on_reset(void *arg)
{
}

static void on_put(void *arg, const struct ampd_etcd_key_value *kv)
{
}

static void on_remove(void *arg, const uint8_t *key, size_t size)
{
}

static void on_settled(void *arg, int64_t revision)
{
    fake.settled++;
}

static void on_failed(void *arg, const struct amp_error *error)
{
    fail_msg("%s", error->text);
}

static const struct io_etcd_watch_events events = {on_reset, on_put, on_remove, on_settled, on_failed};

/* It has asked once, and is not answered yet. */
static struct io_etcd_watch *begin(void)
{
    struct io_etcd_watch *watch;
    memset(&fake, 0, sizeof fake);
    assert_int_equal(uv_loop_init(&fake.loop), 0);
    assert_int_equal(io_etcd_watch_new(NULL, "p/", POLL_MS, &events, NULL, &watch), 0);
    (void)uv_run(&fake.loop, UV_RUN_NOWAIT);
    assert_int_equal(fake.looks, 1);
    return watch;
}

static void end(struct io_etcd_watch *watch)
{
    cancelled = false;
    io_etcd_watch_close(watch);
    if (cancelled)
        end_stream();
    assert_int_equal(uv_run(&fake.loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&fake.loop), 0);
}

/* ---- tests ---- */

static void a_watch_whose_stream_cannot_begin_looks_again_soon(void **state)
{
    struct io_etcd_watch *watch = begin();
    fake.refuses = true;
    answer(5);
    assert_int_equal(fake.settled, 1);
    for (unsigned again = 2; again < 4; again++) {
        assert_in_range(uv_backend_timeout(&fake.loop), 0, IO_ETCD_AGAIN_MS);
        (void)uv_run(&fake.loop, UV_RUN_ONCE);
        assert_int_equal(fake.looks, again);
        answer(5);
    }
    fake.refuses = false;
    (void)uv_run(&fake.loop, UV_RUN_ONCE);
    answer(5);
    assert_int_equal(fake.streams, 1);
    assert_true(uv_backend_timeout(&fake.loop) > IO_ETCD_AGAIN_MS); /* the stream tells from now on */
    end(watch);
}

static void a_stream_that_ends_while_all_is_read_is_followed_by_another(void **state)
{
    struct io_etcd_watch *watch = begin();
    answer(5);
    assert_int_equal(fake.streams, 1);
    io_etcd_watch_look(watch);
    tell_put(9);
    end_stream();
    answer(7); /* read before what the stream has told: of no use but that etcd answers */
    assert_int_equal(fake.settled, 2);
    assert_int_equal(fake.streams, 2);
    end(watch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_watch_whose_stream_cannot_begin_looks_again_soon),
                                       cmocka_unit_test(a_stream_that_ends_while_all_is_read_is_followed_by_another)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
