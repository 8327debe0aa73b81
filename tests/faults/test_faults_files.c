/* Checkpoint files, the journal and the data directory while memory is out and the disk fails. */
#include "storage/checkpoint.h"
#include "storage/checkpoint_remove.h"
#include "storage/checkpoint_writer.h"
#include "storage/datadir.h"
#include "storage/vote_journal.h"
#include "storage/store.h"
#include "tests/faults/scenario.h"
#include "tests/unit/storage_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define ELEMENTS 84

static const uint64_t shape[] = {12, 7}, vector[] = {5};

static char dir[256];
static struct ampd_checkpoint_path place;
static float masters[2][ELEMENTS], moments[2][ELEMENTS], back[2][ELEMENTS], moments_back[2][ELEMENTS];
static const struct ampd_checkpoint_tensor tensors[] = {
    {"layer/weight", 2, shape, masters[0], moments[0], moments[0], false, 0, 0},
    {"layer/bias \xc3\xa4", 1, vector, masters[1], NULL, NULL, true, 1, 4}};
static const struct ampd_checkpoint_target targets[] = {
    {"layer/weight", 2, shape, back[0], moments_back[0], moments_back[0], false, 0, 0},
    {"layer/bias \xc3\xa4", 1, vector, back[1], NULL, NULL, true, 1, 4}};
static struct ampd_checkpoint_state state_written;
static struct ampd_checkpoint_record record;
static struct ampd_vote_journal *journal;
static struct text seen;

/* ---- the world ---- */

static void must(int rc)
{
    assert_int_equal(rc, 0);
}

static void before_nothing(void)
{
    (void)snprintf(dir, sizeof dir, "%s", storage_fixture_directory());
    place = (struct ampd_checkpoint_path){dir, "m", 0, 1};
    for (int i = 0; i < ELEMENTS; i++) {
        masters[0][i] = (float)i;
        masters[1][i] = (float)-i;
        moments[0][i] = 0.5f * (float)i;
    }
    memset(back, 0, sizeof back);
    memset(moments_back, 0, sizeof moments_back);
    memset(&record, 0, sizeof record);
}

static int write_step(uint64_t step, struct amp_error *error)
{
    uint8_t user_state[] = "epoch 3, sample 1024";
    state_written = (struct ampd_checkpoint_state){.step = step, .version = step, .world_size = 2};
    state_written.carry.scaler = (struct amp_scaler_state){0x1.8p13f, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct {
        uint8_t *data;
        uint32_t size;
    } states[2] = {{user_state, sizeof user_state}, {NULL, 0}};
    state_written.user_states = (void *)states;
    int rc = ampd_checkpoint_write(&place, tensors, 2, &state_written, NULL, &record, error);
    state_written.user_states = NULL;
    return rc;
}

static void before(void)
{
    before_nothing();
    must(write_step(7, NULL));
}

static void after(void)
{
    ampd_vote_journal_close(journal);
    journal = NULL;
    text_clear(&seen);
    storage_fixture_remove(dir);
}

static void add_file(struct text *text, const char *path)
{
    static uint8_t bytes[1 << 16];
    char whole[600];
    (void)snprintf(whole, sizeof whole, "%s/%s", dir, path);
    FILE *file = fopen(whole, "rb");
    text_add(text, "%s: ", file != NULL ? path : "no file");
    if (file == NULL)
        return;
    text_bytes(text, bytes, fread(bytes, 1, sizeof bytes, file));
    (void)fclose(file);
}

/* Files under their final names, and what was read. Temporary ones are a sweep's. */
static void state(struct text *text)
{
    static const char *const steps[] = {"0000000007", "0000000008"};
    for (int i = 0; i < 2; i++) {
        char path[200];
        (void)snprintf(path, sizeof path, "models/m/checkpoints/step-%s/shard-0-of-1.safetensors", steps[i]);
        add_file(text, path);
    }
    text_add(text, "read: %s", seen.data != NULL ? seen.data : "");
}

/* ---- checkpoints ---- */

static int write_checkpoint(struct amp_error *error)
{
    return write_step(8, error);
}

/* As the server does it: element by element, and each call again while there is no memory or the disk is full. */
static int write_in_parts(struct amp_error *error)
{
    struct ampd_checkpoint_writer *writer;
    state_written = (struct ampd_checkpoint_state){.step = 8, .version = 8};
    int rc = ampd_checkpoint_begin(&place, tensors, 1, &state_written, &writer, error);
    if (rc != 0)
        return rc;
    for (uint64_t at = 0; rc == 0 && at < ELEMENTS; at += ELEMENTS / 2)
        for (int tries = 0; tries < 2; tries++) {
            rc = ampd_checkpoint_put(writer, 0, at, ELEMENTS / 2, masters[0] + at, moments[0] + at, moments[0] + at,
                                     error);
            if (rc != AMP_EEXHAUSTED && rc != AMP_ENOMEM)
                break;
        }
    for (int tries = 0; rc == 0 && tries < 2; tries++) {
        rc = ampd_checkpoint_end(writer, &record, error);
        if (rc == 0)
            return 0;
        if (tries == 0 && (rc == AMP_EEXHAUSTED || rc == AMP_ENOMEM))
            rc = 0;
    }
    ampd_checkpoint_abandon(writer);
    return rc;
}

static int read_checkpoint(struct amp_error *error)
{
    struct ampd_checkpoint_state found;
    text_clear(&seen);
    int rc = ampd_checkpoint_read(dir, record.file, record.manifest, targets, 2, &found, error);
    if (rc != 0) {
        assert_null(found.user_states);
        return rc;
    }
    unsigned what = atomic_exchange(&faults->what, 0u); /* the text is the test's own */
    text_add(&seen, "step %d version %d scale %a ranks %d ", (int)found.step, (int)found.version,
             (double)found.carry.scaler.scale, (int)found.world_size);
    text_bytes(&seen, found.user_states[0].data, found.user_states[0].size);
    text_bytes(&seen, back, sizeof back);
    text_bytes(&seen, moments_back, sizeof moments_back);
    ampd_checkpoint_state_clear(&found);
    atomic_store(&faults->what, what);
    return 0;
}

static int remove_checkpoint(struct amp_error *error)
{
    return ampd_checkpoint_remove(dir, record.file, error);
}

static int sweep(struct amp_error *error)
{
    return ampd_checkpoint_sweep(&place, NULL, 0, UINT64_MAX, error);
}

static int remove_model(struct amp_error *error)
{
    return ampd_checkpoint_remove_model(&place, error);
}

static const struct scenario checkpoints[] = {
    {.name = "write", .before = before, .act = write_checkpoint, .state = state, .after = after},
    {.name = "write in parts", .before = before, .act = write_in_parts, .state = state, .after = after},
    {.name = "write the first", .before = before_nothing, .act = write_checkpoint, .state = state, .after = after},
    {.name = "read", .before = before, .act = read_checkpoint, .state = state, .after = after, .grows_old = true},
    {.name = "remove", .before = before, .act = remove_checkpoint, .state = state, .after = after},
    {.name = "sweep", .before = before, .act = sweep, .state = state, .after = after},
    {.name = "remove the model", .before = before, .act = remove_model, .state = state, .after = after},
};

static void a_checkpoint_is_whole_or_not_there_when_memory_is_out(void **s)
{
    for (size_t i = 0; i < sizeof checkpoints / sizeof *checkpoints; i++)
        scenario_memory(&checkpoints[i]);
}

static void a_checkpoint_is_whole_or_not_there_when_the_disk_fails(void **s)
{
    for (size_t i = 0; i < sizeof checkpoints / sizeof *checkpoints; i++)
        scenario_disk(&checkpoints[i]);
    (void)scenario_run(&checkpoints[0], FAULTS_CLOSE, false, 5);
    (void)scenario_run(&checkpoints[3], FAULTS_READ, false, 5);
}

/* ---- the journal ---- */

static int journal_write_step(uint64_t step, uint32_t try_number, struct amp_error *error)
{
    struct ampd_vote_journal_record vote = {.key = {1, step, 4, try_number},
                                            .notes = (uint8_t *)"a vote",
                                            .notes_size = 6,
                                            .g = masters[0],
                                            .elements = ELEMENTS};
    return ampd_vote_journal_write(journal, &vote, error);
}

static void journal_reopen(void)
{
    ampd_vote_journal_close(journal);
    must(ampd_vote_journal_open(&place, &journal, NULL));
}

static void before_journal(void)
{
    before_nothing();
    must(ampd_vote_journal_open(&place, &journal, NULL));
}

/* Step 1 has a record, and there is a slot that may be written over. */
static void before_full_journal(void)
{
    before_journal();
    must(journal_write_step(1, 0, NULL));
    must(journal_write_step(2, 0, NULL));
    must(journal_write_step(2, 1, NULL));
}

/* What a restart would find: the tries of both steps, their notes and elements. */
static void journal_state(struct text *text)
{
    struct ampd_vote_journal *reader;
    must(ampd_vote_journal_open(&place, &reader, NULL));
    for (uint64_t step = 1; step <= 3; step++) {
        struct ampd_vote_journal_record found;
        int rc = ampd_vote_journal_read(reader, 1, step, back[0], ELEMENTS, &found, NULL);
        text_add(text, "step %d: %d try %d %.*s ", (int)step, rc, (int)found.key.try_number, (int)found.notes_size,
                 rc == 0 ? (const char *)found.notes : "");
        if (rc == 0)
            text_bytes(text, back[0], sizeof back[0]);
        free(found.notes);
    }
    ampd_vote_journal_close(reader);
    text_add(text, "read: %s", seen.data != NULL ? seen.data : "");
}

static int journal_write(struct amp_error *error)
{
    return journal_write_step(2, 2, error);
}

static int journal_open(struct amp_error *error)
{
    ampd_vote_journal_close(journal);
    journal = NULL;
    return ampd_vote_journal_open(&place, &journal, error);
}

static int journal_read(struct amp_error *error)
{
    struct ampd_vote_journal_record found;
    text_clear(&seen);
    int rc = ampd_vote_journal_read(journal, 1, 2, back[0], ELEMENTS, &found, error);
    if (rc != 0)
        return rc;
    unsigned what = atomic_exchange(&faults->what, 0u);
    text_add(&seen, "try %d %.*s ", (int)found.key.try_number, (int)found.notes_size, (const char *)found.notes);
    text_bytes(&seen, back[0], sizeof back[0]);
    free(found.notes);
    atomic_store(&faults->what, what);
    return 0;
}

static int journal_remove(struct amp_error *error)
{
    return ampd_vote_journal_remove(dir, "m", error);
}

#define JOURNAL(name_of, before_of, act_of, grows)                                                                     \
    {                                                                                                                  \
        .name = name_of, .before = before_of, .act = act_of, .reopen = journal_reopen, .state = journal_state,         \
        .after = after, .grows_old = grows                                                                             \
    }

static const struct scenario journals[] = {
    JOURNAL("first vote", before_journal, journal_write, false),
    JOURNAL("vote in an old slot", before_full_journal, journal_write, false),
    JOURNAL("open", before_full_journal, journal_open, false),
    JOURNAL("read a vote", before_full_journal, journal_read, true),
    JOURNAL("remove", before_full_journal, journal_remove, true), /* file by file */
};

static void a_vote_is_whole_or_not_there_when_memory_is_out(void **s)
{
    for (size_t i = 0; i < sizeof journals / sizeof *journals; i++)
        scenario_memory(&journals[i]);
}

static void a_vote_is_whole_or_not_there_when_the_disk_fails(void **s)
{
    for (size_t i = 0; i < sizeof journals / sizeof *journals; i++)
        scenario_disk(&journals[i]);
    (void)scenario_run(&journals[0], FAULTS_CLOSE, false, 5);
}

/* A sync that finds the disk full is as final as any other: what it has dropped, no second one finds. */
static void a_vote_whose_sync_finds_the_disk_full_is_not_tried_again(void **s)
{
    struct amp_error error;
    before_full_journal();
    faults_arm(FAULTS_SYNC, 1, false, 28 /* ENOSPC */);
    assert_int_equal(journal_write_step(3, 0, &error), AMP_EIO);
    assert_int_equal(faults_disarm(), 1);
    assert_string_equal(error.reason, "STORE_FAILED");
    faults_arm(FAULTS_CLOSE, 1, false, 28);
    assert_int_equal(journal_write_step(3, 0, &error), AMP_EIO);
    assert_int_equal(faults_disarm(), 1);
    after();
}

/* ---- the data directory ---- */

static struct ampd_datadir held = {.lock_fd = -1};

static int open_dir(struct amp_error *error)
{
    ampd_datadir_close(&held);
    int rc = ampd_datadir_open(&held, dir, error);
    /* The code says whether it was called wrongly; here it is the disk. */
    return rc;
}

static void dir_state(struct text *text)
{
    add_file(text, "VERSION");
}

static void close_dir(void)
{
    ampd_datadir_close(&held);
    after();
}

static const struct scenario new_dir = {.name = "data directory",
                                        .before = before_nothing,
                                        .act = open_dir,
                                        .state = dir_state,
                                        .after = close_dir,
                                        .grows_old = true}; /* an empty VERSION */

static void a_directory_that_could_not_be_opened_can_be_opened_later(void **s)
{
    scenario_memory(&new_dir);
    scenario_disk(&new_dir);
}

int main(void)
{
    faults_install();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checkpoint_is_whole_or_not_there_when_memory_is_out),
        cmocka_unit_test(a_checkpoint_is_whole_or_not_there_when_the_disk_fails),
        cmocka_unit_test(a_vote_is_whole_or_not_there_when_memory_is_out),
        cmocka_unit_test(a_vote_is_whole_or_not_there_when_the_disk_fails),
        cmocka_unit_test(a_vote_whose_sync_finds_the_disk_full_is_not_tried_again),
        cmocka_unit_test(a_directory_that_could_not_be_opened_can_be_opened_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
