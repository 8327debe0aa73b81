/* A server that has no memory for a connection. malloc is wrapped, which is why this is a program of its own. */
#include "tests/conformance/channel_fixture.h"

#include "rpc/io/conn.h"
#include "tests/conformance/echo_wire.h"

#include <stdlib.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

/* Allocations of a server's connection that fail: what it takes is little more than a connection. */
static int failures;

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);

void *__wrap_malloc(size_t size)
{
    if (failures > 0 && size > sizeof(struct arpc_conn) && size <= sizeof(struct arpc_conn) + 64) {
        failures--;
        return NULL;
    }
    return __real_malloc(size);
}

static void a_connection_waits_for_memory_even_if_it_is_the_only_one(void **state)
{
    struct fixture *fixture = *state;
    struct seen seen = {0};
    const struct arpc_call_options options = {.size = sizeof options, .deadline_ms = GUARD_MS, .single_response = true};
    failures = 2;
    channel_call_with(fixture, PATH("Unary"), &options, &seen, "hello", 5);
    channel_run_until(fixture, &seen.closed);
    assert_int_equal(failures, 0);
    assert_int_equal(seen.status, ARPC_STATUS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_connection_waits_for_memory_even_if_it_is_the_only_one, channel_setup,
                                        channel_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
