/* The clock of a lease goes on while the machine sleeps: a clock of its own in which a sleep has been plays that. */
#define _GNU_SOURCE /* unshare */
#include "server/io/etcd/etcd.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define SLEPT_S   100000
#define NEW_CLOCK 0x80 /* CLONE_NEWTIME, which older headers lack */

enum { GOES_ON, STANDS, NO_CLOCK }; /* exit codes */

/* A process whose machine has slept: its clock is that much ahead of this one's. */
static int slept(void)
{
    char offset[64];
    int64_t before_ms = io_etcd_now_ms();
    int size = snprintf(offset, sizeof offset, "boottime %d 0\n", SLEPT_S);
    int fd = unshare(NEW_CLOCK) == 0 ? open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC) : -1;
    if (fd < 0 || write(fd, offset, (size_t)size) != size)
        return NO_CLOCK;
    pid_t child = fork(); /* the first that has that clock */
    if (child == 0)
        _exit(io_etcd_now_ms() - before_ms >= (int64_t)SLEPT_S * 1000 ? GOES_ON : STANDS);
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : NO_CLOCK;
}

static void it_goes_on_while_the_machine_sleeps(void **state)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0)
        _exit(slept());
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_CLOCK) {
        print_message("SKIPPED: test_server_etcd_clock: no process can have a clock of its own here\n");
        skip();
    }
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), GOES_ON);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(it_goes_on_while_the_machine_sleeps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
