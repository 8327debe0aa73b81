/* The journal of votes: what was synced comes back, what was torn does not, and a slot is used again. */
#include "storage/vote_journal.h"
#include "storage/store.h"
#include "tests/unit/storage_faults.h"
#include "tests/unit/storage_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <xxhash.h>

#define ELEMENTS 3000

struct fixture {
    char directory[256];
    struct ampd_checkpoint_path place;
    struct ampd_vote_journal *journal;
    float g[ELEMENTS], back[ELEMENTS];
};

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    storage_faults_clear();
    (void)snprintf(fixture->directory, sizeof fixture->directory, "%s", storage_fixture_directory());
    fixture->place = (struct ampd_checkpoint_path){fixture->directory, "model", 1, 2};
    assert_int_equal(0, ampd_vote_journal_open(&fixture->place, &fixture->journal, NULL));
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    storage_faults_clear();
    ampd_vote_journal_close(fixture->journal);
    storage_fixture_remove(fixture->directory);
    free(fixture);
    return 0;
}

static void reopen(struct fixture *fixture)
{
    ampd_vote_journal_close(fixture->journal);
    assert_int_equal(0, ampd_vote_journal_open(&fixture->place, &fixture->journal, NULL));
}

static int write_step(struct fixture *fixture, uint64_t epoch, uint64_t step, uint64_t fence, uint32_t try_number,
                      struct amp_error *error)
{
    for (int i = 0; i < ELEMENTS; i++)
        fixture->g[i] = (float)(step * 1000 + try_number) + (float)i;
    char notes[64];
    int size = snprintf(notes, sizeof notes, "epoch %d step %d try %u", (int)epoch, (int)step, try_number);
    struct ampd_vote_journal_record record = {.key = {epoch, step, fence, try_number},
                                              .notes = (uint8_t *)notes,
                                              .notes_size = (uint64_t)size,
                                              .g = fixture->g,
                                              .elements = ELEMENTS};
    return ampd_vote_journal_write(fixture->journal, &record, error);
}

/* The record's try, after all of it was compared; or an error. */
static int read_step(struct fixture *fixture, uint64_t epoch, uint64_t step)
{
    struct ampd_vote_journal_record record;
    int rc = ampd_vote_journal_read(fixture->journal, epoch, step, fixture->back, ELEMENTS, &record, NULL);
    if (rc != 0)
        return rc;
    assert_int_equal(ELEMENTS, record.elements);
    for (int i = 0; i < ELEMENTS; i++)
        assert_true(fixture->back[i] == (float)(step * 1000 + record.key.try_number) + (float)i);
    char notes[64];
    int size = snprintf(notes, sizeof notes, "epoch %d step %d try %u", (int)epoch, (int)step, record.key.try_number);
    assert_int_equal(size, record.notes_size);
    assert_memory_equal(notes, record.notes, (size_t)size);
    free(record.notes);
    return (int)record.key.try_number;
}

static void slot_file(const struct fixture *fixture, unsigned slot, char *path, size_t size)
{
    (void)snprintf(path, size, "%s/models/model/journal/shard-1-of-2/slot-%03u", fixture->directory, slot);
}

static void records_come_back_after_a_restart(void **state)
{
    struct fixture *fixture = *state;
    for (uint64_t step = 1; step <= 5; step++)
        assert_int_equal(0, write_step(fixture, 3, step, 7, 0, NULL));
    reopen(fixture);
    for (uint64_t step = 1; step <= 5; step++)
        assert_int_equal(0, read_step(fixture, 3, step));
    assert_int_equal(AMP_ENOTFOUND, read_step(fixture, 3, 6));
    assert_int_equal(AMP_ENOTFOUND, read_step(fixture, 2, 5));
}

static void a_record_without_a_gradient_says_so(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_vote_journal_record record = {.key = {1, 1, 1, 0}, .notes = (uint8_t *)"x", .notes_size = 1};
    assert_int_equal(0, ampd_vote_journal_write(fixture->journal, &record, NULL));
    reopen(fixture);
    assert_int_equal(0, ampd_vote_journal_read(fixture->journal, 1, 1, fixture->back, ELEMENTS, &record, NULL));
    assert_int_equal(0, record.elements);
    assert_null(record.g);
    free(record.notes);
}

static void a_record_without_a_gradient_is_found_on_a_disk_that_has_no_fallocate(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_vote_journal_record record = {.key = {1, 1, 1, 0}, .notes = (uint8_t *)"x", .notes_size = 1};
    storage_faults.no_fallocate = 1;
    assert_int_equal(0, ampd_vote_journal_write(fixture->journal, &record, NULL));
    assert_int_equal(0, write_step(fixture, 1, 2, 1, 0, NULL));
    reopen(fixture);
    assert_int_equal(0, ampd_vote_journal_read(fixture->journal, 1, 1, fixture->back, ELEMENTS, &record, NULL));
    assert_int_equal(0, record.elements);
    free(record.notes);
    assert_int_equal(0, read_step(fixture, 1, 2));
}

static void the_newest_try_counts_and_the_older_one_is_kept_until_it_is_synced(void **state)
{
    struct fixture *fixture = *state;
    assert_int_equal(0, write_step(fixture, 1, 1, 1, 4, NULL));
    storage_faults.write_errno = ENOSPC;
    storage_faults.fail_write_at = 2;
    assert_int_equal(AMP_EEXHAUSTED, write_step(fixture, 1, 1, 2, 0, NULL));
    storage_faults_clear();
    reopen(fixture);
    assert_int_equal(4, read_step(fixture, 1, 1));
    assert_int_equal(0, write_step(fixture, 1, 1, 2, 1, NULL));
    assert_int_equal(1, read_step(fixture, 1, 1));
    reopen(fixture); /* both are there now: the higher fence wins */
    assert_int_equal(1, read_step(fixture, 1, 1));
}

static void a_torn_record_is_none_and_the_older_try_is_found(void **state)
{
    struct fixture *fixture = *state;
    assert_int_equal(0, write_step(fixture, 1, 1, 1, 1, NULL));
    assert_int_equal(0, write_step(fixture, 1, 1, 1, 2, NULL));
    char path[512];
    struct stat info;
    slot_file(fixture, 1, path, sizeof path);
    assert_int_equal(0, stat(path, &info));
    static uint8_t page[4096];
    for (off_t at = 0; at < info.st_size; at += 4096) {
        int fd = open(path, O_RDWR);
        size_t size = (size_t)(info.st_size - at < 4096 ? info.st_size - at : 4096);
        assert_int_equal((ssize_t)size, pread(fd, page, size, at));
        page[size / 2] ^= 0x10;
        page[0] ^= 0x10;
        assert_int_equal((ssize_t)size, pwrite(fd, page, size, at));
        reopen(fixture);
        assert_int_equal(1, read_step(fixture, 1, 1));
        page[0] ^= 0x10;
        page[size / 2] ^= 0x10;
        assert_int_equal((ssize_t)size, pwrite(fd, page, size, at));
        (void)close(fd);
    }
    for (off_t size = 0; size < info.st_size; size += 1024) {
        slot_file(fixture, 1, path, sizeof path);
        assert_int_equal(0, truncate(path, size));
        reopen(fixture);
        assert_int_equal(1, read_step(fixture, 1, 1));
    }
}

static void pruned_slots_are_used_again_without_growing(void **state)
{
    struct fixture *fixture = *state;
    char path[512];
    for (uint64_t step = 1; step <= 100; step++) {
        assert_int_equal(0, write_step(fixture, 1, step, 1, 0, NULL));
        if (step % 4 == 0)
            ampd_vote_journal_prune(fixture->journal, 1, step - 1);
    }
    assert_int_equal(AMP_ENOTFOUND, read_step(fixture, 1, 99));
    assert_int_equal(0, read_step(fixture, 1, 100));
    slot_file(fixture, 5, path, sizeof path);
    assert_int_equal(-1, access(path, F_OK));
    storage_faults_clear();
    assert_int_equal(0, write_step(fixture, 1, 101, 1, 0, NULL));
    assert_int_equal(1, storage_faults.fsyncs); /* the data alone: no directory, no size */
    ampd_vote_journal_prune(fixture->journal, 2, 0);
    assert_int_equal(AMP_ENOTFOUND, read_step(fixture, 1, 100));
    assert_int_equal(AMP_ENOTFOUND, read_step(fixture, 1, 101));
}

static void a_journal_without_room_waits_for_a_checkpoint(void **state)
{
    struct fixture *fixture = *state;
    struct amp_error error = {0};
    for (uint64_t step = 1; step <= AMPD_VOTE_JOURNAL_SLOTS_MAX; step++)
        assert_int_equal(0, write_step(fixture, 1, step, 1, 0, NULL));
    assert_int_equal(AMP_EEXHAUSTED, write_step(fixture, 1, 1000, 1, 0, &error));
    assert_string_equal("JOURNAL_FULL", error.reason);
    assert_non_null(strstr(error.text, "checkpoint"));
    ampd_vote_journal_prune(fixture->journal, 1, 3);
    assert_int_equal(0, write_step(fixture, 1, 1000, 1, 0, NULL));
}

static void slots_that_only_a_long_checkpoint_needed_are_removed_once_it_is_written(void **state)
{
    struct fixture *fixture = *state;
    char last_kept[600], first_removed[600];
    const uint64_t steps = AMPD_VOTE_JOURNAL_SLOTS_KEPT + 3;
    slot_file(fixture, AMPD_VOTE_JOURNAL_SLOTS_KEPT - 1, last_kept, sizeof last_kept);
    slot_file(fixture, AMPD_VOTE_JOURNAL_SLOTS_KEPT, first_removed, sizeof first_removed);
    for (int again = 0; again < 2; again++) { /* a slot that was removed is made again */
        for (uint64_t step = 1; step <= steps; step++)
            assert_int_equal(0, write_step(fixture, (uint64_t)again + 1, step, 1, 0, NULL));
        ampd_vote_journal_prune(fixture->journal, (uint64_t)again + 1, AMPD_VOTE_JOURNAL_SLOTS_KEPT);
        assert_int_equal(0, access(first_removed, F_OK)); /* still needed */
        reopen(fixture);
        assert_int_equal(0, read_step(fixture, (uint64_t)again + 1, steps));
        ampd_vote_journal_prune(fixture->journal, (uint64_t)again + 1, steps);
        assert_int_equal(-1, access(first_removed, F_OK));
        assert_int_equal(0, access(last_kept, F_OK));
        assert_int_equal(AMP_ENOTFOUND, read_step(fixture, (uint64_t)again + 1, steps));
    }
}

static void a_full_disk_writes_nothing_and_can_be_tried_again(void **state)
{
    struct fixture *fixture = *state;
    struct amp_error error = {0};
    for (unsigned at = 1;; at++) {
        storage_faults_clear();
        storage_faults.write_errno = at % 2 == 0 ? ENOSPC : EDQUOT;
        storage_faults.fail_write_at = at;
        int rc = write_step(fixture, 1, 1, 1, 0, &error);
        storage_faults_clear();
        if (rc == 0)
            break;
        assert_int_equal(AMP_EEXHAUSTED, rc);
        assert_string_equal("NO_SPACE", error.reason);
        reopen(fixture);
        assert_int_equal(AMP_ENOTFOUND, read_step(fixture, 1, 1));
    }
    assert_int_equal(0, read_step(fixture, 1, 1));
}

static int write_small(struct fixture *fixture, uint64_t step)
{
    const struct ampd_vote_journal_record record = {.key = {1, step, 1, 0}, .notes = (uint8_t *)"x", .notes_size = 1};
    return ampd_vote_journal_write(fixture->journal, &record, NULL);
}

static off_t slot_size(const struct fixture *fixture, unsigned slot)
{
    char path[512];
    struct stat info;
    slot_file(fixture, slot, path, sizeof path);
    assert_int_equal(0, stat(path, &info));
    return info.st_size;
}

/* ext4 leaves in a file what there was before the disk was full. */
static void a_slot_that_finds_no_room_keeps_none_of_what_it_got(void **state)
{
    struct fixture *fixture = *state;
    struct amp_error error = {0};
    storage_faults.scarce_room = 1;
    assert_int_equal(AMP_EEXHAUSTED, write_step(fixture, 1, 1, 1, 0, &error));
    assert_string_equal("NO_SPACE", error.reason);
    assert_int_equal(0, slot_size(fixture, 0));
    storage_faults_clear();
    assert_int_equal(0, write_small(fixture, 1));
    off_t small = slot_size(fixture, 0);
    ampd_vote_journal_prune(fixture->journal, 1, 1);
    storage_faults.scarce_room = 1;
    assert_int_equal(AMP_EEXHAUSTED, write_step(fixture, 1, 2, 1, 0, NULL));
    assert_int_equal(small, slot_size(fixture, 0));
    storage_faults_clear();
    assert_int_equal(0, write_step(fixture, 1, 2, 1, 0, NULL));
    assert_int_equal(0, read_step(fixture, 1, 2));
}

static void a_free_slot_with_room_is_found_after_a_restart(void **state)
{
    struct fixture *fixture = *state;
    assert_int_equal(0, write_small(fixture, 1));
    assert_int_equal(0, write_step(fixture, 1, 2, 1, 0, NULL));
    assert_int_equal(0, write_step(fixture, 1, 3, 1, 0, NULL));
    reopen(fixture);
    ampd_vote_journal_prune(fixture->journal, 1, 2);
    off_t small = slot_size(fixture, 0), large = slot_size(fixture, 1);
    assert_int_equal(0, write_step(fixture, 1, 4, 1, 0, NULL));
    assert_int_equal(small, slot_size(fixture, 0));
    assert_int_equal(large, slot_size(fixture, 1));
    assert_int_equal(0, read_step(fixture, 1, 4));
}

static void without_descriptors_nothing_is_written_and_it_can_be_tried_again(void **state)
{
    struct fixture *fixture = *state;
    struct amp_error error = {0};
    for (uint64_t step = 1; step <= 2; step++) { /* the first one makes directories, the second a slot */
        storage_fixture_no_descriptors(true);
        int rc = write_step(fixture, 1, step, 1, 0, &error);
        storage_fixture_no_descriptors(false);
        assert_int_equal(AMP_EEXHAUSTED, rc);
        assert_string_equal("NO_DESCRIPTORS", error.reason);
        assert_non_null(strstr(error.text, "ulimit -n"));
        assert_int_equal(0, write_step(fixture, 1, step, 1, 0, NULL));
        assert_int_equal(0, read_step(fixture, 1, step));
    }
}

static void a_failed_fsync_is_an_error_wherever_it_is(void **state)
{
    struct fixture *fixture = *state;
    struct amp_error error = {0};
    unsigned at = 1;
    for (;; at++) {
        storage_faults_clear();
        storage_faults.fail_fsync_at = at;
        int rc = write_step(fixture, 1, at, 1, 0, &error);
        storage_faults_clear();
        if (rc == 0)
            break;
        assert_int_equal(AMP_EIO, rc);
        assert_string_equal("STORE_FAILED", error.reason);
        reopen(fixture);
        storage_fixture_remove(fixture->directory); /* each sync of the first write is to be met */
        assert_int_equal(0, mkdir(fixture->directory, 0700));
        reopen(fixture);
    }
    assert_true(at > 4); /* three directories, the data, the name */
}

/* Two tries of a step: neither may be taken for none, nor the older one for the newest. */
static void a_record_that_cannot_be_read_is_an_error_and_stays(void **state)
{
    struct fixture *fixture = *state;
    assert_int_equal(0, write_step(fixture, 1, 1, 1, 1, NULL));
    assert_int_equal(0, write_step(fixture, 1, 1, 1, 2, NULL));
    unsigned reads = 1;
    for (;; reads++) {
        struct amp_error error = {0};
        struct ampd_vote_journal_record record;
        storage_faults_clear();
        storage_faults.fail_read_at = reads;
        int rc = ampd_vote_journal_read(fixture->journal, 1, 1, fixture->back, ELEMENTS, &record, &error);
        storage_faults_clear();
        if (rc == 0) {
            free(record.notes);
            break;
        }
        assert_int_equal(AMP_EIO, rc);
        assert_non_null(strstr(error.text, "cannot read"));
        assert_non_null(strstr(error.text, "slot-001"));
        assert_int_equal(2, read_step(fixture, 1, 1));
    }
    assert_true(reads > 3); /* head, notes, g */
}

/* Whose record it is nobody knows then, so that nothing may be written over it. */
static void a_journal_with_a_head_that_cannot_be_read_is_not_opened(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_vote_journal *journal;
    struct amp_error error = {0};
    assert_int_equal(0, write_step(fixture, 1, 1, 1, 0, NULL));
    assert_int_equal(0, write_step(fixture, 1, 2, 1, 0, NULL));
    for (unsigned at = 1; at <= 2; at++) {
        storage_faults_clear();
        storage_faults.fail_read_at = at;
        assert_int_equal(AMP_EIO, ampd_vote_journal_open(&fixture->place, &journal, &error));
        assert_null(journal);
        assert_non_null(strstr(error.text, at == 1 ? "slot-000" : "slot-001"));
    }
    storage_faults_clear();
    reopen(fixture);
    assert_int_equal(0, write_step(fixture, 1, 3, 1, 0, NULL));
    for (uint64_t step = 1; step <= 3; step++)
        assert_int_equal(0, read_step(fixture, 1, step));
}

/* With the hash that it ought to have. */
static void a_head_that_no_record_has_is_none(void **state)
{
    struct fixture *fixture = *state;
    static const struct {
        size_t at, size;
        uint64_t value;
    } changes[] = {{8, 4, 2}, {40, 8, AMPD_VOTE_JOURNAL_NOTES_MAX + 1}, {48, 8, AMPD_ELEMENTS_MAX + 1}};
    char path[512];
    uint8_t good[88], bad[sizeof good];
    XXH128_canonical_t own;
    assert_int_equal(0, write_step(fixture, 1, 1, 1, 0, NULL));
    slot_file(fixture, 0, path, sizeof path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(sizeof good, pread(fd, good, sizeof good, 0));
    XXH128_canonicalFromHash(&own, XXH3_128bits(good, 72));
    assert_memory_equal(good + 72, own.digest, 16); /* version at 8, sizes at 40 and 48, its hash at 72 */
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        memcpy(bad, good, sizeof bad);
        memcpy(bad + changes[i].at, &changes[i].value, changes[i].size);
        XXH128_canonicalFromHash(&own, XXH3_128bits(bad, 72));
        memcpy(bad + 72, own.digest, 16);
        assert_int_equal(sizeof bad, pwrite(fd, bad, sizeof bad, 0));
        reopen(fixture);
        assert_int_equal(AMP_ENOTFOUND, read_step(fixture, 1, 1));
    }
    assert_int_equal(sizeof good, pwrite(fd, good, sizeof good, 0));
    assert_int_equal(0, close(fd));
    reopen(fixture);
    assert_int_equal(0, read_step(fixture, 1, 1));
}

static void a_record_of_another_size_is_refused(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_vote_journal_record record;
    assert_int_equal(0, write_step(fixture, 1, 1, 1, 0, NULL));
    assert_int_equal(AMP_EDATALOSS,
                     ampd_vote_journal_read(fixture->journal, 1, 1, fixture->back, ELEMENTS - 1, &record, NULL));
    record = (struct ampd_vote_journal_record){.notes_size = AMPD_VOTE_JOURNAL_NOTES_MAX + 1};
    assert_int_equal(AMP_EINVAL, ampd_vote_journal_write(fixture->journal, &record, NULL));
}

static void a_name_that_is_no_directory_is_refused(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_vote_journal *journal;
    struct ampd_checkpoint_path place = {fixture->directory, "../x", 0, 1};
    assert_int_equal(AMP_EINVAL, ampd_vote_journal_open(&place, &journal, NULL));
    assert_null(journal);
}

static void a_deleted_model_leaves_no_journal(void **state)
{
    struct fixture *fixture = *state;
    char path[512];
    assert_int_equal(0, ampd_vote_journal_remove(fixture->directory, "model", NULL)); /* there is none */
    assert_int_equal(0, write_step(fixture, 1, 1, 1, 0, NULL));
    (void)snprintf(path, sizeof path, "%s/models/model", fixture->directory);
    assert_int_equal(0, access(path, F_OK));
    assert_int_equal(0, ampd_vote_journal_remove(fixture->directory, "model", NULL));
    assert_int_equal(-1, access(path, F_OK)); /* nor its directory, unless checkpoints are there, too */
    reopen(fixture);
    assert_int_equal(0, write_step(fixture, 1, 1, 1, 0, NULL));
    (void)snprintf(path, sizeof path, "%s/models/model/checkpoints", fixture->directory);
    assert_int_equal(0, mkdir(path, 0700));
    assert_int_equal(0, ampd_vote_journal_remove(fixture->directory, "model", NULL));
    assert_int_equal(0, access(path, F_OK));
    assert_int_equal(AMP_EINVAL, ampd_vote_journal_remove(fixture->directory, "..", NULL));
}

static bool is_there(const struct ampd_checkpoint_path *place)
{
    bool found;
    assert_int_equal(0, ampd_vote_journal_find(place, &found, NULL));
    return found;
}

static void a_journal_is_there_from_when_it_was_made_until_the_model_is_deleted(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_checkpoint_path other = fixture->place, wrong = {fixture->directory, "../x", 0, 1};
    other.shard = 0; /* of the same model, which has none here */
    assert_false(is_there(&fixture->place));
    storage_faults.fail_fsync_at = 1;
    assert_int_equal(AMP_EIO, ampd_vote_journal_make(&fixture->place, NULL));
    storage_faults_clear();
    assert_int_equal(0, ampd_vote_journal_make(&fixture->place, NULL));
    assert_int_equal(0, ampd_vote_journal_make(&fixture->place, NULL)); /* it was there */
    assert_true(is_there(&fixture->place));
    assert_false(is_there(&other));
    assert_int_equal(0, ampd_vote_journal_remove(fixture->directory, "model", NULL));
    assert_false(is_there(&fixture->place));
    assert_int_equal(AMP_EINVAL, ampd_vote_journal_make(&wrong, NULL));
}

static void a_journal_that_cannot_be_looked_for_is_not_called_missing(void **state)
{
    struct fixture *fixture = *state;
    struct amp_error error = {0};
    char path[512];
    bool found = true;
    (void)snprintf(path, sizeof path, "%s/models", fixture->directory);
    assert_int_equal(0, close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600))); /* no directory */
    assert_int_equal(AMP_EIO, ampd_vote_journal_find(&fixture->place, &found, &error));
    assert_false(found);
    assert_non_null(strstr(error.text, "shard-1-of-2"));
}

/* What a start needs to replay: the rows of the epoch from the newest checkpoint's step on. */
static void a_store_gives_the_rows_after_the_checkpoint(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store;
    struct ampd_model_record *records;
    size_t count;
    struct ampd_model_spec spec = storage_fixture_spec("m");
    struct ampd_epoch_record epoch = storage_fixture_epoch(1, 0, 0);
    struct ampd_step_row first = storage_fixture_first_row(&epoch);
    struct ampd_checkpoint_record checkpoint = {.epoch = 1, .step = 3, .file = "f"};
    spec.durability = AMPD_DURABILITY_STEP;
    for (int sqlite = 0; sqlite < 2; sqlite++) {
        assert_int_equal(0, sqlite ? ampd_store_sqlite_open(fixture->directory, &store, NULL)
                                   : ampd_store_memory_open(&store, NULL));
        assert_int_equal(0, ampd_store_put_model(store, &spec, 1, NULL));
        assert_int_equal(0, ampd_store_put_epoch(store, "m", &epoch, &first, NULL));
        for (uint64_t step = 1; step <= 6; step++) {
            struct ampd_step_row row = storage_fixture_step(1, step, step == 5);
            assert_int_equal(0, ampd_store_put_verdict(store, "m", &row, true, NULL));
        }
        assert_int_equal(0, ampd_store_load(store, &records, &count, NULL));
        assert_int_equal(0, records[0].rows_count); /* nothing to begin from */
        ampd_model_records_free(records, count);
        assert_int_equal(0, ampd_store_put_checkpoint(store, "m", &checkpoint, NULL));
        assert_int_equal(0, ampd_store_load(store, &records, &count, NULL));
        assert_int_equal(4, records[0].rows_count);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(3 + i, records[0].rows[i].step);
        assert_int_equal(AMPD_VERDICT_SKIPPED_OVERFLOW, records[0].rows[2].verdict);
        assert_int_equal(2, records[0].rows[2].rows_count);
        ampd_model_records_free(records, count);
        ampd_store_close(store);
    }
    ampd_model_spec_clear(&spec);
}

/* Stores a step with actions behind it. */
static void put_step_and_acts(struct ampd_store *store, uint64_t step, uint32_t acts)
{
    struct ampd_step_row row = storage_fixture_step(1, step, false);
    assert_int_equal(0, ampd_store_put_verdict(store, "m", &row, false, NULL));
    row.kind = AMPD_ROW_SET;
    for (uint32_t i = 0; i < acts; i++) {
        row.after.scaler.scale_id++; /* else it is the action before, which has come again */
        assert_int_equal(0, ampd_store_put_verdict(store, "m", &row, false, NULL));
    }
}

static void steps_after_the_checkpoint_whose_rows_are_more_than_a_page_are_all_given(void **state)
{
    enum { STEPS = 120, ACTS = 36 };
    struct fixture *fixture = *state;
    struct ampd_store *store;
    struct ampd_model_record *records;
    size_t count;
    struct ampd_model_spec spec = storage_fixture_spec("m");
    struct ampd_epoch_record epoch = storage_fixture_epoch(1, 0, 0);
    struct ampd_step_row first = storage_fixture_first_row(&epoch);
    struct ampd_checkpoint_record checkpoint = {.epoch = 1, .step = 1, .file = "f"};
    assert_true(STEPS * (1 + ACTS) > AMPD_STORE_PAGE_MAX);
    spec.durability = AMPD_DURABILITY_STEP;
    for (int sqlite = 0; sqlite < 2; sqlite++) {
        assert_int_equal(0, sqlite ? ampd_store_sqlite_open(fixture->directory, &store, NULL)
                                   : ampd_store_memory_open(&store, NULL));
        assert_int_equal(0, ampd_store_put_model(store, &spec, 1, NULL));
        assert_int_equal(0, ampd_store_put_epoch(store, "m", &epoch, &first, NULL));
        for (uint64_t step = 1; step <= STEPS; step++)
            put_step_and_acts(store, step, ACTS);
        assert_int_equal(0, ampd_store_put_checkpoint(store, "m", &checkpoint, NULL));
        assert_int_equal(0, ampd_store_load(store, &records, &count, NULL));
        assert_int_equal(STEPS + 2 * ACTS, records[0].rows_count); /* actions of the last two steps alone */
        const struct ampd_step_row *row = records[0].rows;
        for (uint64_t step = 1; step <= STEPS; step++) {
            assert_true(row->step == step && row->kind == AMPD_ROW_STEP);
            row++;
            for (uint32_t i = 0; i < ACTS && step + 1 >= STEPS; i++, row++)
                assert_true(row->step == step && row->kind == AMPD_ROW_SET);
        }
        ampd_model_records_free(records, count);
        ampd_store_close(store);
    }
    ampd_model_spec_clear(&spec);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(records_come_back_after_a_restart),
        TEST(a_record_without_a_gradient_says_so),
        TEST(a_record_without_a_gradient_is_found_on_a_disk_that_has_no_fallocate),
        TEST(the_newest_try_counts_and_the_older_one_is_kept_until_it_is_synced),
        TEST(a_torn_record_is_none_and_the_older_try_is_found),
        TEST(pruned_slots_are_used_again_without_growing),
        TEST(a_journal_without_room_waits_for_a_checkpoint),
        TEST(slots_that_only_a_long_checkpoint_needed_are_removed_once_it_is_written),
        TEST(a_full_disk_writes_nothing_and_can_be_tried_again),
        TEST(a_slot_that_finds_no_room_keeps_none_of_what_it_got),
        TEST(a_free_slot_with_room_is_found_after_a_restart),
        TEST(without_descriptors_nothing_is_written_and_it_can_be_tried_again),
        TEST(a_failed_fsync_is_an_error_wherever_it_is),
        TEST(a_record_that_cannot_be_read_is_an_error_and_stays),
        TEST(a_journal_with_a_head_that_cannot_be_read_is_not_opened),
        TEST(a_head_that_no_record_has_is_none),
        TEST(a_record_of_another_size_is_refused),
        TEST(a_name_that_is_no_directory_is_refused),
        TEST(a_deleted_model_leaves_no_journal),
        TEST(a_journal_is_there_from_when_it_was_made_until_the_model_is_deleted),
        TEST(a_journal_that_cannot_be_looked_for_is_not_called_missing),
        TEST(a_store_gives_the_rows_after_the_checkpoint),
        TEST(steps_after_the_checkpoint_whose_rows_are_more_than_a_page_are_all_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
