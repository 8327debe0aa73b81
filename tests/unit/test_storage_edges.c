/* The edges of storage: nothing at all, parts that do not belong together, and things where others ought to be. */
#include "storage/checkpoint.h"
#include "storage/checkpoint_remove.h"
#include "storage/checkpoint_writer.h"
#include "storage/datadir.h"
#include "storage/vote_journal.h"
#include "storage/store.h"
#include "tests/unit/storage_fixture.h"

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

#define COUNT(array) (sizeof array / sizeof *(array))

static const uint64_t vector[] = {6};

struct fixture {
    char directory[256];
    float w[6], back[6];
};

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    (void)snprintf(fixture->directory, sizeof fixture->directory, "%s", storage_fixture_directory());
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    storage_fixture_remove(fixture->directory);
    free(fixture);
    return 0;
}

static void make_file(const struct fixture *fixture, const char *name, const char *text)
{
    FILE *file = fopen(storage_fixture_below(fixture->directory, name), "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* A removal has left something where it is, and says what: no failure after which nothing may be taken as stored. */
static void stays(int rc, const struct amp_error *error, const char *path)
{
    assert_int_equal(rc, AMP_EIO);
    assert_true(ampd_checkpoint_only_stays(rc, error));
    assert_non_null(strstr(error->text, path));
}

static void is_gone(const struct fixture *fixture, const char *name)
{
    assert_int_equal(access(storage_fixture_below(fixture->directory, name), F_OK), -1);
}

/* ---- checkpoints ---- */

static void what_a_file_cannot_hold_is_refused(void **state)
{
    struct fixture *fixture = *state;
    static char long_name[AMPD_NAME_MAX + 1];
    static const uint64_t zero[] = {2, 0}, huge[] = {UINT64_MAX / 2, 3}, nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    memset(long_name, 'n', sizeof long_name - 1);
    const struct ampd_checkpoint_path place = {fixture->directory, "m", 0, 1};
    const struct ampd_checkpoint_tensor tensors[] = {
        {long_name, 1, vector, fixture->w, NULL, NULL, false, 0, 0},
        {"w", 2, zero, fixture->w, NULL, NULL, false, 0, 0},
        {"w", 2, huge, fixture->w, NULL, NULL, false, 0, 0},
        {"w", 9, nine, fixture->w, NULL, NULL, false, 0, 0},
        {"w", 1, vector, fixture->w, NULL, NULL, true, 4, 3},
        {"w", 1, vector, fixture->w, NULL, NULL, true, 0, 7},
    };
    const struct ampd_checkpoint_state from = {.step = 1, .carry.scaler.scale = 2};
    struct ampd_checkpoint_record record;
    for (size_t i = 0; i < COUNT(tensors); i++)
        assert_int_equal(ampd_checkpoint_write(&place, &tensors[i], 1, &from, NULL, &record, NULL), AMP_EINVAL);
}

static void a_checkpoint_of_nothing_comes_back(void **state)
{
    struct fixture *fixture = *state;
    const struct ampd_checkpoint_path place = {fixture->directory, "m", 0, 1};
    const struct ampd_checkpoint_state from = {.step = 1, .carry.scaler.scale = 2};
    struct ampd_checkpoint_record record;
    struct ampd_checkpoint_state to;
    assert_int_equal(ampd_checkpoint_write(&place, NULL, 0, &from, NULL, &record, NULL), 0);
    assert_int_equal(ampd_checkpoint_read(fixture->directory, record.file, record.manifest, NULL, 0, &to, NULL), 0);
    assert_int_equal(to.step, 1);
    ampd_checkpoint_state_clear(&to);
    ampd_checkpoint_abandon(NULL);
    ampd_store_close(NULL);
    struct ampd_model_spec spec = {0}, copied;
    assert_int_equal(ampd_model_spec_copy(&copied, &spec), 0);
    assert_null(copied.parameters);
}

static struct ampd_checkpoint_record write_part(struct fixture *fixture, uint32_t shard, uint64_t first, uint64_t end,
                                                const struct ampd_checkpoint_state *from)
{
    const struct ampd_checkpoint_path place = {fixture->directory, "m", shard, 2};
    const struct ampd_checkpoint_tensor tensor = {"w", 1, vector, fixture->w + first, NULL, NULL, true, first, end};
    struct ampd_checkpoint_record record;
    assert_int_equal(ampd_checkpoint_write(&place, &tensor, 1, from, NULL, &record, NULL), 0);
    return record;
}

static int read_two(struct fixture *fixture, const struct ampd_checkpoint_record records[2])
{
    const struct ampd_checkpoint_target target = {"w", 1, vector, fixture->back, NULL, NULL, false, 0, 0};
    const struct ampd_checkpoint_part parts[] = {{fixture->directory, records[0].file, records[0].manifest},
                                                 {fixture->directory, records[1].file, records[1].manifest}};
    struct ampd_checkpoint_state to;
    int rc = ampd_checkpoint_read_parts(parts, 2, &target, 1, &to, NULL);
    if (rc == 0)
        ampd_checkpoint_state_clear(&to);
    return rc;
}

static void parts_of_two_states_are_not_put_together(void **state)
{
    struct fixture *fixture = *state;
    const struct ampd_checkpoint_state good = {.step = 1, .version = 1, .carry.scaler.scale = 2, .world_size = 1};
    struct ampd_checkpoint_state bad[9];
    for (size_t i = 0; i < COUNT(bad); i++)
        bad[i] = good;
    bad[0].step = 2;
    bad[1].version = 2;
    bad[2].world_size = 2;
    bad[3].carry.scaler.scale = 4;
    bad[4].carry.scaler.scale_id = 1;
    bad[5].carry.scaler.attempted = 1;
    bad[6].carry.scaler.applied = 1;
    bad[7].carry.scaler.skipped = 1;
    bad[8].carry.lr = 0.5;
    struct ampd_checkpoint_record records[] = {write_part(fixture, 0, 0, 4, &good),
                                               write_part(fixture, 1, 4, 6, &good)};
    assert_int_equal(read_two(fixture, records), 0);
    uint8_t right = records[1].manifest[0]++;
    assert_int_equal(read_two(fixture, records), AMP_EDATALOSS); /* not what was catalogued */
    records[1].manifest[0] = right;
    static const uint64_t huge[] = {UINT64_MAX / 2, 3};
    const struct ampd_checkpoint_target target = {"w", 2, huge, fixture->back, NULL, NULL, false, 0, 0};
    struct ampd_checkpoint_state to;
    int rc = ampd_checkpoint_read(fixture->directory, records[0].file, NULL, &target, 1, &to, NULL);
    assert_int_equal(rc, AMP_EDATALOSS);
    for (size_t i = 0; i < COUNT(bad); i++) {
        records[1] = write_part(fixture, 1, 4, 6, &bad[i]);
        assert_int_equal(read_two(fixture, records), AMP_EDATALOSS);
    }
    records[1] = write_part(fixture, 1, 3, 6, &good);
    assert_int_equal(read_two(fixture, records), AMP_EDATALOSS); /* an element twice */
    records[1] = write_part(fixture, 1, 5, 6, &good);
    assert_int_equal(read_two(fixture, records), AMP_EDATALOSS); /* and one that is nowhere */
}

static void files_in_place_of_directories_are_told(void **state)
{
    struct fixture *fixture = *state;
    const struct ampd_checkpoint_path place = {fixture->directory, "m", 0, 1};
    const struct ampd_checkpoint_state from = {.step = 1, .carry.scaler.scale = 2};
    const struct ampd_checkpoint_tensor tensor = {"w", 1, vector, fixture->w, NULL, NULL, false, 0, 0};
    struct ampd_checkpoint_record record;
    struct amp_error error = {0};
    assert_int_equal(mkdir(storage_fixture_below(fixture->directory, "models"), 0700), 0);
    assert_int_equal(mkdir(storage_fixture_below(fixture->directory, "models/m"), 0700), 0);
    assert_int_equal(ampd_vote_journal_remove(fixture->directory, "m", NULL), 0);
    make_file(fixture, "models/m/checkpoints", "no directory");
    make_file(fixture, "models/m/journal", "no directory");
    stays(ampd_checkpoint_sweep(&place, NULL, 0, UINT64_MAX, &error), &error, "models/m/checkpoints");
    assert_int_equal(ampd_checkpoint_write(&place, &tensor, 1, &from, NULL, &record, NULL), AMP_EIO);
    stays(ampd_vote_journal_remove(fixture->directory, "m", &error), &error, "models/m/journal");
    char file[512];
    assert_int_equal(ampd_checkpoint_any(&place, file, sizeof file, &error), AMP_EIO);
    assert_false(ampd_checkpoint_only_stays(AMP_EIO, &error)); /* whether there are files is not known */
    assert_int_equal(unlink(storage_fixture_below(fixture->directory, "models/m/checkpoints")), 0);
    assert_int_equal(mkdir(storage_fixture_below(fixture->directory, "models/m/checkpoints"), 0700), 0);
    make_file(fixture, "models/m/checkpoints/step-0000000001", "no directory");
    make_file(fixture, "models/m/checkpoints/step-1", "another's");
    make_file(fixture, "models/m/checkpoints/step-0000000001x", "another's");
    assert_int_equal(mkdir(storage_fixture_below(fixture->directory, "models/m/checkpoints/step-0000000002"), 0700), 0);
    make_file(fixture, "models/m/checkpoints/step-0000000002/shard-0-of-1.safetensors", "goes");
    stays(ampd_checkpoint_sweep(&place, NULL, 0, UINT64_MAX, &error), &error, "step-0000000001");
    is_gone(fixture, "models/m/checkpoints/step-0000000002");
}

/* In whichever order the directories are read. */
static void what_cannot_be_removed_keeps_nothing_else_from_being_removed(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_checkpoint_path place = {fixture->directory, "m", 0, 1};
    static const char *const steps[] = {"models",
                                        "models/m",
                                        "models/m/checkpoints",
                                        "models/m/checkpoints/step-0000000003",
                                        "models/m/checkpoints/step-0000000004",
                                        "models/m/checkpoints/step-0000000005"};
    for (unsigned stays = 3; stays < COUNT(steps); stays++) {
        struct amp_error error = {0};
        char files[COUNT(steps)][128];
        for (unsigned i = 0; i < COUNT(steps); i++) {
            (void)mkdir(storage_fixture_below(fixture->directory, steps[i]), 0700); /* it may be there */
            (void)snprintf(files[i], sizeof files[i], "%s/shard-0-of-1.safetensors.tmp", steps[i]);
            if (i == stays) /* no file, so that it cannot be removed like one */
                assert_int_equal(mkdir(storage_fixture_below(fixture->directory, files[i]), 0700), 0);
            else if (i >= 3)
                make_file(fixture, files[i], "x");
        }
        assert_int_equal(ampd_checkpoint_sweep_temporary(&place, &error), AMP_EIO);
        assert_string_equal(error.reason, AMPD_CHECKPOINT_NOT_REMOVED);
        assert_non_null(strstr(error.text, steps[stays]));
        for (unsigned i = 3; i < COUNT(steps); i++)
            assert_true((access(storage_fixture_below(fixture->directory, files[i]), F_OK) == 0) == (i == stays));
        assert_int_equal(rmdir(storage_fixture_below(fixture->directory, files[stays])), 0);
    }
}

/* With the mark the name of the model would count as free while a file of it is there. */
static void a_deletion_leaves_no_mark_where_a_file_stays(void **state)
{
    struct fixture *fixture = *state;
    static const char *const made[] = {"models",
                                       "models/m",
                                       "models/m/checkpoints",
                                       "models/m/checkpoints/step-0000000001",
                                       "models/m/checkpoints/step-0000000002", /* the last is no file, and stays */
                                       "models/m/checkpoints/step-0000000001/shard-1-of-2.safetensors"};
    static const char goes[] = "models/m/checkpoints/step-0000000002/shard-1-of-2.safetensors";
    const struct ampd_checkpoint_path place = {fixture->directory, "m", 1, 2};
    struct amp_error error = {0};
    char file[512];
    for (unsigned i = 0; i < COUNT(made); i++)
        assert_int_equal(mkdir(storage_fixture_below(fixture->directory, made[i]), 0700), 0);
    make_file(fixture, goes, "x");
    assert_int_equal(ampd_checkpoint_mark_deleted(&place, NULL), 0);
    stays(ampd_checkpoint_remove_model(&place, &error), &error, made[5]);
    is_gone(fixture, goes);
    is_gone(fixture, "models/m/shard-1-of-2.deleted");
    assert_int_equal(ampd_checkpoint_any(&place, file, sizeof file, NULL), 0);
    assert_string_equal(file, made[5]);
    /* A mark that stays is told like a file. */
    assert_int_equal(mkdir(storage_fixture_below(fixture->directory, "models/m/shard-1-of-2.deleted"), 0700), 0);
    assert_int_equal(rmdir(storage_fixture_below(fixture->directory, made[5])), 0);
    stays(ampd_checkpoint_remove_model(&place, &error), &error, "mark");
}

static void a_model_whose_directory_cannot_be_opened_stays(void **state)
{
    struct fixture *fixture = *state;
    const struct ampd_checkpoint_path place = {fixture->directory, "m", 0, 1};
    struct amp_error error = {0};
    assert_int_equal(mkdir(storage_fixture_below(fixture->directory, "models"), 0700), 0);
    assert_int_equal(symlink("m", storage_fixture_below(fixture->directory, "models/m")), 0); /* leads nowhere */
    stays(ampd_checkpoint_remove_model(&place, &error), &error, "models/m");
    assert_int_equal(unlink(storage_fixture_below(fixture->directory, "models/m")), 0);
}

/* ---- the journal ---- */

static int write_record(struct ampd_vote_journal *journal, uint64_t step, uint64_t fence, uint32_t try_number,
                        uint64_t notes, float value)
{
    static uint8_t text[16] = "notes";
    const struct ampd_vote_journal_record record = {
        .key = {1, step, fence, try_number}, .notes = text, .notes_size = notes, .g = &value, .elements = 1};
    return ampd_vote_journal_write(journal, &record, NULL);
}

static void the_newest_fence_and_try_of_a_step_counts(void **state)
{
    struct fixture *fixture = *state;
    const struct ampd_checkpoint_path place = {fixture->directory, "m", 0, 1};
    struct ampd_vote_journal *journal;
    struct ampd_vote_journal_record record;
    float g = 0;
    assert_int_equal(ampd_vote_journal_open(&place, &journal, NULL), 0);
    assert_int_equal(write_record(journal, 1, 2, 1, 5, 21), 0);
    assert_int_equal(write_record(journal, 2, 1, 1, 0, 22), 0); /* without notes */
    assert_int_equal(write_record(journal, 3, 1, 1, AMPD_VOTE_JOURNAL_NOTES_MAX + 1, 0), AMP_EINVAL);
    ampd_vote_journal_close(journal);
    assert_int_equal(ampd_vote_journal_open(&place, &journal, NULL), 0);
    assert_int_equal(ampd_vote_journal_read(journal, 1, 2, &g, 1, &record, NULL), 0);
    assert_true(g == 22 && record.notes_size == 0);
    free(record.notes);
    assert_int_equal(ampd_vote_journal_read(journal, 1, 1, &g, 2, &record, NULL), AMP_EDATALOSS); /* another size */
    assert_int_equal(ampd_vote_journal_read(journal, 2, 1, &g, 1, &record, NULL), AMP_ENOTFOUND);
    /* Older ones that came later; a start finds them all. */
    assert_int_equal(write_record(journal, 1, 2, 0, 5, 23), 0);
    assert_int_equal(write_record(journal, 1, 1, 9, 5, 24), 0);
    ampd_vote_journal_close(journal);
    assert_int_equal(ampd_vote_journal_open(&place, &journal, NULL), 0);
    assert_int_equal(ampd_vote_journal_read(journal, 1, 1, &g, 1, &record, NULL), 0);
    assert_true(g == 23);
    free(record.notes);
    static const float one = 1;
    const struct ampd_vote_journal_record other = {.key = {2, 1, 3, 1}, .g = &one, .elements = 1};
    assert_int_equal(ampd_vote_journal_write(journal, &other, NULL), 0); /* of another epoch: all stay */
    assert_int_equal(ampd_vote_journal_read(journal, 1, 1, &g, 1, &record, NULL), 0);
    free(record.notes);
    assert_int_equal(ampd_vote_journal_read(journal, 2, 1, &g, 1, &record, NULL), 0);
    free(record.notes);
    ampd_vote_journal_close(journal);
}

/* Files in an order that no one journal writes them in: the newest one comes first. */
static void an_older_record_in_a_later_slot_does_not_count(void **state)
{
    struct fixture *fixture = *state;
    const struct ampd_checkpoint_path place = {fixture->directory, "m", 0, 1};
    static const struct {
        uint64_t fence;
        uint32_t try_number;
    } slots[] = {{2, 2}, {2, 1}, {1, 9}};
    struct ampd_vote_journal *journal;
    struct ampd_vote_journal_record record;
    char from[700], to[64];
    float g = 0;
    for (size_t i = COUNT(slots); i-- > 0;) {
        assert_int_equal(ampd_vote_journal_open(&place, &journal, NULL), 0);
        assert_int_equal(write_record(journal, 1, slots[i].fence, slots[i].try_number, 5, (float)i), 0);
        ampd_vote_journal_close(journal);
        (void)snprintf(from, sizeof from, "%s",
                       storage_fixture_below(fixture->directory, "models/m/journal/shard-0-of-1/slot-000"));
        (void)snprintf(to, sizeof to, "models/m/journal/shard-0-of-1/slot-%03zu", i);
        assert_int_equal(rename(from, storage_fixture_below(fixture->directory, to)), 0);
    }
    assert_int_equal(ampd_vote_journal_open(&place, &journal, NULL), 0);
    assert_int_equal(ampd_vote_journal_read(journal, 1, 1, &g, 1, &record, NULL), 0);
    assert_true(g == 0 && record.key.fence == 2 && record.key.try_number == 2);
    free(record.notes);
    ampd_vote_journal_close(journal);
}

static void slots_that_are_no_records_are_used_again(void **state)
{
    struct fixture *fixture = *state;
    const struct ampd_checkpoint_path place = {fixture->directory, "m", 0, 1};
    struct ampd_vote_journal *journal;
    struct ampd_vote_journal_record record;
    char slot[700];
    float g;
    assert_int_equal(ampd_vote_journal_open(&place, &journal, NULL), 0);
    assert_int_equal(write_record(journal, 1, 1, 1, 5, 1), 0);
    (void)snprintf(slot, sizeof slot, "%s",
                   storage_fixture_below(fixture->directory, "models/m/journal/shard-0-of-1/slot-000"));
    struct stat info;
    assert_int_equal(stat(slot, &info), 0);
    int fd = open(slot, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "X", 1, 4096), 1); /* the first byte of the notes */
    assert_int_equal(close(fd), 0);
    assert_int_equal(ampd_vote_journal_read(journal, 1, 1, &g, 1, &record, NULL), AMP_ENOTFOUND);
    assert_int_equal(truncate(slot, info.st_size - 1), 0); /* its bytes are not all there any more */
    assert_int_equal(ampd_vote_journal_read(journal, 1, 1, &g, 1, &record, NULL), AMP_ENOTFOUND);
    assert_int_equal(truncate(slot, 4096 + 2), 0); /* nor those of the notes */
    assert_int_equal(ampd_vote_journal_read(journal, 1, 1, &g, 1, &record, NULL), AMP_ENOTFOUND);
    assert_int_equal(truncate(slot, 8), 0);
    assert_int_equal(ampd_vote_journal_read(journal, 1, 1, &g, 1, &record, NULL), AMP_ENOTFOUND);
    assert_int_equal(unlink(slot), 0);
    assert_int_equal(ampd_vote_journal_read(journal, 1, 1, &g, 1, &record, NULL), AMP_ENOTFOUND);
    assert_int_equal(symlink(slot, slot), 0); /* leads nowhere */
    assert_int_equal(ampd_vote_journal_read(journal, 1, 1, &g, 1, &record, NULL), AMP_EIO);
    ampd_vote_journal_close(journal);
    assert_int_equal(ampd_vote_journal_open(&place, &journal, NULL), AMP_EIO);
    assert_int_equal(unlink(slot), 0);
    assert_int_equal(mkdir(slot, 0700), 0);
    struct amp_error error = {0};
    stays(ampd_vote_journal_remove(fixture->directory, "m", &error), &error, "slot-000");
    assert_int_equal(rmdir(slot), 0);
    make_file(fixture, "models/m/journal/another", "stays");
    make_file(fixture, "models/m/journal/shard-none", "no directory, stays too");
    assert_int_equal(ampd_vote_journal_remove(fixture->directory, "m", NULL), 0);
    assert_int_equal(access(storage_fixture_below(fixture->directory, "models/m/journal/another"), F_OK), 0);
    assert_int_equal(access(storage_fixture_below(fixture->directory, "models/m/journal/shard-none"), F_OK), 0);
}

/* Neither of the same shard nor of others, in whichever order the directories are read. */
static void a_slot_that_cannot_be_removed_keeps_no_other_from_being_removed(void **state)
{
    struct fixture *fixture = *state;
    struct amp_error error = {0};
    for (unsigned k = 0; k < 3; k++) {
        char slots[3][64];
        for (unsigned shard = 0; shard < 3; shard++) {
            const struct ampd_checkpoint_path place = {fixture->directory, "m", shard, 3};
            struct ampd_vote_journal *journal;
            assert_int_equal(ampd_vote_journal_open(&place, &journal, NULL), 0);
            for (uint64_t step = 1; step <= 3; step++)
                assert_int_equal(write_record(journal, step, 1, 1, 5, 1), 0);
            ampd_vote_journal_close(journal);
            (void)snprintf(slots[shard], sizeof slots[shard], "models/m/journal/shard-%u-of-3/slot-001", shard);
        }
        assert_int_equal(unlink(storage_fixture_below(fixture->directory, slots[k])), 0);
        assert_int_equal(mkdir(storage_fixture_below(fixture->directory, slots[k]), 0700), 0); /* no file */
        stays(ampd_vote_journal_remove(fixture->directory, "m", &error), &error, slots[k]);
        for (unsigned shard = 0; shard < 3; shard++) {
            *strrchr(slots[shard], '/') = 0;
            if (shard != k)
                is_gone(fixture, slots[shard]);
        }
        char path[700];
        (void)snprintf(path, sizeof path, "%s/slot-001", storage_fixture_below(fixture->directory, slots[k]));
        assert_int_equal(rmdir(path), 0);
        *strrchr(path, '/') = 0;
        assert_int_equal(rmdir(path), 0); /* nothing else was in it */
    }
}

static void a_journal_whose_path_is_too_long_is_refused(void **state)
{
    struct fixture *fixture = *state;
    static char longest[5000];
    char name[AMPD_NAME_MAX + 1];
    struct ampd_checkpoint_path place = {longest, "m", 0, 1};
    struct ampd_vote_journal *journal;
    bool found = true;
    memset(longest, '/', sizeof longest - 1);
    memcpy(longest, fixture->directory, strlen(fixture->directory));
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_int_equal(ampd_vote_journal_open(&place, &journal, NULL), AMP_EINVAL);
    assert_null(journal);
    assert_int_equal(ampd_vote_journal_find(&place, &found, NULL), AMP_EINVAL);
    assert_false(found);
    assert_int_equal(ampd_vote_journal_remove(longest, "m", NULL), AMP_EINVAL);
    place.data_dir = fixture->directory;
    place.model = name;
    assert_int_equal(ampd_vote_journal_make(&place, NULL), AMP_EINVAL);
    assert_int_equal(ampd_vote_journal_find(&place, &found, NULL), 0);
    assert_false(found);
    /* Its directory can be opened, but what is in it has no path. */
    make_file(fixture, "file", "");
    assert_int_equal(mkdir(storage_fixture_below(fixture->directory, "models"), 0700), 0);
    assert_int_equal(mkdir(storage_fixture_below(fixture->directory, "models/m"), 0700), 0);
    assert_int_equal(mkdir(storage_fixture_below(fixture->directory, "models/m/journal"), 0700), 0);
    assert_int_equal(mkdir(storage_fixture_below(fixture->directory, "models/m/journal/shard-0-of-1"), 0700), 0);
    longest[4096 - strlen("/models/m/journal") - strlen("/shard-0-of-1") - 2] = 0;
    assert_int_equal(ampd_vote_journal_remove(longest, "m", NULL), AMP_EINVAL);
    longest[4096 - strlen("/models/m/journal") - strlen("/shard-0-of-1") - 2] = '/';
    longest[4096 - strlen("/models/m/journal") - 2] = 0;
    assert_int_equal(ampd_vote_journal_remove(longest, "m", NULL), 0);
    assert_int_equal(access(storage_fixture_below(fixture->directory, "models/m/journal/shard-0-of-1"), F_OK), 0);
}

/* ---- the store ---- */

static int count_rows(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                      const struct ampd_epoch_record *epoch)
{
    (void)key;
    (void)row;
    (void)epoch;
    ++*(int *)arg;
    return 0;
}

static int count_overflows(void *arg, const struct ampd_history_key *key, const struct ampd_overflow_found *found)
{
    (void)key;
    (void)found;
    ++*(int *)arg;
    return 0;
}

static int stop_at_overflow(void *arg, const struct ampd_history_key *key, const struct ampd_overflow_found *found)
{
    (void)count_overflows(arg, key, found);
    return AMP_ECANCELLED;
}

static void pages_begin_at_any_part_of_a_key(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_model_spec spec = storage_fixture_spec("m");
    const struct ampd_epoch_record epoch = storage_fixture_epoch(1, 0, 0);
    const struct ampd_step_row first = storage_fixture_first_row(&epoch), one = storage_fixture_step(1, 1, true);
    const struct ampd_checkpoint_record checkpoint = {.epoch = 1, .step = 0, .file = "f"};
    static const struct {
        struct ampd_history_filter filter;
        int rows;
    } pages[] = {{{.from = {0, 1, 0}}, 2},
                 {{.from = {0, 0, 1}}, 2},
                 {{.epoch = 1, .from = {0, 1, 0}}, 1},
                 {{.epoch = 1, .from = {2, 0, 0}}, 0},
                 {{.epoch = 1, .from = {2, 0, 0}, .descending = true}, 2}};
    struct ampd_store *stores[2];
    spec.durability = AMPD_DURABILITY_STEP;
    assert_int_equal(ampd_store_memory_open(&stores[0], NULL), 0);
    assert_int_equal(ampd_store_sqlite_open(fixture->directory, &stores[1], NULL), 0);
    for (int i = 0; i < 2; i++) {
        struct ampd_model_record *records;
        size_t count;
        assert_int_equal(ampd_store_put_model(stores[i], &spec, 1, NULL), 0);
        assert_int_equal(ampd_store_put_epoch(stores[i], "m", &epoch, &first, NULL), 0);
        assert_int_equal(ampd_store_put_verdict(stores[i], "m", &one, false, NULL), 0);
        assert_int_equal(ampd_store_put_checkpoint(stores[i], "m", &checkpoint, NULL), 0);
        for (size_t p = 0; p < COUNT(pages); p++) {
            int rows = 0;
            assert_int_equal(ampd_store_page_history(stores[i], "m", &pages[p].filter, 99, &rows, NULL, count_rows), 0);
            if (rows != pages[p].rows)
                fail_msg("store %d, page %zu: %d rows", i, p, rows);
        }
        static const struct ampd_overflow_filter nobody[] = {
            {.parameter_min = 1000, .parameter_max = 2000, .rank_max = UINT32_MAX},
            {.parameter_max = UINT32_MAX, .rank_min = 1000, .rank_max = 2000},
            {.parameter_min = 1, .rank_max = UINT32_MAX},
            {.parameter_max = UINT32_MAX, .rank_min = 1}};
        for (size_t n = 0; n < COUNT(nobody); n++) {
            const struct ampd_history_filter all = {0};
            int rows = 0,
                rc = ampd_store_page_overflows(stores[i], "m", &all, &nobody[n], 99, &rows, NULL, count_overflows);
            assert_true(rc == 0 && rows == 0);
        }
        static const struct ampd_overflow_filter any = {.parameter_max = UINT32_MAX, .rank_max = UINT32_MAX};
        static const struct ampd_history_filter whole = {0};
        int seen = 0,
            stopped = ampd_store_page_overflows(stores[i], "m", &whole, &any, 99, &seen, NULL, stop_at_overflow);
        assert_true(stopped == AMP_ECANCELLED && seen == 1);
        assert_int_equal(ampd_store_load(stores[i], &records, &count, NULL), 0);
        assert_int_equal(records[0].rows_count, 1); /* those of steps alone */
        ampd_model_records_free(records, count);
        struct ampd_worker_record worker = {.incarnation = {1, 1}};
        for (worker.rank = 0; i == 0 && worker.rank <= AMPD_WORLD_MAX; worker.rank++) {
            (void)snprintf(worker.name, sizeof worker.name, "worker-%u", worker.rank);
            int rc = ampd_store_put_worker(stores[i], "m", &worker, NULL);
            assert_int_equal(rc, worker.rank < AMPD_WORLD_MAX ? 0 : AMP_EINVAL);
        }
        ampd_store_close(stores[i]);
    }
    ampd_model_spec_clear(&spec);
}

/* ---- the data directory ---- */

static void a_data_directory_is_found_however_it_is_named(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_datadir dir;
    static char longest[AMPD_DATADIR_PATH_MAX + 1];
    char name[700];
    memset(longest, 'd', sizeof longest - 1);
    assert_int_equal(ampd_datadir_open(&dir, "", NULL), AMP_EINVAL);
    assert_int_equal(ampd_datadir_open(&dir, longest, NULL), AMP_EINVAL);
    (void)snprintf(name, sizeof name, "%s/data//", fixture->directory);
    assert_int_equal(ampd_datadir_open(&dir, name, NULL), 0);
    ampd_datadir_close(&dir);
    int before = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(before >= 0);
    assert_int_equal(chdir(fixture->directory), 0);
    assert_int_equal(ampd_datadir_open(&dir, "data", NULL), 0);
    ampd_datadir_close(&dir);
    assert_int_equal(fchdir(before), 0);
    assert_int_equal(close(before), 0);
    static const char *const versions[] = {"-1\n", "x", "x\n", "9\n", "12345678901234567890123456789012345\n"};
    for (size_t i = 0; i < COUNT(versions); i++) {
        make_file(fixture, "data/VERSION", versions[i]);
        assert_int_not_equal(ampd_datadir_open(&dir, storage_fixture_below(fixture->directory, "data"), NULL), 0);
    }
    make_file(fixture, "file", "no directory");
    assert_int_equal(ampd_datadir_open(&dir, storage_fixture_below(fixture->directory, "file"), NULL), AMP_EINVAL);
    assert_int_equal(ampd_datadir_open(&dir, storage_fixture_below(fixture->directory, "file/data"), NULL), AMP_EINVAL);
    assert_int_equal(ampd_datadir_open(&dir, "/proc/none", NULL), AMP_EINVAL);
    assert_int_equal(symlink("nowhere", storage_fixture_below(fixture->directory, "link")), 0);
    assert_int_equal(ampd_datadir_open(&dir, storage_fixture_below(fixture->directory, "link"), NULL), AMP_EINVAL);
}

static void what_others_can_write_to_is_no_data_directory_and_a_link_no_file_of_it(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_datadir dir;
    struct amp_error error;
    char text[128];
    static const struct {
        mode_t mode;
        int rc;
    } rows[] = {{0777, AMP_EINVAL}, {0702, AMP_EINVAL}, {01777, 0}, {0775, 0}, {0755, 0}, {0700, 0}};
    char path[900], lock[920];
    (void)snprintf(path, sizeof path, "%s/data", fixture->directory);
    (void)snprintf(lock, sizeof lock, "%s/LOCK", path);
    assert_int_equal(mkdir(path, 0700), 0);
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(chmod(path, rows[i].mode), 0);
        assert_int_equal(ampd_datadir_open(&dir, path, &error), rows[i].rc);
        assert_int_equal(ampd_datadir_writable_by_others(path, text, sizeof text), rows[i].rc != 0);
        ampd_datadir_close(&dir);
    }
    assert_int_equal(ampd_datadir_check_writable(path, "directory", &error), 0);
    assert_int_equal(ampd_datadir_check_writable("/proc", "directory", &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, "directory cannot be written"));
    make_file(fixture, "precious", "precious");
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(symlink("../precious", lock), 0);
    assert_int_equal(ampd_datadir_open(&dir, path, &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, "symbolic link"));
    assert_int_equal(unlink(lock), 0);
    assert_int_equal(mkfifo(lock, 0600), 0);
    assert_int_equal(ampd_datadir_open(&dir, path, &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, "regular file"));
    struct stat about;
    assert_int_equal(stat(storage_fixture_below(fixture->directory, "precious"), &about), 0);
    assert_int_equal(about.st_size, strlen("precious"));
}

/* ---- points ---- */

struct points {
    char keys[256];
    struct ampd_history_point last;
};

static int see_point(void *arg, const struct ampd_history_point *point)
{
    struct points *points = arg;
    size_t used = strlen(points->keys);
    (void)snprintf(points->keys + used, sizeof points->keys - used, "%s%d.%d.%d", used > 0 ? " " : "",
                   (int)point->key.epoch, (int)point->key.step, (int)point->key.sequence);
    points->last = *point;
    return point->key.step == 99 ? AMP_ECANCELLED : 0;
}

static void assert_points(struct ampd_store *store, struct ampd_history_key from, uint64_t step_min, uint64_t step_max,
                          uint32_t limit, const char *keys)
{
    struct points points = {0};
    assert_int_equal(ampd_store_page_points(store, "m", &from, step_min, step_max, limit, &points, NULL, see_point), 0);
    assert_string_equal(points.keys, keys);
}

/* Epoch 1 with steps 1 to 5, of which 3 on are rolled back, an act behind step 1, and epoch 2 with steps 3 and 4. */
static void put_rows(struct ampd_store *store)
{
    struct ampd_model_spec spec = storage_fixture_spec("m");
    assert_int_equal(ampd_store_put_model(store, &spec, 1, NULL), 0);
    ampd_model_spec_clear(&spec);
    struct ampd_epoch_record first = storage_fixture_epoch(1, 0, 0), second = storage_fixture_epoch(2, 1, 2);
    struct ampd_step_row row = storage_fixture_first_row(&first);
    assert_int_equal(ampd_store_put_epoch(store, "m", &first, &row, NULL), 0);
    for (uint64_t step = 1; step <= 5; step++) {
        row = storage_fixture_step(1, step, step == 2);
        assert_int_equal(ampd_store_put_verdict(store, "m", &row, false, NULL), 0);
        row.kind = AMPD_ROW_SET;
        if (step == 1)
            assert_int_equal(ampd_store_put_verdict(store, "m", &row, false, NULL), 0);
    }
    row = storage_fixture_first_row(&second);
    assert_int_equal(ampd_store_put_epoch(store, "m", &second, &row, NULL), 0);
    for (uint64_t step = 3; step <= 4; step++) {
        row = storage_fixture_step(2, step, false);
        assert_int_equal(ampd_store_put_verdict(store, "m", &row, false, NULL), 0);
    }
}

/* A new store of either kind with these rows. */
static struct ampd_store *open_rows(const struct fixture *fixture, bool sqlite)
{
    struct ampd_store *store;
    int rc = sqlite ? ampd_store_sqlite_open(fixture->directory, &store, NULL) : ampd_store_memory_open(&store, NULL);
    assert_int_equal(rc, 0);
    put_rows(store);
    return store;
}

static int see_key(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                   const struct ampd_epoch_record *epoch)
{
    char *keys = arg;
    size_t used = strlen(keys);
    (void)snprintf(keys + used, 128 - used, "%s%d.%d.%d", used > 0 ? " " : "", (int)key->epoch, (int)key->step,
                   (int)key->sequence);
    return 0;
}

static void acts_before_the_first_step_are_there_where_they_are_asked_for(void **state)
{
    const struct fixture *fixture = *state;
    static const struct {
        struct ampd_history_filter filter;
        const char *keys;
    } rows[] = {{{.step_min = 2, .step_max = 2}, "1.2.0 2.2.0"},
                {{.step_min = 2, .step_max = 2, .acts_before = true}, "1.1.1 1.2.0 2.2.0"},
                {{.step_min = 2, .step_max = 2, .acts_before = true, .descending = true}, "2.2.0 1.2.0 1.1.1"},
                {{.step_min = 1, .step_max = 1, .acts_before = true}, "1.0.0 1.1.0 1.1.1"},
                {{.step_min = 3, .acts_before = true}, "2.2.0 2.3.0 2.4.0"},
                {{.step_min = 3, .acts_before = true, .from = {2, 2, 1}}, "2.3.0 2.4.0"},
                {{.step_min = 5, .acts_before = true}, ""},
                {{.step_min = UINT64_MAX, .step_max = 1, .acts_before = true}, ""}};
    for (int sqlite = 0; sqlite < 2; sqlite++) {
        struct ampd_store *store = open_rows(fixture, sqlite);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            char keys[128] = "";
            assert_int_equal(ampd_store_page_history(store, "m", &rows[i].filter, 99, keys, NULL, see_key), 0);
            assert_string_equal(keys, rows[i].keys);
        }
        ampd_store_close(store);
    }
}

static void points_are_the_rows_that_stand_and_go_on_from_any_key(void **state)
{
    const struct fixture *fixture = *state;
    const struct ampd_history_key start = {0};
    for (int sqlite = 0; sqlite < 2; sqlite++) {
        struct ampd_store *store = open_rows(fixture, sqlite);
        assert_points(store, start, 0, UINT64_MAX, 99, "1.0.0 1.1.0 1.1.1 1.2.0 2.2.0 2.3.0 2.4.0");
        assert_points(store, start, 0, UINT64_MAX, 3, "1.0.0 1.1.0 1.1.1");
        assert_points(store, (struct ampd_history_key){1, 1, 1}, 0, UINT64_MAX, 99, "1.1.1 1.2.0 2.2.0 2.3.0 2.4.0");
        assert_points(store, (struct ampd_history_key){1, 2, 1}, 0, UINT64_MAX, 2, "2.2.0 2.3.0");
        assert_points(store, start, 3, 3, 99, "2.3.0");
        assert_points(store, (struct ampd_history_key){2, 4, 1}, 0, UINT64_MAX, 99, "");
        struct points points = {0};
        assert_int_equal(ampd_store_page_points(store, "m", &start, 2, 2, 1, &points, NULL, see_point), 0);
        struct ampd_step_row row = storage_fixture_step(1, 2, true);
        const struct ampd_history_point *last = &points.last;
        assert_true(last->kind == AMPD_ROW_STEP && last->verdict == row.verdict && last->at_us == row.at_us);
        assert_true(last->scale == row.scale && last->after_scale == row.after.scaler.scale && last->clip == row.clip);
        assert_true(last->norm == row.norm && last->lr == row.lr);
        assert_true(last->has_loss == (row.metrics.loss_workers > 0) && last->loss == row.metrics.loss);
        assert_memory_equal(last->times_us, row.times_us, sizeof row.times_us);
        struct amp_error error = {0};
        int rc = ampd_store_page_points(store, "no", &start, 0, 9, 9, &points, &error, see_point);
        assert_int_equal(rc, AMP_ENOTFOUND);
        assert_non_null(strstr(error.text, "it was deleted meanwhile")); /* a reader may be overtaken by that */
        ampd_store_close(store);
    }
}

static void the_owner_of_a_model_is_whom_its_first_epoch_names(void **state)
{
    const struct fixture *fixture = *state;
    for (int sqlite = 0; sqlite < 2; sqlite++) {
        struct ampd_store *store;
        struct ampd_model_record *records;
        size_t count;
        int rc =
            sqlite ? ampd_store_sqlite_open(fixture->directory, &store, NULL) : ampd_store_memory_open(&store, NULL);
        assert_int_equal(rc, 0);
        struct ampd_model_spec spec = storage_fixture_spec("m");
        assert_int_equal(ampd_store_put_model(store, &spec, 42, NULL), 0);
        ampd_model_spec_clear(&spec);
        static const char *const actors[] = {"token ann", "an operator"};
        for (uint64_t epoch = 1; epoch <= 2; epoch++) {
            struct ampd_epoch_record record = storage_fixture_epoch(epoch, epoch - 1, 0);
            struct ampd_step_row row = storage_fixture_first_row(&record);
            row.parent_epoch = epoch - 1;
            strcpy(row.note.actor, actors[epoch - 1]);
            assert_int_equal(ampd_store_put_epoch(store, "m", &record, &row, NULL), 0);
        }
        assert_int_equal(ampd_store_load(store, &records, &count, NULL), 0);
        assert_string_equal(records[0].owner, "token ann");
        ampd_model_records_free(records, count);
        ampd_store_close(store);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_a_file_cannot_hold_is_refused),
        TEST(a_checkpoint_of_nothing_comes_back),
        TEST(parts_of_two_states_are_not_put_together),
        TEST(files_in_place_of_directories_are_told),
        TEST(what_cannot_be_removed_keeps_nothing_else_from_being_removed),
        TEST(a_deletion_leaves_no_mark_where_a_file_stays),
        TEST(a_model_whose_directory_cannot_be_opened_stays),
        TEST(the_newest_fence_and_try_of_a_step_counts),
        TEST(an_older_record_in_a_later_slot_does_not_count),
        TEST(slots_that_are_no_records_are_used_again),
        TEST(a_slot_that_cannot_be_removed_keeps_no_other_from_being_removed),
        TEST(a_journal_whose_path_is_too_long_is_refused),
        TEST(pages_begin_at_any_part_of_a_key),
        TEST(acts_before_the_first_step_are_there_where_they_are_asked_for),
        TEST(points_are_the_rows_that_stand_and_go_on_from_any_key),
        TEST(the_owner_of_a_model_is_whom_its_first_epoch_names),
        TEST(a_data_directory_is_found_however_it_is_named),
        TEST(what_others_can_write_to_is_no_data_directory_and_a_link_no_file_of_it),
    };
    return cmocka_run_group_tests_name("storage_edges", tests, NULL, NULL);
}
