/* Memory that processes of one host share: who can do what with its descriptor. */
#define _GNU_SOURCE /* F_ADD_SEALS, fallocate */
#include "base/err.h"
#include "base/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#define SIZE        ((size_t)10000)
#define SLOT_SIZE   (2 * AMP_HUGE_PAGE)
#define NOEXEC_SEAL 0x0008U /* MFD_NOEXEC_SEAL, which the headers may not have yet */
#define COLLAPSE    25      /* MADV_COLLAPSE, likewise */

static void make_sized(size_t size, bool sole_writer, int *fd, void **memory)
{
    struct amp_error error = {0};
    int rc = amp_shared_new("test", size, sole_writer, fd, memory, &error);
    if (rc == AMP_EUNIMPLEMENTED)
        skip(); /* a kernel without memfd */
    if (rc != 0)
        fail_msg("%s", error.text);
}

static void make(bool sole_writer, int *fd, void **memory)
{
    make_sized(sole_writer ? SIZE : SLOT_SIZE, sole_writer, fd, memory);
}

static void *place_of(size_t size)
{
    void *place = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(place != MAP_FAILED);
    return place;
}

static void nobody_changes_the_size(void **state)
{
    (void)state;
    int fd;
    void *memory;
    for (unsigned written = 0; written < 2; written++) {
        make(written == 0, &fd, &memory);
        assert_int_equal(-1, ftruncate(fd, 1));
        assert_int_equal(EPERM, errno);
        assert_int_equal(-1, ftruncate(fd, 1 << 30));
        assert_int_equal(EPERM, errno);
        assert_int_equal(-1, fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
        amp_shared_unmap(memory, written == 0 ? SIZE : SLOT_SIZE);
        (void)close(fd);
    }
}

static void nobody_can_make_it_a_program(void **state)
{
    (void)state;
    int fd;
    void *memory;
    struct stat about;
    int probe = memfd_create("probe", MFD_CLOEXEC | NOEXEC_SEAL);
    if (probe < 0)
        skip(); /* a kernel before 6.3 */
    (void)close(probe);
    make(true, &fd, &memory);
    assert_int_equal(0, fstat(fd, &about));
    assert_int_equal(0, about.st_mode & 0111);
    assert_int_equal(-1, fchmod(fd, 0700));
    amp_shared_unmap(memory, SIZE);
    (void)close(fd);
}

static void what_the_maker_writes_others_read_and_cannot_write(void **state)
{
    (void)state;
    int fd;
    void *memory, *place = place_of(amp_large_pages(SIZE));
    struct amp_error error = {0};
    make(true, &fd, &memory);
    assert_int_equal(-1, write(fd, "x", 1));
    assert_true(mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    assert_true(amp_shared_map(fd, place, SIZE, true, &error) != 0);
    assert_int_equal(0, amp_shared_map(fd, place, SIZE, false, &error));
    assert_int_equal(0, ((const uint8_t *)place)[SIZE - 1]);
    memset(memory, 7, SIZE);
    assert_int_equal(7, ((const uint8_t *)place)[SIZE - 1]);
    amp_shared_unmap(place, SIZE);
    amp_shared_unmap(memory, SIZE);
    (void)close(fd);
}

static void what_others_write_is_in_the_memfd_after_its_maker_has_unmapped_it(void **state)
{
    (void)state;
    int fd;
    uint8_t byte = 0;
    uint8_t *place = place_of(SLOT_SIZE);
    void *memory;
    struct amp_error error = {0};
    make(false, &fd, &memory);
    amp_shared_unmap(memory, SLOT_SIZE);
    assert_int_equal(0, amp_shared_map(fd, place, SLOT_SIZE, true, &error));
    place[SLOT_SIZE - 1] = 9;
    assert_int_equal(1, pread(fd, &byte, 1, SLOT_SIZE - 1));
    assert_int_equal(9, byte);
    amp_shared_unmap(place, SLOT_SIZE);
    (void)close(fd);
}

/* Whether the mapping at `place` is one that a forked child does not get. */
static bool stays_out_of_a_child(const void *place)
{
    char line[512], begin[32];
    bool found = false;
    FILE *maps = fopen("/proc/self/smaps", "r");
    assert_non_null(maps);
    (void)snprintf(begin, sizeof begin, "%lx-", (unsigned long)(uintptr_t)place);
    while (fgets(line, sizeof line, maps) != NULL) {
        if (strncmp(line, begin, strlen(begin)) == 0)
            found = true;
        else if (found && strncmp(line, "VmFlags:", 8) == 0)
            break;
    }
    (void)fclose(maps);
    return found && strstr(line, " dc") != NULL;
}

/* Its copy would keep the pages when the slot is gone, and would write where the next gradients are. */
static void a_forked_child_gets_no_slot(void **state)
{
    (void)state;
    int fd;
    uint8_t *place = place_of(SLOT_SIZE);
    void *memory;
    struct amp_error error = {0};
    make(false, &fd, &memory);
    assert_int_equal(0, amp_shared_map(fd, place, SLOT_SIZE, true, &error));
    assert_true(stays_out_of_a_child(place));
    amp_shared_unmap(place, SLOT_SIZE);
    amp_shared_unmap(memory, SLOT_SIZE);
    (void)close(fd);
}

static void a_descriptor_whose_size_may_change_is_not_mapped(void **state)
{
    (void)state;
    void *place = place_of(amp_large_pages(SIZE));
    struct amp_error error = {0};
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(0, ftruncate(fd, SIZE));
    assert_int_equal(AMP_EINVAL, amp_shared_map(fd, place, SIZE, false, &error));
    assert_int_equal(0, fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
    assert_int_equal(AMP_EINVAL, amp_shared_map(fd, place, SIZE + 1, false, &error)); /* it is smaller */
    assert_int_equal(0, amp_shared_map(fd, place, SIZE, false, &error));
    assert_int_equal(AMP_EINVAL, amp_shared_map(0, place, SIZE, false, &error)); /* no memfd at all */
    assert_non_null(strstr(error.text, "see that the program"));
    amp_shared_unmap(place, SIZE);
    (void)close(fd);
}

/* As older servers make their slots, which they read by the descriptor. */
static void a_slot_that_takes_no_seal_is_mapped_all_the_same(void **state)
{
    (void)state;
    void *place = place_of(amp_large_pages(SIZE));
    struct amp_error error = {0};
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(0, ftruncate(fd, SIZE));
    assert_int_equal(0, fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
    assert_int_equal(0, amp_shared_map(fd, place, SIZE, true, &error));
    assert_int_equal(AMP_EINVAL, amp_shared_keeps_pages(fd, &error));
    amp_shared_unmap(place, SIZE);
    (void)close(fd);
}

/* With huge pages, or without: the kernel decides which. */
static void filled_memory_has_all_its_pages_and_keeps_what_is_in_it(void **state)
{
    (void)state;
    const size_t size = AMP_SHARED_FILL + 2 * AMP_HUGE_PAGE + SIZE;
    for (unsigned round = 0; round < 2; round++) {
        int fd;
        void *memory;
        struct stat about;
        make_sized(size, true, &fd, &memory);
        uint8_t *bytes = memory;
        assert_int_equal(0, (uintptr_t)bytes % AMP_HUGE_PAGE);
        bytes[1] = 3;
        bytes[AMP_HUGE_PAGE + 5000] = 5;
        bool huge = round == 0;
        for (size_t at = 0; at < size; at += AMP_SHARED_FILL)
            assert_int_equal(0, amp_shared_fill(fd, memory, size, at, &huge));
        assert_int_equal(0, fstat(fd, &about));
        assert_int_equal(amp_large_pages(size), (size_t)about.st_blocks * 512);
        assert_int_equal(3, bytes[1]);
        assert_int_equal(5, bytes[AMP_HUGE_PAGE + 5000]);
        assert_int_equal(0, bytes[size - 1]);
        amp_shared_unmap(memory, size);
        (void)close(fd);
    }
}

/* A write(2) to a memfd that holds the kernel's lock of the file, since the page of its source does not come. */
struct stuck_write {
    pthread_t thread;
    void *source;
    int fd, faults;
};

static void *write_a_byte(void *arg)
{
    const struct stuck_write *own = arg;
    (void)pwrite(own->fd, own->source, 1, 0);
    return NULL;
}

/* False: this process may not use userfaultfd. */
static bool stuck_write_begin(struct stuck_write *own, int fd)
{
    struct uffdio_api api = {.api = UFFD_API};
    own->fd = fd;
    own->faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (own->faults < 0)
        return false;
    own->source = mmap(NULL, AMP_PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register all = {.range = {(uintptr_t)own->source, AMP_PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    assert_int_equal(0, ioctl(own->faults, UFFDIO_API, &api));
    assert_int_equal(0, ioctl(own->faults, UFFDIO_REGISTER, &all));
    assert_int_equal(0, pthread_create(&own->thread, NULL, write_a_byte, own));
    assert_int_equal(1, poll(&(struct pollfd){.fd = own->faults, .events = POLLIN}, 1, -1));
    return true;
}

static void stuck_write_end(struct stuck_write *own)
{
    (void)close(own->faults); /* the page comes */
    assert_int_equal(0, pthread_join(own->thread, NULL));
    (void)munmap(own->source, AMP_PAGE);
}

/* A worker has the descriptors of copies that are still being filled, and a thread that waits for it never ends. */
static void memory_is_filled_while_another_process_holds_the_lock_of_the_file(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 2; round++) {
        int fd;
        void *memory;
        struct stuck_write stuck;
        bool huge = round == 0;
        make(false, &fd, &memory);
        bool can = stuck_write_begin(&stuck, fd);
        if (can) {
            assert_int_equal(0, amp_shared_fill(fd, memory, SLOT_SIZE, 0, &huge));
            stuck_write_end(&stuck);
        }
        amp_shared_unmap(memory, SLOT_SIZE);
        (void)close(fd);
        if (!can)
            skip();
    }
}

static void make_filled(int *fd, void **memory)
{
    bool huge = false;
    make(false, fd, memory);
    assert_int_equal(0, amp_shared_fill(*fd, *memory, SLOT_SIZE, 0, &huge));
}

static int punch(int fd, size_t at)
{
    return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, AMP_PAGE);
}

/* Who has mapped the slot before goes on writing. */
static void pages_of_a_slot_that_is_mapped_cannot_be_taken_out_or_written_anew(void **state)
{
    (void)state;
    int fd;
    void *memory;
    struct amp_error error = {0};
    make_filled(&fd, &memory);
    assert_int_equal(AMP_EINVAL, amp_shared_keeps_pages(fd, &error));
    assert_non_null(strstr(error.text, "not sealed"));
    uint8_t *place = place_of(SLOT_SIZE);
    assert_int_equal(0, amp_shared_map(fd, place, SIZE, true, &error));
    assert_int_equal(0, amp_shared_keeps_pages(fd, &error));
    assert_int_equal(-1, punch(fd, 0));
    assert_int_equal(-1, madvise(place, AMP_PAGE, MADV_REMOVE));
    assert_int_equal(-1, pwrite(fd, "x", 1, 0));
    assert_true(mmap(NULL, AMP_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    place[SIZE - 1] = 7;
    assert_int_equal(7, ((uint8_t *)memory)[SIZE - 1]);
    assert_int_equal(0, amp_shared_keeps_pages(fd, &error));
    amp_shared_unmap(place, SLOT_SIZE);
    amp_shared_unmap(memory, SLOT_SIZE);
    (void)close(fd);
}

/* Also if somebody has the kernel make a huge page of the last pages, part of which would lie behind a smaller file. */
static void missing_pages_are_noticed(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 2; round++) {
        int fd;
        void *memory;
        struct amp_error error = {0};
        make_filled(&fd, &memory);
        uint8_t *place = amp_large_reserve(SLOT_SIZE);
        assert_int_equal(0, punch(fd, 0));
        assert_int_equal(0, amp_shared_map(fd, place, SLOT_SIZE, true, &error));
        if (round == 1)
            (void)madvise(place + AMP_HUGE_PAGE, AMP_HUGE_PAGE, COLLAPSE);
        assert_int_equal(AMP_EINVAL, amp_shared_keeps_pages(fd, &error));
        assert_non_null(strstr(error.text, "taken pages out of it; attach again"));
        amp_large_free(place, SLOT_SIZE);
        amp_shared_unmap(memory, SLOT_SIZE);
        (void)close(fd);
    }
}

static int made_with(int resource, rlim_t limit)
{
    struct rlimit before;
    struct amp_error error = {0};
    int fd;
    void *memory;
    assert_int_equal(0, getrlimit(resource, &before));
    assert_int_equal(0, setrlimit(resource, &(struct rlimit){limit, before.rlim_max}));
    int rc = amp_shared_new("test", SIZE, true, &fd, &memory, &error);
    assert_int_equal(0, setrlimit(resource, &before));
    if (rc == AMP_EUNIMPLEMENTED)
        skip();
    assert_true(rc != 0 && error.text[0] != 0);
    return rc;
}

static void what_a_limit_forbids_is_an_error_that_may_pass(void **state)
{
    (void)state;
    assert_int_equal(AMP_EEXHAUSTED, made_with(RLIMIT_NOFILE, 3));
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(AMP_ENOMEM, made_with(RLIMIT_FSIZE, 4096));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_changes_the_size),
        cmocka_unit_test(nobody_can_make_it_a_program),
        cmocka_unit_test(what_the_maker_writes_others_read_and_cannot_write),
        cmocka_unit_test(what_others_write_is_in_the_memfd_after_its_maker_has_unmapped_it),
        cmocka_unit_test(pages_of_a_slot_that_is_mapped_cannot_be_taken_out_or_written_anew),
        cmocka_unit_test(missing_pages_are_noticed),
        cmocka_unit_test(a_slot_that_takes_no_seal_is_mapped_all_the_same),
        cmocka_unit_test(filled_memory_has_all_its_pages_and_keeps_what_is_in_it),
        cmocka_unit_test(memory_is_filled_while_another_process_holds_the_lock_of_the_file),
        cmocka_unit_test(a_forked_child_gets_no_slot),
        cmocka_unit_test(a_descriptor_whose_size_may_change_is_not_mapped),
        cmocka_unit_test(what_a_limit_forbids_is_an_error_that_may_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
