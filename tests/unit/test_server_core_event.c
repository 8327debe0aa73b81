/* Events for the core and what becomes of its outputs. The core is a fake that gives what a test has queued. */
#include "server/io/base/core_event.h"

#include "server/io/base/server.h"

#include <string.h>
#include <uv.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define TRACE_MAX 32

static struct ampd_server server;
static char core; /* the address of what is never looked into */

static struct {
    unsigned outputs, given; /* that the core has, and of these has given */
    unsigned steps, depth;
    bool asks;  /* the first output is answered with an event, which brings another output */
    bool debug; /* the core was told to make lines of the level debug */
    char trace[TRACE_MAX];
} fake;

static void note(const char *what)
{
    assert_in_range(strlen(fake.trace) + strlen(what), 0, TRACE_MAX - 1);
    (void)strcat(fake.trace, what);
}

/* ---- in front of the core (--wrap) ---- */

void __wrap_ampd_core_set_debug(struct ampd_core *of, bool on);
void __wrap_ampd_core_set_debug(struct ampd_core *of, bool on)
{
    assert_ptr_equal(of, &core);
    fake.debug = on;
}

void __wrap_ampd_core_step(struct ampd_core *of, uint64_t now, const struct ampd_event *event);
void __wrap_ampd_core_step(struct ampd_core *of, uint64_t now, const struct ampd_event *event)
{
    assert_ptr_equal(of, &core);
    assert_true(event->utc_us > 0);
    fake.steps++;
    note("s");
}

bool __wrap_ampd_core_next(struct ampd_core *of, struct ampd_output *output);
bool __wrap_ampd_core_next(struct ampd_core *of, struct ampd_output *output)
{
    if (fake.given == fake.outputs)
        return false;
    memset(output, 0, sizeof *output);
    output->call = ++fake.given;
    return true;
}

/* ---- the host ---- */

static void before(const struct ampd_server *of)
{
    assert_ptr_equal(of, &server);
    note("b");
}

static void tick(void)
{
    struct ampd_event event = {.type = AMPD_EVENT_TICK};
    io_core_event(&server, &event);
}

static void output(struct ampd_server *of, const struct ampd_output *given)
{
    const char name[2] = {(char)('0' + given->call), 0};
    assert_int_equal(fake.depth++, 0); /* none is done inside of another one */
    note(name);
    if (fake.asks) {
        fake.asks = false;
        fake.outputs++;
        tick();
    }
    fake.depth--;
}

static void after(struct ampd_server *of)
{
    note("a");
}

static void drop_line(void *arg, enum amp_log_level level, const char *line) {}

static const struct io_core_ops ops = {.before_cb = before, .output_cb = output, .after_cb = after};

static int open_server(void **state)
{
    memset(&server, 0, sizeof server);
    memset(&fake, 0, sizeof fake);
    server.core = (struct ampd_core *)&core;
    server.life.state = SERVER_RUNNING;
    assert_int_equal(uv_loop_init(&server.loop), 0);
    io_core_event_open(&server, &ops);
    return 0;
}

static int close_server(void **state)
{
    io_core_event_close(&server);
    assert_int_equal(uv_run(&server.loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&server.loop), 0);
    return 0;
}

static void outputs_are_done_in_order_and_then_their_end_is_told(void **state)
{
    fake.outputs = 3;
    tick();
    assert_string_equal(fake.trace, "bs123a");
    tick();
    assert_string_equal(fake.trace, "bs123absa");
}

static void what_an_event_from_within_an_output_brings_is_done_by_the_outer_call(void **state)
{
    fake.outputs = 2;
    fake.asks = true;
    tick();
    assert_string_equal(fake.trace, "bs1bs23a");
}

static void a_server_that_closes_asks_the_core_nothing(void **state)
{
    fake.outputs = 1;
    server.life.state = SERVER_CLOSING;
    tick();
    assert_string_equal(fake.trace, "");
    assert_int_equal(fake.steps, 0);
}

static void the_core_makes_lines_of_debug_where_the_log_takes_them(void **state)
{
    struct amp_log log = {.level = AMP_LOG_DEBUG, .write_cb = drop_line};
    server.log = &log;
    tick();
    assert_true(fake.debug);
    log.level = AMP_LOG_INFO;
    tick();
    assert_false(fake.debug);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(outputs_are_done_in_order_and_then_their_end_is_told, open_server,
                                        close_server),
        cmocka_unit_test_setup_teardown(what_an_event_from_within_an_output_brings_is_done_by_the_outer_call,
                                        open_server, close_server),
        cmocka_unit_test_setup_teardown(a_server_that_closes_asks_the_core_nothing, open_server, close_server),
        cmocka_unit_test_setup_teardown(the_core_makes_lines_of_debug_where_the_log_takes_them, open_server,
                                        close_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
