/* How much memory a process may use: control groups of both versions, as folders in a temporary one. */
#include "rpc/arpc_limits.h"
#include "server/io/process/memory_limit.h"
#include "tests/temp_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* cmocka needs the headers above. */
#include <cmocka.h>

#define MIB      ((uint64_t)1 << 20)
#define PHYSICAL (4096 * MIB)
#define UNBOUND  "9223372036854771712\n" /* v1's way to say none */

/* A folder like /sys/fs/cgroup, and a file like /proc/self/cgroup in it. */
struct fixture {
    char mount[TEMP_FOLDER_MAX];
    char groups[TEMP_FOLDER_MAX + 16];
};

static int setup(void **state)
{
    static struct fixture fixture;
    assert_true(temp_folder(fixture.mount, "memory-limit"));
    (void)snprintf(fixture.groups, sizeof fixture.groups, "%s/self", fixture.mount);
    *state = &fixture;
    return 0;
}

static int teardown(void **state)
{
    const struct fixture *fixture = *state;
    char command[TEMP_FOLDER_MAX + 16];
    (void)snprintf(command, sizeof command, "rm -r '%s'", fixture->mount);
    return system(command);
}

/* Writes a file below the mount; its folders are made. */
static void put(const struct fixture *fixture, const char *name, const char *text)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", fixture->mount, name);
    for (char *at = path + strlen(fixture->mount) + 1; (at = strchr(at, '/')) != NULL; *at++ = '/') {
        *at = 0;
        (void)mkdir(path, 0700); /* it may be there */
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static uint64_t memory_of(const struct fixture *fixture)
{
    return io_memory_limit_of(fixture->groups, fixture->mount, PHYSICAL);
}

static void without_groups_it_is_the_machines(void **state)
{
    const struct fixture *fixture = *state;
    assert_int_equal(memory_of(fixture), PHYSICAL);
    put(fixture, "self", "0::/user.slice/one\n4:cpu,cpuacct:/a\nno line of its kind\n");
    assert_int_equal(memory_of(fixture), PHYSICAL);
    assert_int_equal(io_memory_limit_of(fixture->groups, fixture->mount, 0), 0);
}

static void the_least_limit_of_a_group_and_those_above_it_counts(void **state)
{
    const struct fixture *fixture = *state;
    put(fixture, "self", "0::/a/b/c\n");
    put(fixture, "a/b/c/memory.max", "max\n");
    assert_int_equal(memory_of(fixture), PHYSICAL);
    put(fixture, "a/memory.max", "1073741824\n");
    assert_int_equal(memory_of(fixture), 1024 * MIB);
    put(fixture, "a/b/c/memory.max", "536870912\n");
    assert_int_equal(memory_of(fixture), 512 * MIB);
    put(fixture, "a/b/memory.max", "8589934592\n");
    assert_int_equal(memory_of(fixture), 512 * MIB);
    put(fixture, "memory.max", "1048576\n");
    assert_int_equal(memory_of(fixture), MIB);
}

static void groups_of_the_first_version_count_too(void **state)
{
    const struct fixture *fixture = *state;
    put(fixture, "self", "9:cpu,cpuacct:/x\n7:hugetlb,memory:/docker/1f\n0::/\n");
    put(fixture, "memory/docker/1f/memory.limit_in_bytes", UNBOUND);
    put(fixture, "memory/x/memory.limit_in_bytes", "1\n"); /* of another controller's path */
    assert_int_equal(memory_of(fixture), PHYSICAL);
    put(fixture, "memory/docker/1f/memory.limit_in_bytes", "268435456\n");
    assert_int_equal(memory_of(fixture), 256 * MIB);
}

static void a_container_that_sees_the_hosts_path_has_its_limit_at_the_mount(void **state)
{
    const struct fixture *fixture = *state;
    put(fixture, "self", "3:memory:/docker/not-there/either\n");
    put(fixture, "memory/memory.limit_in_bytes", "134217728\n");
    assert_int_equal(memory_of(fixture), 128 * MIB);
}

static struct arpc_limits bounded(uint64_t memory_max)
{
    struct arpc_limits limits = arpc_limits_default;
    io_memory_bound_calls(memory_max, &limits);
    return limits;
}

static void what_calls_may_take_is_a_small_share_beside_the_tensors(void **state)
{
    (void)state;
    struct arpc_limits limits = bounded(0);
    assert_memory_equal(&limits, &arpc_limits_default, sizeof limits);
    limits = bounded(4096 * MIB);
    assert_memory_equal(&limits, &arpc_limits_default, sizeof limits);
    limits = bounded(128 * MIB);
    assert_int_equal(limits.unfinished, 8 * MIB);
    assert_int_equal(limits.unfinished_per_address, 4 * MIB);
    assert_int_equal(limits.waiting, 16 * MIB);
    assert_int_equal(limits.open, 16 * MIB);
    assert_int_equal(limits.unsent, 16 * MIB);
    limits = bounded(1024 * MIB);
    assert_int_equal(limits.unsent, 64 * MIB);
    assert_int_equal(limits.waiting, 128 * MIB);
    assert_int_equal(limits.open, 64 * MIB);
    /* By default a third of --memory-max is left for all but tensors. */
    assert_true(limits.unfinished + limits.waiting + limits.open + limits.unsent < (int64_t)(1024 * MIB / 3));
    limits = bounded(2 * MIB);
    assert_int_equal(limits.unfinished, 4 * MIB);
    assert_int_equal(limits.unfinished_per_address, 2 * MIB);
    assert_int_equal(limits.waiting, 16 * MIB);
}

static void this_machine_has_some(void **state)
{
    (void)state;
    assert_true(io_memory_limit() >= MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(without_groups_it_is_the_machines, setup, teardown),
        cmocka_unit_test_setup_teardown(the_least_limit_of_a_group_and_those_above_it_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(groups_of_the_first_version_count_too, setup, teardown),
        cmocka_unit_test_setup_teardown(a_container_that_sees_the_hosts_path_has_its_limit_at_the_mount, setup,
                                        teardown),
        cmocka_unit_test(what_calls_may_take_is_a_small_share_beside_the_tensors),
        cmocka_unit_test(this_machine_has_some),
    };
    return cmocka_run_group_tests_name("test_server_memory_limit", tests, NULL, NULL);
}
