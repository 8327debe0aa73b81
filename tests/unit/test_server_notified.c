/* What a service manager is told: sendto is wrapped, so that no socket is needed. */
#include "base/text.h"
#include "server/io/base/notify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* cmocka needs the headers above. */
#include <cmocka.h>

static char told[4096];

ssize_t __wrap_sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *to, socklen_t to_size);
ssize_t __wrap_sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *to, socklen_t to_size)
{
    assert_true(fd >= 0 && flags != 0 && to != NULL && to_size > 0 && size < sizeof told);
    memcpy(told, data, size);
    told[size] = 0;
    return (ssize_t)size;
}

static int setup(void **state)
{
    (void)state;
    return setenv("NOTIFY_SOCKET", "/nobody", 1);
}

/* `first` is followed by characters of two bytes, more than there is room for. */
static void assert_cut_between_characters(const char *first)
{
    char status[1024], repaired[sizeof told];
    size_t used = strlen(first);
    memcpy(status, first, used);
    for (; used + 3 <= sizeof status; used += 2)
        memcpy(status + used, "\xc3\xbc", 3);
    io_notify_status(status);
    assert_int_equal(strncmp(told, "STATUS=", 7), 0);
    assert_int_equal(strncmp(told + 7, status, 200), 0);
    memcpy(repaired, told, sizeof told);
    amp_text_repair(repaired);
    assert_string_equal(repaired, told);
}

static void a_status_that_is_too_long_is_cut_between_characters(void **state)
{
    (void)state;
    assert_cut_between_characters("");
    assert_cut_between_characters("a");
}

static void a_status_is_one_line(void **state)
{
    (void)state;
    io_notify_ready("a\nMAINPID=1");
    assert_string_equal(told, "READY=1\nSTATUS=a\\nMAINPID=1");
    io_notify_ready(NULL);
    assert_string_equal(told, "READY=1\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_status_that_is_too_long_is_cut_between_characters),
        cmocka_unit_test(a_status_is_one_line),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
