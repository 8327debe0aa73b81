/* One call of storage's fails in one way: which of them are told, and as what, and which are got over. */
#include "storage/bulk_reader.h"
#include "storage/bulk_writer.h"
#include "storage/checkpoint.h"
#include "storage/checkpoint_remove.h"
#include "storage/checkpoint_writer.h"
#include "storage/checkpoint_files.h"
#include "storage/datadir.h"
#include "storage/vote_journal.h"
#include "storage/store.h"
#include "tests/faults/faults.h"
#include "tests/unit/storage_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>

#define COUNT(array) (sizeof array / sizeof *(array))
#define ELEMENTS     5000

static const uint64_t shape[] = {ELEMENTS};

struct fixture {
    char directory[256], path[300];
    struct ampd_checkpoint_path place;
    float values[ELEMENTS], back[3 * ELEMENTS];
};

/* ---- calls that faults.h does not know: the n-th (from 1) fails, 0 none ---- */

static unsigned fail_hash_at, fail_thread_at, fail_readdir_at;

static bool is_now(unsigned *at)
{
    return *at > 0 && --*at == 0;
}

XXH3_state_t *__real_XXH3_createState(void);
XXH3_state_t *__wrap_XXH3_createState(void);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg);
struct dirent *__real_readdir(DIR *dir);
struct dirent *__wrap_readdir(DIR *dir);

XXH3_state_t *__wrap_XXH3_createState(void)
{
    return is_now(&fail_hash_at) ? NULL : __real_XXH3_createState();
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg)
{
    return is_now(&fail_thread_at) ? EAGAIN : __real_pthread_create(thread, attributes, run, arg);
}

struct dirent *__wrap_readdir(DIR *dir)
{
    if (!is_now(&fail_readdir_at))
        return __real_readdir(dir);
    errno = EIO;
    return NULL;
}

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    (void)snprintf(fixture->directory, sizeof fixture->directory, "%s", storage_fixture_directory());
    (void)snprintf(fixture->path, sizeof fixture->path, "%s/file", fixture->directory);
    fixture->place = (struct ampd_checkpoint_path){fixture->directory, "m", 0, 1};
    for (int i = 0; i < ELEMENTS; i++)
        fixture->values[i] = (float)i;
    fail_hash_at = fail_thread_at = fail_readdir_at = 0;
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    (void)faults_disarm();
    storage_fixture_remove(fixture->directory);
    free(fixture);
    return 0;
}

static bool is_there(const struct fixture *fixture, const char *name)
{
    return access(storage_fixture_below(fixture->directory, name), F_OK) == 0;
}

static void make_directory(const struct fixture *fixture, const char *name)
{
    assert_int_equal(mkdir(storage_fixture_below(fixture->directory, name), 0700), 0);
}

static void make_file(const struct fixture *fixture, const char *name)
{
    FILE *file = fopen(storage_fixture_below(fixture->directory, name), "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
}

/* ---- large files ---- */

static void a_file_is_written_where_the_file_system_cannot_make_room_before(void **state)
{
    struct fixture *fixture = *state;
    static const int causes[] = {EOPNOTSUPP, ENOSYS, EINVAL};
    for (size_t i = 0; i < COUNT(causes); i++) {
        struct bulk_writer *writer;
        struct stat info;
        uint64_t taken;
        faults_arm(FAULTS_TRUNCATE, 1, false, causes[i]);
        assert_int_equal(bulk_writer_open(fixture->path, sizeof fixture->values, &writer, NULL), 0);
        assert_int_equal(faults_disarm(), 1);
        assert_int_equal(bulk_writer_put(writer, fixture->values, sizeof fixture->values, 0, &taken, NULL), 0);
        assert_int_equal(bulk_writer_flush(writer, NULL), 0);
        assert_int_equal(bulk_writer_close(writer), 0);
        assert_int_equal(stat(fixture->path, &info), 0);
        assert_int_equal(info.st_size, sizeof fixture->values);
    }
}

static void what_fails_before_the_first_byte_leaves_no_file(void **state)
{
    struct fixture *fixture = *state;
    static const struct {
        unsigned what, n;
        int cause, rc;
    } rows[] = {{FAULTS_TRUNCATE, 1, ENOSPC, AMP_EEXHAUSTED},
                {FAULTS_TRUNCATE, 1, EDQUOT, AMP_EEXHAUSTED},
                {FAULTS_TRUNCATE, 1, EIO, AMP_EIO},
                {FAULTS_OPEN, 1, ENFILE, AMP_EEXHAUSTED},
                {FAULTS_OPEN, 1, EACCES, AMP_EDENIED},
                {FAULTS_OURS, 1, 0, AMP_ENOMEM},  /* the writer */
                {FAULTS_OURS, 2, 0, AMP_ENOMEM}}; /* its windows */
    struct bulk_writer *writer;
    struct amp_error error;
    for (size_t i = 0; i < COUNT(rows); i++) {
        faults_arm(rows[i].what, rows[i].n, false, rows[i].cause);
        assert_int_equal(bulk_writer_open(fixture->path, sizeof fixture->values, &writer, &error), rows[i].rc);
        assert_int_equal(faults_disarm(), 1);
        assert_null(writer);
        assert_non_null(strstr(error.text, fixture->path));
        assert_false(is_there(fixture, "file"));
    }
    fail_thread_at = 1;
    assert_int_equal(bulk_writer_open(fixture->path, sizeof fixture->values, &writer, &error), AMP_ENOMEM);
    assert_false(is_there(fixture, "file"));
}

static void a_disk_that_takes_neither_direct_writes_nor_others_is_told(void **state)
{
    struct fixture *fixture = *state;
    struct bulk_writer *writer;
    struct amp_error error;
    uint64_t taken;
    assert_int_equal(bulk_writer_open(fixture->path, sizeof fixture->values, &writer, NULL), 0);
    faults_arm(FAULTS_WRITE, 1, true, EINVAL);
    assert_int_equal(bulk_writer_put(writer, fixture->values, sizeof fixture->values, 0, &taken, NULL), 0);
    assert_int_equal(bulk_writer_flush(writer, &error), AMP_EIO);
    assert_true(faults_disarm() > 0);
    assert_string_equal(error.reason, "STORE_FAILED");
    assert_int_equal(bulk_writer_close(writer), 0);
}

/* A file that is large enough for threads, of which the n-th and all later ones cannot be had. */
static void a_large_file_is_read_by_as_many_threads_as_there_can_be(void **state)
{
    struct fixture *fixture = *state;
    enum { LONGS = 1 << 20 };
    uint64_t *longs = malloc(LONGS * sizeof *longs);
    FILE *stream = fopen(fixture->path, "wb");
    for (uint64_t i = 0; i < LONGS; i++)
        longs[i] = i * i;
    assert_non_null(stream);
    assert_int_equal(fwrite(longs, sizeof *longs, LONGS, stream), LONGS);
    assert_int_equal(fclose(stream), 0);
    unsigned at = 0, refused = 1;
    for (; refused > 0; at++) {
        struct bulk_reader *reader;
        const uint8_t *data;
        fail_thread_at = at + 1;
        assert_int_equal(bulk_reader_open(fixture->path, &reader, NULL), 0);
        refused = fail_thread_at == 0;
        fail_thread_at = 0;
        for (uint64_t offset = 0, got; offset < LONGS * sizeof *longs; offset += got) {
            assert_int_equal(bulk_reader_get(reader, offset, LONGS * sizeof *longs - offset, &data, &got, NULL), 0);
            assert_memory_equal(data, (const uint8_t *)longs + offset, got);
        }
        bulk_reader_close(reader);
    }
    assert_true(at > 2);
    free(longs);
}

static void a_reader_without_memory_is_told(void **state)
{
    struct fixture *fixture = *state;
    static const long sizes[] = {1, 5 << 20};
    struct bulk_reader *reader;
    struct amp_error error;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        make_file(fixture, "file");
        assert_int_equal(truncate(fixture->path, sizes[i]), 0);
        for (unsigned n = 1; n <= 2; n++) { /* the reader, its windows */
            faults_arm(FAULTS_OURS, n, false, 0);
            assert_int_equal(bulk_reader_open(fixture->path, &reader, &error), AMP_ENOMEM);
            assert_int_equal(faults_disarm(), 1);
            assert_null(reader);
            assert_non_null(strstr(error.text, fixture->path));
        }
    }
}

/* ---- checkpoints ---- */

static int write_checkpoint(struct fixture *fixture, struct ampd_checkpoint_record *record, struct amp_error *error)
{
    const float *values = fixture->values;
    const struct ampd_checkpoint_tensor tensor = {"w", 1, shape, values, values, values, false, 0, 0};
    const struct ampd_checkpoint_state from = {.step = 1, .carry.scaler.scale = 2};
    return ampd_checkpoint_write(&fixture->place, &tensor, 1, &from, NULL, record, error);
}

static int read_checkpoint(struct fixture *fixture, const struct ampd_checkpoint_record *record,
                           struct amp_error *error)
{
    float *back = fixture->back;
    const struct ampd_checkpoint_target target = {"w",   1, shape, back, back + ELEMENTS, back + 2 * ELEMENTS,
                                                  false, 0, 0};
    struct ampd_checkpoint_state to;
    int rc = ampd_checkpoint_read(fixture->directory, record->file, record->manifest, &target, 1, &to, error);
    if (rc == 0)
        ampd_checkpoint_state_clear(&to);
    return rc;
}

static void each_allocation_that_a_checkpoint_is_refused_is_told_as_memory(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_checkpoint_record record, made;
    struct amp_error error;
    unsigned n = 1;
    for (fail_hash_at = n; write_checkpoint(fixture, &record, &error) != 0; fail_hash_at = ++n) {
        assert_int_equal(error.code, AMP_ENOMEM);
        assert_false(is_there(fixture, "models/m/checkpoints/step-0000000001/shard-0-of-1.safetensors"));
    }
    assert_int_equal(n, 4); /* values and two moments */
    made = record;
    for (fail_hash_at = n = 1; read_checkpoint(fixture, &made, &error) != 0; fail_hash_at = ++n)
        assert_int_equal(error.code, AMP_ENOMEM);
    assert_int_equal(n, 4);
    fail_hash_at = 0;
    for (int reads = 0; reads < 2; reads++) {
        uint64_t failed = 1;
        for (n = 1; failed > 0; n++) {
            faults_arm(FAULTS_OURS, n, false, 0);
            int rc = reads ? read_checkpoint(fixture, &made, &error) : write_checkpoint(fixture, &record, &error);
            failed = faults_disarm();
            assert_true(rc == 0 || (failed == 1 && rc == AMP_ENOMEM && error.code == rc));
            assert_true(failed == 1 || rc == 0);
        }
        assert_true(n > 10);
    }
    assert_memory_equal(fixture->values, fixture->back, sizeof fixture->values);
}

static void a_quota_that_only_a_sync_finds_is_final(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_checkpoint_record record;
    struct amp_error error;
    faults_arm(FAULTS_SYNC, 1, false, EDQUOT);
    assert_int_equal(write_checkpoint(fixture, &record, &error), AMP_EIO);
    assert_int_equal(faults_disarm(), 1);
    assert_string_equal(error.reason, "STORE_FAILED");
    assert_non_null(strstr(error.text, strerror(EIO)));
}

/* Its name could not be synced; in a shared directory the process that comes next may have written it again by then. */
static void a_file_that_is_given_up_behind_its_rename_is_removed_unless_it_is_another_one(void **state)
{
    struct fixture *fixture = *state;
    static const char file[] = "models/m/checkpoints/step-0000000001/shard-0-of-1.safetensors";
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", fixture->directory, file);
    for (int another = 0; another < 2; another++) {
        const struct ampd_checkpoint_tensor tensor = {"w", 1, shape, fixture->values, NULL, NULL, false, 0, 0};
        const struct ampd_checkpoint_state content = {.step = 1};
        struct ampd_checkpoint_writer *writer;
        struct ampd_checkpoint_record record;
        assert_int_equal(ampd_checkpoint_begin(&fixture->place, &tensor, 1, &content, &writer, NULL), 0);
        assert_int_equal(ampd_checkpoint_put(writer, 0, 0, ELEMENTS, fixture->values, NULL, NULL, NULL), 0);
        faults_arm(FAULTS_OPEN, 1, false, ENFILE); /* of the directory */
        assert_int_equal(ampd_checkpoint_end(writer, &record, NULL), AMP_EEXHAUSTED);
        assert_int_equal(faults_disarm(), 1);
        assert_true(is_there(fixture, file));
        if (another != 0) {
            make_file(fixture, "file");
            assert_int_equal(rename(fixture->path, path), 0);
        }
        ampd_checkpoint_abandon(writer);
        assert_int_equal(is_there(fixture, file), another);
    }
}

static void names_that_do_not_fit_are_refused(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_checkpoint_record record;
    char file[200], longest[CHECKPOINT_PATH_MAX];
    assert_int_equal(ampd_checkpoint_file(&fixture->place, 1, file, 20, NULL), AMP_EINVAL);
    assert_int_equal(ampd_checkpoint_file(&fixture->place, 1, file, sizeof file, NULL), 0);
    size_t fits = CHECKPOINT_PATH_MAX - strlen(file) - 2; /* a slash and the final zero */
    memset(longest, 'd', fits);
    longest[fits] = 0;
    fixture->place.data_dir = longest;
    assert_int_equal(ampd_checkpoint_file(&fixture->place, 1, file, sizeof file, NULL), 0);
    assert_int_equal(write_checkpoint(fixture, &record, NULL), AMP_EINVAL); /* the temporary name is longer */
    longest[fits++] = 'd';
    longest[fits] = 0;
    assert_int_equal(ampd_checkpoint_file(&fixture->place, 1, file, sizeof file, NULL), AMP_EINVAL);
}

static void a_directory_that_another_removes_or_fills_meanwhile_is_no_error(void **state)
{
    struct fixture *fixture = *state;
    static const struct {
        int cause, rc;
    } rows[] = {{ENOENT, 0}, {ENOTEMPTY, 0}, {EEXIST, 0}, {EACCES, AMP_EIO}};
    struct ampd_checkpoint_record record;
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(write_checkpoint(fixture, &record, NULL), 0);
        faults_arm(FAULTS_UNLINK, 2, false, rows[i].cause); /* the file, then its directory */
        assert_int_equal(ampd_checkpoint_remove(fixture->directory, record.file, NULL), rows[i].rc);
        assert_int_equal(faults_disarm(), 1);
        assert_false(is_there(fixture, record.file));
        faults_arm(FAULTS_UNLINK, 1, false, rows[i].cause); /* a sweep finds it empty */
        assert_int_equal(ampd_checkpoint_sweep(&fixture->place, NULL, 0, UINT64_MAX, NULL), rows[i].rc);
        assert_int_equal(faults_disarm(), 1);
        assert_int_equal(ampd_checkpoint_sweep(&fixture->place, NULL, 0, UINT64_MAX, NULL), 0);
        assert_false(is_there(fixture, "models/m/checkpoints/step-0000000001"));
    }
}

static void a_sweep_leaves_names_alone_that_are_no_steps(void **state)
{
    struct fixture *fixture = *state;
    static const char *const names[] = {"models",
                                        "models/m",
                                        "models/m/checkpoints",
                                        "models/m/checkpoints/step-1",
                                        "models/m/checkpoints/step-0000000001x",
                                        "models/m/checkpoints/other-0000000001"};
    for (size_t i = 0; i < COUNT(names); i++)
        make_directory(fixture, names[i]);
    assert_int_equal(ampd_checkpoint_sweep(&fixture->place, NULL, 0, UINT64_MAX, NULL), 0);
    for (size_t i = 0; i < COUNT(names); i++)
        assert_true(is_there(fixture, names[i]));
}

static int took_any(void *arg, const char *model)
{
    *(bool *)arg = true;
    return 0;
}

static int any(const struct fixture *fixture, bool *found, struct amp_error *error)
{
    char file[200];
    int rc = ampd_checkpoint_any(&fixture->place, file, sizeof file, error);
    *found = file[0] != 0;
    return rc;
}

static int marked(const struct fixture *fixture, bool *found, struct amp_error *error)
{
    return checkpoint_is_marked(&fixture->place, found, error);
}

static int each_deleted(const struct fixture *fixture, bool *found, struct amp_error *error)
{
    *found = false;
    return ampd_checkpoint_each_deleted(&fixture->place, found, error, took_any);
}

static int sweep(const struct fixture *fixture, bool *found, struct amp_error *error)
{
    int rc = ampd_checkpoint_sweep(&fixture->place, NULL, 0, UINT64_MAX, error);
    *found = !is_there(fixture, "models/m/checkpoints/step-0000000001");
    return rc;
}

static int remove_model(const struct fixture *fixture, bool *found, struct amp_error *error)
{
    int rc = ampd_checkpoint_remove_model(&fixture->place, error);
    *found = !is_there(fixture, "models/m/checkpoints/step-0000000001") &&
             !is_there(fixture, "models/m/shard-0-of-1.deleted");
    return rc;
}

static int remove_journal(const struct fixture *fixture, bool *found, struct amp_error *error)
{
    int rc = ampd_vote_journal_remove(fixture->directory, "m", error);
    *found = !is_there(fixture, "models/m/journal/shard-0-of-1");
    return rc;
}

/* What a walk has not found for that, it must not take for missing. */
static void a_directory_that_cannot_be_read_has_not_ended(void **state)
{
    struct fixture *fixture = *state;
    static const struct {
        int (*walk_cb)(const struct fixture *fixture, bool *found, struct amp_error *error);
        bool is_marked, removes;
    } rows[] = {{any, false, false}, {marked, true, false},      {each_deleted, true, false},
                {sweep, true, true}, {remove_model, true, true}, {remove_journal, true, true}};
    struct ampd_checkpoint_record record;
    for (size_t i = 0; i < COUNT(rows); i++) {
        unsigned n = 1;
        for (;; n++) {
            struct amp_error error = {0};
            bool found;
            assert_int_equal(write_checkpoint(fixture, &record, NULL), 0);
            assert_int_equal(ampd_vote_journal_make(&fixture->place, NULL), 0);
            if (rows[i].is_marked)
                assert_int_equal(ampd_checkpoint_mark_deleted(&fixture->place, NULL), 0);
            fail_readdir_at = n;
            int rc = rows[i].walk_cb(fixture, &found, &error);
            bool failed = fail_readdir_at == 0;
            fail_readdir_at = 0;
            if (!failed) {
                assert_int_equal(rc, 0);
                assert_true(found);
                break;
            }
            if (rc == 0 && !rows[i].removes && found)
                continue; /* it had what it looked for already */
            assert_int_equal(rc, AMP_EIO);
            assert_non_null(strstr(error.text, "cannot read"));
            assert_int_equal(ampd_checkpoint_only_stays(rc, &error), rows[i].removes);
        }
        assert_true(n > 2);
    }
}

/* ---- the journal ---- */

static int write_vote(const struct fixture *fixture, struct ampd_vote_journal *journal, uint64_t step,
                      uint64_t elements, struct amp_error *error)
{
    const struct ampd_vote_journal_record record = {.key = {1, step, 1, 0},
                                                    .notes = (uint8_t *)"vote",
                                                    .notes_size = 4,
                                                    .g = (float *)(uintptr_t)fixture->values,
                                                    .elements = elements};
    return ampd_vote_journal_write(journal, &record, error);
}

static int read_vote(struct fixture *fixture, struct ampd_vote_journal *journal, uint64_t step)
{
    struct ampd_vote_journal_record record;
    int rc = ampd_vote_journal_read(journal, 1, step, fixture->back, ELEMENTS, &record, NULL);
    if (rc == 0)
        free(record.notes);
    return rc;
}

static void a_vote_is_kept_where_the_file_system_cannot_make_room_before(void **state)
{
    struct fixture *fixture = *state;
    static const struct {
        int cause, rc;
    } rows[] = {{EOPNOTSUPP, 0},          {ENOSYS, 0},   {EINVAL, 0}, {ENOSPC, AMP_EEXHAUSTED},
                {EDQUOT, AMP_EEXHAUSTED}, {EIO, AMP_EIO}};
    struct ampd_vote_journal *journal;
    struct amp_error error;
    assert_int_equal(ampd_vote_journal_open(&fixture->place, &journal, NULL), 0);
    for (size_t i = 0; i < COUNT(rows); i++) {
        faults_arm(FAULTS_TRUNCATE, 1, false, rows[i].cause);
        assert_int_equal(write_vote(fixture, journal, i, ELEMENTS, &error), rows[i].rc);
        assert_int_equal(faults_disarm(), 1);
        if (rows[i].rc != 0)
            assert_non_null(strstr(error.text, "cannot make room"));
        assert_int_equal(read_vote(fixture, journal, i), rows[i].rc == 0 ? 0 : AMP_ENOTFOUND);
    }
    ampd_vote_journal_close(journal);
}

static void a_vote_without_memory_for_its_hash_is_told_and_can_be_tried_again(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_vote_journal *journal;
    assert_int_equal(ampd_vote_journal_open(&fixture->place, &journal, NULL), 0);
    fail_hash_at = 1;
    assert_int_equal(write_vote(fixture, journal, 1, ELEMENTS, NULL), AMP_ENOMEM);
    assert_int_equal(write_vote(fixture, journal, 1, ELEMENTS, NULL), 0);
    fail_hash_at = 1;
    assert_int_equal(read_vote(fixture, journal, 1), AMP_ENOMEM);
    assert_int_equal(read_vote(fixture, journal, 1), 0);
    ampd_vote_journal_close(journal);
}

static void of_a_vote_whose_sync_and_close_fail_the_sync_is_told(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_vote_journal *journal;
    struct amp_error error;
    assert_int_equal(ampd_vote_journal_open(&fixture->place, &journal, NULL), 0);
    assert_int_equal(write_vote(fixture, journal, 1, ELEMENTS, NULL), 0);
    ampd_vote_journal_prune(journal, 1, 1); /* its slot is there: the next sync is the data's */
    faults_arm(FAULTS_SYNC | FAULTS_CLOSE, 1, true, EIO);
    assert_int_equal(write_vote(fixture, journal, 2, ELEMENTS, &error), AMP_EIO);
    assert_int_equal(faults_disarm(), 2);
    assert_non_null(strstr(error.text, "cannot fsync"));
    ampd_vote_journal_close(journal);
}

static void a_slot_that_is_too_small_is_passed_over_for_one_that_is_not(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_vote_journal *journal;
    struct stat small, large;
    assert_int_equal(ampd_vote_journal_open(&fixture->place, &journal, NULL), 0);
    assert_int_equal(write_vote(fixture, journal, 1, 1, NULL), 0);
    assert_int_equal(write_vote(fixture, journal, 2, ELEMENTS, NULL), 0);
    ampd_vote_journal_prune(journal, 1, 2);
    faults_arm(FAULTS_TRUNCATE, 1, true, EIO); /* no room is made */
    assert_int_equal(write_vote(fixture, journal, 3, ELEMENTS, NULL), 0);
    assert_int_equal(faults_disarm(), 0);
    assert_int_equal(read_vote(fixture, journal, 3), 0);
    assert_int_equal(stat(storage_fixture_below(fixture->directory, "models/m/journal/shard-0-of-1/slot-000"), &small),
                     0);
    assert_int_equal(stat(storage_fixture_below(fixture->directory, "models/m/journal/shard-0-of-1/slot-001"), &large),
                     0);
    assert_true(small.st_size < large.st_size);
    ampd_vote_journal_close(journal);
}

/* ---- the data directory ---- */

static void what_a_directory_fails_by_says_whether_the_path_is_wrong(void **state)
{
    struct fixture *fixture = *state;
    static const struct {
        int cause, rc;
    } rows[] = {{EACCES, AMP_EINVAL}, {EPERM, AMP_EINVAL},      {ENOENT, AMP_EINVAL},     {ENOTDIR, AMP_EINVAL},
                {EROFS, AMP_EINVAL},  {ENOSPC, AMP_EEXHAUSTED}, {EDQUOT, AMP_EEXHAUSTED}, {EIO, AMP_EIO}};
    struct amp_error error;
    for (size_t i = 0; i < COUNT(rows); i++) {
        faults_arm(FAULTS_MKDIR, 1, false, rows[i].cause);
        assert_int_equal(ampd_datadir_make(fixture->path, "directory of snapshots", &error), rows[i].rc);
        assert_int_equal(faults_disarm(), 1);
        assert_non_null(strstr(error.text, "cannot create directory of snapshots"));
        assert_false(is_there(fixture, "file"));
        faults_arm(FAULTS_SYNC, 1, false, rows[i].cause); /* its name is made durable */
        assert_int_equal(ampd_datadir_make(fixture->path, "directory of snapshots", &error), rows[i].rc);
        assert_int_equal(faults_disarm(), 1);
        assert_int_equal(rmdir(fixture->path), 0);
        faults_arm(FAULTS_SYNC, 1, false, rows[i].cause);
        assert_int_equal(ampd_datadir_sync(fixture->directory, &error), rows[i].rc);
        assert_int_equal(faults_disarm(), 1);
    }
}

/* But for the pid in LOCK, which is a hint. */
static void each_write_and_sync_of_a_new_directory_that_fails_is_told(void **state)
{
    struct fixture *fixture = *state;
    static const unsigned classes[] = {FAULTS_WRITE, FAULTS_SYNC, FAULTS_TRUNCATE, FAULTS_OPEN};
    struct ampd_datadir dir;
    for (size_t i = 0; i < COUNT(classes); i++) {
        unsigned n = 1, silent = 0;
        for (;; n++) {
            faults_arm(classes[i], n, false, EIO);
            int rc = ampd_datadir_open(&dir, fixture->path, NULL);
            uint64_t failed = faults_disarm();
            ampd_datadir_close(&dir);
            storage_fixture_remove(fixture->path);
            if (failed == 0)
                break;
            silent += rc == 0;
            assert_true(rc == 0 || rc == AMP_EIO);
        }
        assert_true(n > 2);
        assert_int_equal(silent, classes[i] == FAULTS_WRITE || classes[i] == FAULTS_TRUNCATE);
    }
}

static void a_version_that_cannot_be_read_is_not_written_over(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_datadir dir;
    assert_int_equal(ampd_datadir_open(&dir, fixture->path, NULL), 0);
    ampd_datadir_close(&dir);
    FILE *file = fopen(storage_fixture_below(fixture->directory, "file/VERSION"), "w"); /* a newer ampd's */
    assert_non_null(file);
    assert_true(fputs("77\n", file) >= 0);
    assert_int_equal(fclose(file), 0);
    faults_arm(FAULTS_READ, 1, true, EIO);
    assert_int_equal(ampd_datadir_open(&dir, fixture->path, NULL), AMP_EINVAL);
    assert_int_equal(faults_disarm(), 2);
    assert_int_equal(ampd_datadir_open(&dir, fixture->path, NULL), AMP_EVERSION);
}

/* ---- the store ---- */

static void a_store_without_descriptors_can_be_opened_later(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store;
    struct amp_error error;
    unsigned n = 1;
    for (;; n++) {
        faults_arm(FAULTS_OPEN, n, true, ENFILE);
        int rc = ampd_store_sqlite_open(fixture->directory, &store, &error);
        if (faults_disarm() == 0)
            break;
        if (rc == 0)
            ampd_store_close(store); /* what it opens last is only to sync a name */
        else
            assert_int_equal(error.code, rc);
        if (n == 3) /* SQLite's own open, after that of the log and that which made the file */
            assert_string_equal(error.reason, "NO_DESCRIPTORS");
    }
    assert_true(n > 3);
    ampd_store_close(store);
}

static void fill_store(struct ampd_store *store)
{
    struct ampd_model_spec spec = storage_fixture_spec("m");
    const struct ampd_epoch_record epoch = storage_fixture_epoch(1, 0, 0);
    const struct ampd_step_row first = storage_fixture_first_row(&epoch);
    const struct ampd_worker_record worker = {.name = "w", .incarnation = {1, 1}};
    const struct ampd_checkpoint_record checkpoint = {.epoch = 1, .step = 1, .file = "f"};
    const struct ampd_fence fence = {.counter = 7};
    spec.durability = AMPD_DURABILITY_STEP;
    assert_int_equal(ampd_store_put_model(store, &spec, 1, NULL), 0);
    assert_int_equal(ampd_store_put_epoch(store, "m", &epoch, &first, NULL), 0);
    for (uint64_t step = 1; step <= 3; step++) {
        const struct ampd_step_row row = storage_fixture_step(1, step, step == 2);
        assert_int_equal(ampd_store_put_verdict(store, "m", &row, false, NULL), 0);
    }
    assert_int_equal(ampd_store_put_worker(store, "m", &worker, NULL), 0);
    assert_int_equal(ampd_store_put_checkpoint(store, "m", &checkpoint, NULL), 0);
    assert_int_equal(ampd_store_put_fence(store, 0, &fence, NULL), 0);
    ampd_model_spec_clear(&spec);
}

static void each_allocation_that_loading_a_store_is_refused_is_told_as_memory(void **state)
{
    struct fixture *fixture = *state;
    for (int sqlite = 0; sqlite < 2; sqlite++) {
        struct ampd_store *store;
        struct amp_error error;
        assert_int_equal(sqlite ? ampd_store_sqlite_open(fixture->directory, &store, NULL)
                                : ampd_store_memory_open(&store, NULL),
                         0);
        fill_store(store);
        unsigned n = 1;
        for (uint64_t failed = 1; failed > 0; n++) {
            struct ampd_model_record *records;
            size_t count;
            faults_arm(FAULTS_OURS, n, false, 0);
            int rc = ampd_store_load(store, &records, &count, &error);
            failed = faults_disarm();
            assert_int_equal(rc, failed > 0 ? AMP_ENOMEM : 0);
            if (rc != 0)
                continue;
            assert_int_equal(count, 1);
            assert_int_equal(records[0].spec.parameters_count, 3);
            assert_int_equal(records[0].workers_count, 1);
            assert_int_equal(records[0].checkpoints_count, 1);
            ampd_model_records_free(records, count);
        }
        assert_true(n > 5);
        ampd_store_close(store);
    }
}

static void a_fence_without_memory_is_not_stored(void **state)
{
    const struct ampd_fence fence = {.counter = 7};
    struct ampd_fence found;
    struct ampd_store *store;
    assert_int_equal(ampd_store_memory_open(&store, NULL), 0);
    faults_arm(FAULTS_OURS, 1, true, 0);
    assert_int_equal(ampd_store_put_fence(store, 3, &fence, NULL), AMP_ENOMEM);
    assert_int_equal(faults_disarm(), 1);
    assert_int_equal(ampd_store_put_fence(store, 3, &fence, NULL), 0);
    assert_int_equal(ampd_store_get_fence(store, 3, &found, NULL), 0);
    assert_int_equal(found.counter, 7);
    ampd_store_close(store);
}

/* SQLite itself tells only ENOSPC from other errors of a write. */
static void a_quota_that_a_write_of_the_store_finds_is_told_and_can_be_tried_again(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store;
    struct amp_error error;
    struct ampd_model_spec spec = storage_fixture_spec("m");
    unsigned n = 1;
    assert_int_equal(ampd_store_sqlite_open(fixture->directory, &store, NULL), 0);
    for (;; n++) {
        faults_arm(FAULTS_WRITE, n, n % 2 == 0, EDQUOT);
        int rc = ampd_store_put_model(store, &spec, 1, &error);
        if (faults_disarm() == 0)
            break;
        assert_int_equal(rc, AMP_EEXHAUSTED);
        assert_string_equal(error.reason, "NO_SPACE");
    }
    assert_true(n > 2); /* and the last one has stored it */
    struct ampd_epoch_record epoch = storage_fixture_epoch(1, 0, 0);
    struct ampd_step_row first = storage_fixture_first_row(&epoch);
    faults_arm(FAULTS_WRITE, 1, false, EIO); /* any other error is final, also after a quota */
    assert_int_equal(ampd_store_put_epoch(store, "m", &epoch, &first, &error), AMP_EIO);
    assert_true(faults_disarm() > 0);
    assert_string_equal(error.reason, "STORE_FAILED");
    ampd_store_close(store);
    ampd_model_spec_clear(&spec);
}

static void a_quota_that_only_the_stores_sync_finds_is_final(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store;
    struct amp_error error;
    struct ampd_model_spec spec = storage_fixture_spec("m");
    assert_int_equal(ampd_store_sqlite_open(fixture->directory, &store, NULL), 0);
    faults_arm(FAULTS_SYNC, 1, true, EDQUOT);
    assert_int_equal(ampd_store_put_model(store, &spec, 1, &error), AMP_EIO);
    assert_true(faults_disarm() > 0);
    assert_string_equal(error.reason, "STORE_FAILED");
    assert_int_equal(ampd_store_put_model(store, &spec, 1, &error), AMP_EIO);
    ampd_store_close(store);
    ampd_model_spec_clear(&spec);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    faults_install();
    const struct CMUnitTest tests[] = {
        TEST(a_file_is_written_where_the_file_system_cannot_make_room_before),
        TEST(what_fails_before_the_first_byte_leaves_no_file),
        TEST(a_disk_that_takes_neither_direct_writes_nor_others_is_told),
        TEST(a_file_that_is_given_up_behind_its_rename_is_removed_unless_it_is_another_one),
        TEST(a_large_file_is_read_by_as_many_threads_as_there_can_be),
        TEST(a_reader_without_memory_is_told),
        TEST(each_allocation_that_a_checkpoint_is_refused_is_told_as_memory),
        TEST(a_quota_that_only_a_sync_finds_is_final),
        TEST(names_that_do_not_fit_are_refused),
        TEST(a_directory_that_another_removes_or_fills_meanwhile_is_no_error),
        TEST(a_sweep_leaves_names_alone_that_are_no_steps),
        TEST(a_directory_that_cannot_be_read_has_not_ended),
        TEST(a_vote_is_kept_where_the_file_system_cannot_make_room_before),
        TEST(a_vote_without_memory_for_its_hash_is_told_and_can_be_tried_again),
        TEST(of_a_vote_whose_sync_and_close_fail_the_sync_is_told),
        TEST(a_slot_that_is_too_small_is_passed_over_for_one_that_is_not),
        TEST(what_a_directory_fails_by_says_whether_the_path_is_wrong),
        TEST(each_write_and_sync_of_a_new_directory_that_fails_is_told),
        TEST(a_version_that_cannot_be_read_is_not_written_over),
        TEST(a_store_without_descriptors_can_be_opened_later),
        TEST(each_allocation_that_loading_a_store_is_refused_is_told_as_memory),
        TEST(a_fence_without_memory_is_not_stored),
        TEST(a_quota_that_a_write_of_the_store_finds_is_told_and_can_be_tried_again),
        TEST(a_quota_that_only_the_stores_sync_finds_is_final),
    };
    return cmocka_run_group_tests_name("faults_calls", tests, NULL, NULL);
}
