/* Checkpoint files: round trip, sameness of bytes, damage, failing disks, what a sweep leaves. */
#include "storage/checkpoint.h"
#include "storage/checkpoint_remove.h"
#include "storage/checkpoint_writer.h"
#include "storage/store.h"
#include "tests/unit/storage_faults.h"
#include "tests/unit/storage_fixture.h"

#include "base/random.h"

#include <errno.h>
#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define PARAMETERS 3
#define FLOATS     1024

static const uint64_t matrix[] = {12, 7}, vector[] = {5};

/* A model of three parameters in one array of floats: b has no v, and the scalar c has no moments. */
struct model {
    float master[FLOATS], m[FLOATS], v[FLOATS];
    struct ampd_checkpoint_tensor tensors[PARAMETERS];
    struct ampd_checkpoint_target targets[PARAMETERS];
};

struct fixture {
    char directory[256];
    struct ampd_checkpoint_path place;
    struct model from, to;
    struct ampd_checkpoint_state state;
    struct ampd_checkpoint_record record;
};

static void lay_out(struct model *model)
{
    struct ampd_checkpoint_target targets[PARAMETERS] = {
        {"b/weight", 2, matrix, model->master, model->m, NULL, false, 0, 0},
        {"a", 1, vector, model->master + 128, model->m + 128, model->v + 128, false, 0, 0},
        {"c\xc3\xa4", 0, NULL, model->master + 192, NULL, NULL, false, 0, 0},
    };
    memcpy(model->targets, targets, sizeof targets);
    for (int i = 0; i < PARAMETERS; i++)
        model->tensors[i] = (struct ampd_checkpoint_tensor){targets[i].name,
                                                            targets[i].dimensions,
                                                            targets[i].shape,
                                                            targets[i].master,
                                                            targets[i].m,
                                                            targets[i].v,
                                                            false,
                                                            0,
                                                            0};
}

static void fill(struct model *model, uint64_t seed)
{
    struct amp_random random;
    amp_random_init(&random, seed);
    for (int i = 0; i < FLOATS; i++) {
        model->master[i] = (float)amp_random_unit(&random);
        model->m[i] = -(float)amp_random_unit(&random);
        model->v[i] = (float)amp_random_unit(&random) * 0x1p-140f;
    }
}

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    strcpy(fixture->directory, storage_fixture_directory());
    fixture->place = (struct ampd_checkpoint_path){fixture->directory, "m", 0, 1};
    lay_out(&fixture->from);
    lay_out(&fixture->to);
    fill(&fixture->from, 1);
    fixture->state.step = 100;
    fixture->state.version = 97;
    fixture->state.carry.scaler = (struct amp_scaler_state){0.1f, UINT64_MAX, 3, 2, 1, 4, 5, 100, 97, 3};
    fixture->state.optimizer = AMP_OPT_ADAMW;
    fixture->state.world_size = 3;
    fixture->state.user_states = calloc(3, sizeof *fixture->state.user_states);
    fixture->state.user_states[1].data = calloc(1, 300);
    fixture->state.user_states[1].size = 300;
    fixture->state.user_states[1].data[7] = 0xee;
    storage_faults_clear();
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    storage_faults_clear();
    ampd_checkpoint_state_clear(&fixture->state);
    storage_fixture_remove(fixture->directory);
    free(fixture);
    return 0;
}

static int write_checkpoint(struct fixture *fixture, struct amp_error *error)
{
    return ampd_checkpoint_write(&fixture->place, fixture->from.tensors, PARAMETERS, &fixture->state, NULL,
                                 &fixture->record, error);
}

static int read_checkpoint(struct fixture *fixture, struct ampd_checkpoint_state *state, struct amp_error *error)
{
    return ampd_checkpoint_read(fixture->directory, fixture->record.file, fixture->record.manifest, fixture->to.targets,
                                PARAMETERS, state, error);
}

/* The whole file; *size is set. */
static uint8_t *load_file(const struct fixture *fixture, const char *file, size_t *size)
{
    char path[600];
    struct stat info;
    (void)snprintf(path, sizeof path, "%s/%s", fixture->directory, file);
    FILE *stream = fopen(path, "rb");
    assert_non_null(stream);
    assert_int_equal(fstat(fileno(stream), &info), 0);
    *size = (size_t)info.st_size;
    uint8_t *data = malloc(*size + 1);
    assert_int_equal(fread(data, 1, *size, stream), *size);
    assert_int_equal(fclose(stream), 0);
    return data;
}

static void store_file(const struct fixture *fixture, const char *file, const void *data, size_t size)
{
    char path[600];
    (void)snprintf(path, sizeof path, "%s/%s", fixture->directory, file);
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(data, 1, size, stream), size);
    assert_int_equal(fclose(stream), 0);
}

static bool exists(const struct fixture *fixture, const char *file)
{
    char path[600];
    (void)snprintf(path, sizeof path, "%s/%s", fixture->directory, file);
    return access(path, F_OK) == 0;
}

/* ---- what is written ---- */

static void a_state_comes_back_bit_for_bit(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_checkpoint_state read;
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    assert_string_equal(fixture->record.file, "models/m/checkpoints/step-0000000100/shard-0-of-1.safetensors");
    assert_int_equal(fixture->record.step, 100);
    assert_int_equal(fixture->record.version, 97);
    assert_int_equal(read_checkpoint(fixture, &read, NULL), 0);
    assert_int_equal(read.step, 100);
    assert_int_equal(read.version, 97);
    assert_memory_equal(&read.carry, &fixture->state.carry, sizeof read.carry);
    assert_int_equal(read.optimizer, AMP_OPT_ADAMW);
    assert_int_equal(read.world_size, 3);
    assert_int_equal(read.user_states[0].size + read.user_states[2].size, 0);
    assert_int_equal(read.user_states[1].size, 300);
    assert_memory_equal(read.user_states[1].data, fixture->state.user_states[1].data, 300);
    ampd_checkpoint_state_clear(&read);
    const struct model *from = &fixture->from, *to = &fixture->to;
    assert_memory_equal(to->master, from->master, 84 * sizeof(float));
    assert_memory_equal(to->m, from->m, 84 * sizeof(float));
    assert_memory_equal(to->master + 128, from->master + 128, 5 * sizeof(float));
    assert_memory_equal(to->v + 128, from->v + 128, 5 * sizeof(float));
    assert_memory_equal(to->master + 192, from->master + 192, sizeof(float));
    assert_true(to->v[0] == 0 && to->master[84] == 0 && to->m[192] == 0); /* nothing beyond the tensors */
}

/* Nor do those of before it could be set. */
static void a_checkpoint_names_a_learning_rate_only_where_one_was_set(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_checkpoint_state read;
    const double rates[] = {0, 0.1, 0x1p-1022, (double)FLT_MAX};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        size_t size;
        fixture->state.carry.lr = rates[i];
        assert_int_equal(write_checkpoint(fixture, NULL), 0);
        uint8_t *file = load_file(fixture, fixture->record.file, &size);
        static const char key[] = "learning_rate_bits";
        bool named = false;
        for (size_t at = 0; at + sizeof key <= size; at++)
            named = named || memcmp(file + at, key, sizeof key - 1) == 0;
        free(file);
        assert_int_equal(named, i > 0);
        assert_int_equal(read_checkpoint(fixture, &read, NULL), 0);
        assert_true(read.carry.lr == rates[i]);
        ampd_checkpoint_state_clear(&read);
    }
}

static void a_file_says_whether_its_moments_are_of_centered_rmsprop(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_checkpoint_state read;
    const enum ampd_centered all[] = {AMPD_CENTERED_UNKNOWN, AMPD_CENTERED_NOT, AMPD_CENTERED};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        fixture->state.centered = all[i];
        assert_int_equal(write_checkpoint(fixture, NULL), 0);
        assert_int_equal(read_checkpoint(fixture, &read, NULL), 0);
        assert_int_equal(read.centered, all[i]);
        ampd_checkpoint_state_clear(&read);
    }
}

/* As an ampd from before that wrote it. */
static void a_file_that_names_no_optimizer_is_read(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_checkpoint_state read;
    fixture->state.optimizer = AMP_OPT_UNSET;
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    size_t size;
    uint8_t *bytes = load_file(fixture, fixture->record.file, &size);
    assert_null(strstr((const char *)bytes + 8, "optimizer"));
    free(bytes);
    assert_int_equal(read_checkpoint(fixture, &read, NULL), 0);
    assert_int_equal(read.optimizer, AMP_OPT_UNSET);
    assert_int_equal(read.step, 100);
    ampd_checkpoint_state_clear(&read);
}

static void equal_states_give_equal_files(void **state)
{
    struct fixture *fixture = *state;
    size_t first_size, second_size;
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    uint8_t *first = load_file(fixture, fixture->record.file, &first_size);
    struct ampd_checkpoint_tensor swap = fixture->from.tensors[0]; /* the order given does not matter */
    fixture->from.tensors[0] = fixture->from.tensors[1];
    fixture->from.tensors[1] = swap;
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    uint8_t *second = load_file(fixture, fixture->record.file, &second_size);
    assert_int_equal(first_size, second_size);
    assert_int_equal(first_size, fixture->record.size_bytes);
    assert_memory_equal(first, second, first_size);
    uint64_t header;
    memcpy(&header, first, 8);
    assert_int_equal((8 + header) % 64, 0);
    assert_null(strstr((const char *)first + 8, fixture->directory));
    free(first);
    free(second);
}

static void any_change_of_the_state_changes_the_manifest_or_the_file(void **state)
{
    struct fixture *fixture = *state;
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    struct ampd_checkpoint_record before = fixture->record;
    fixture->from.v[130] += 1.0f;
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    assert_memory_not_equal(before.manifest, fixture->record.manifest, sizeof before.manifest);
    struct ampd_checkpoint_state read;
    fixture->record = before;
    assert_int_equal(read_checkpoint(fixture, &read, NULL), AMP_EDATALOSS);
    assert_null(read.user_states);
}

static void names_that_would_be_ambiguous_are_refused(void **state)
{
    struct fixture *fixture = *state;
    static const char *const names[] = {"", "x#m", "x@0:1", "__metadata__", "a", "\xff"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fixture->from.tensors[0].name = names[i];
        assert_int_equal(write_checkpoint(fixture, NULL), AMP_EINVAL);
    }
    fixture->from.tensors[0].name = "ok";
    fixture->place.model = "../m";
    assert_int_equal(write_checkpoint(fixture, NULL), AMP_EINVAL);
    assert_false(exists(fixture, "models"));
}

/* ---- damage ---- */

static void every_flipped_bit_is_noticed(void **state)
{
    struct fixture *fixture = *state;
    size_t size;
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    uint8_t *data = load_file(fixture, fixture->record.file, &size);
    uint64_t header;
    memcpy(&header, data, 8);
    const char *end = strrchr((const char *)data + 8, '}'); /* what follows is padding */
    for (size_t bit = 0; bit < size * 8; bit += bit < 64 ? 1 : 5) {
        const uint8_t *at = data + bit / 8;
        if ((const char *)at > end && at < data + 8 + header)
            continue;
        struct ampd_checkpoint_state read;
        data[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        store_file(fixture, fixture->record.file, data, size);
        int rc = read_checkpoint(fixture, &read, NULL);
        assert_true(rc == AMP_EDATALOSS || rc == AMP_EVERSION);
        data[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    free(data);
}

static void every_cut_off_file_is_noticed(void **state)
{
    struct fixture *fixture = *state;
    size_t size;
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    uint8_t *data = load_file(fixture, fixture->record.file, &size);
    for (size_t cut = 0; cut < size; cut += cut < 16 || size - cut < 16 ? 1 : 11) {
        struct ampd_checkpoint_state read;
        store_file(fixture, fixture->record.file, data, cut);
        assert_int_equal(read_checkpoint(fixture, &read, NULL), AMP_EDATALOSS);
    }
    struct ampd_checkpoint_state read;
    data[size] = 0;
    store_file(fixture, fixture->record.file, data, size + 1);
    assert_int_equal(read_checkpoint(fixture, &read, NULL), AMP_EDATALOSS);
    free(data);
}

static void hostile_headers_are_refused(void **state)
{
    struct fixture *fixture = *state;
    static const char *const headers[] = {
        "[]",
        "{}",
        "nonsense",
        "{\"__metadata__\":[]}",
        "{\"__metadata__\":{}}",
        "{\"__metadata__\":{\"format\":\"pt\"}}",
        "{\"__metadata__\":{\"format\":\"ampd/1\"}}",
        "{\"__metadata__\":{\"format\":\"ampd/99999999999999999999999\"}}",
        "{\"__metadata__\":{\"format\":\"ampd/1\",\"hash\":\"00000000000000000000000000000000\"}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,-4]},\"__metadata__\":{}}",
        "{\"a\":1,\"a\":2}",
    };
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        uint8_t file[256];
        uint64_t size = strlen(headers[i]);
        struct ampd_checkpoint_state read;
        memcpy(file, &size, 8);
        memcpy(file + 8, headers[i], size);
        store_file(fixture, fixture->record.file, file, 8 + size);
        assert_int_equal(read_checkpoint(fixture, &read, NULL), AMP_EDATALOSS);
    }
    struct ampd_checkpoint_state read;
    static const uint8_t huge[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{', '}'};
    store_file(fixture, fixture->record.file, huge, sizeof huge);
    assert_int_equal(read_checkpoint(fixture, &read, NULL), AMP_EDATALOSS);
}

static void a_file_of_another_model_is_refused(void **state)
{
    struct fixture *fixture = *state;
    static const uint64_t other[] = {7, 12};
    struct ampd_checkpoint_state read;
    struct amp_error error;
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    fixture->to.targets[0].shape = other;
    assert_int_equal(read_checkpoint(fixture, &read, &error), AMP_EDATALOSS);
    assert_non_null(strstr(error.text, "\"b/weight\""));
    fixture->to.targets[0].shape = matrix;
    fixture->to.targets[0].m = NULL;
    assert_int_equal(read_checkpoint(fixture, &read, NULL), AMP_EDATALOSS);
    strcpy(fixture->record.file, "models/m/checkpoints/step-0000000009/none");
    assert_int_equal(read_checkpoint(fixture, &read, NULL), AMP_ENOTFOUND);
}

/* ---- failing disks, stopping, removing ---- */

static void a_full_disk_leaves_nothing(void **state)
{
    struct fixture *fixture = *state;
    static const char file[] = "models/m/checkpoints/step-0000000100/shard-0-of-1.safetensors";
    struct amp_error error;
    char temporary[300];
    unsigned refused = 0;
    for (unsigned at = 1; at < 100; at++, refused++) {
        storage_faults_clear();
        storage_faults.fail_write_at = at;
        storage_faults.write_errno = ENOSPC;
        if (write_checkpoint(fixture, &error) == 0)
            break;
        assert_int_equal(error.code, AMP_EEXHAUSTED);
        assert_string_equal(error.reason, "NO_SPACE");
        assert_false(exists(fixture, file));
        (void)snprintf(temporary, sizeof temporary, "%s.tmp", file);
        assert_false(exists(fixture, temporary));
    }
    assert_true(refused > 0); /* a small file is one write; test_storage_bulk.c has large ones */
}

static void without_descriptors_nothing_is_left_and_it_can_be_tried_again(void **state)
{
    struct fixture *fixture = *state;
    struct amp_error error;
    for (unsigned made = 0; made < 2; made++) {
        storage_fixture_no_descriptors(true);
        int rc = write_checkpoint(fixture, &error);
        storage_fixture_no_descriptors(false);
        assert_int_equal(rc, AMP_EEXHAUSTED);
        assert_string_equal(error.reason, "NO_DESCRIPTORS");
        assert_int_equal(write_checkpoint(fixture, NULL), 0);
    }
}

static void a_failed_fsync_is_an_error_wherever_it_is(void **state)
{
    struct fixture *fixture = *state;
    struct amp_error error;
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    unsigned fsyncs = storage_faults.fsyncs;
    assert_int_equal(fsyncs, 6); /* four directories, the file, and its directory after the rename */
    for (unsigned at = 1; at <= fsyncs; at++) {
        storage_faults_clear();
        storage_faults.fail_fsync_at = at;
        assert_int_equal(write_checkpoint(fixture, &error), AMP_EIO);
        assert_string_equal(error.reason, "STORE_FAILED");
    }
}

static void a_stopped_write_leaves_the_file_before_it(void **state)
{
    struct fixture *fixture = *state;
    atomic_bool cancel = true;
    struct ampd_checkpoint_record record;
    size_t size, again;
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    uint8_t *before = load_file(fixture, fixture->record.file, &size);
    fill(&fixture->from, 2);
    assert_int_equal(ampd_checkpoint_write(&fixture->place, fixture->from.tensors, PARAMETERS, &fixture->state, &cancel,
                                           &record, NULL),
                     AMP_ECANCELLED);
    uint8_t *after = load_file(fixture, fixture->record.file, &again);
    assert_int_equal(size, again);
    assert_memory_equal(before, after, size);
    free(before);
    free(after);
}

/* In a shared directory: stopped in the middle of its part, it wakes up when its successor's is written. */
static void a_writer_that_has_lost_its_place_spoils_no_file_of_its_successor(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_checkpoint_writer *writer;
    struct ampd_checkpoint_record record;
    struct ampd_checkpoint_state found = {0};
    static const float stale[12 * 7] = {1};
    assert_int_equal(
        ampd_checkpoint_begin(&fixture->place, fixture->from.tensors, PARAMETERS, &fixture->state, &writer, NULL), 0);
    assert_int_equal(ampd_checkpoint_put(writer, 0, 0, 42, stale, stale, NULL, NULL), 0);
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    assert_int_equal(ampd_checkpoint_put(writer, 0, 42, 42, stale, stale, NULL, NULL), 0);
    for (uint32_t i = 1; i < PARAMETERS; i++) {
        const struct ampd_checkpoint_tensor *tensor = &fixture->from.tensors[i];
        assert_int_equal(ampd_checkpoint_put(writer, i, 0, i == 1 ? 5 : 1, tensor->master, tensor->m, tensor->v, NULL),
                         0);
    }
    assert_int_not_equal(ampd_checkpoint_end(writer, &record, NULL), 0); /* its name is taken, or nobody's */
    ampd_checkpoint_abandon(writer);
    assert_int_equal(read_checkpoint(fixture, &found, NULL), 0);
    ampd_checkpoint_state_clear(&found);
}

/* Likewise while its successor still writes: neither its name nor its file is touched. */
static void a_writer_that_has_lost_its_place_names_no_file_of_its_successor(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_checkpoint_writer *writers[2];
    struct ampd_checkpoint_state found = {0};
    for (int w = 0; w < 2; w++) {
        assert_int_equal(ampd_checkpoint_begin(&fixture->place, fixture->from.tensors, PARAMETERS, &fixture->state,
                                               &writers[w], NULL),
                         0);
    }
    for (int w = 0; w < 2; w++) {
        for (uint32_t i = 0; i < PARAMETERS; i++) {
            const struct ampd_checkpoint_tensor *tensor = &fixture->from.tensors[i];
            assert_int_equal(ampd_checkpoint_put(writers[w], i, 0,
                                                 i == 0   ? 84
                                                 : i == 1 ? 5
                                                          : 1,
                                                 tensor->master, tensor->m, tensor->v, NULL),
                             0);
        }
        int rc = ampd_checkpoint_end(writers[w], &fixture->record, NULL);
        if (w == 0) {
            assert_int_equal(rc, AMP_EIO);
            ampd_checkpoint_abandon(writers[0]);
        } else {
            assert_int_equal(rc, 0);
        }
    }
    assert_int_equal(read_checkpoint(fixture, &found, NULL), 0);
    ampd_checkpoint_state_clear(&found);
}

static void remove_takes_the_empty_step_directory_too(void **state)
{
    struct fixture *fixture = *state;
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    assert_int_equal(ampd_checkpoint_remove(fixture->directory, fixture->record.file, NULL), 0);
    assert_false(exists(fixture, "models/m/checkpoints/step-0000000100"));
    assert_true(exists(fixture, "models/m/checkpoints"));
    assert_int_equal(ampd_checkpoint_remove(fixture->directory, fixture->record.file, NULL), 0);
}

static void a_sweep_keeps_what_is_catalogued_and_what_is_not_ours(void **state)
{
    struct fixture *fixture = *state;
    assert_int_equal(ampd_checkpoint_sweep(&fixture->place, NULL, 0, UINT64_MAX, NULL), 0); /* nothing there yet */
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    struct ampd_checkpoint_record keep = fixture->record;
    store_file(fixture, "models/m/checkpoints/step-0000000100/shard-0-of-1.safetensors.tmp", "x", 1);
    store_file(fixture, "models/m/checkpoints/notes.txt", "x", 1);
    fixture->state.step = 200;
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    fixture->state.step = 300;
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    store_file(fixture, "models/m/checkpoints/step-0000000300/mine", "x", 1);
    assert_int_equal(ampd_checkpoint_sweep(&fixture->place, &keep, 1, 299, NULL), 0);
    assert_true(exists(fixture, fixture->record.file)); /* of step 300 */
    assert_int_equal(ampd_checkpoint_sweep(&fixture->place, &keep, 1, UINT64_MAX, NULL), 0);
    assert_true(exists(fixture, keep.file));
    assert_false(exists(fixture, "models/m/checkpoints/step-0000000100/shard-0-of-1.safetensors.tmp"));
    assert_false(exists(fixture, "models/m/checkpoints/step-0000000200"));
    assert_true(exists(fixture, "models/m/checkpoints/step-0000000300/mine"));
    assert_false(exists(fixture, fixture->record.file));
    assert_true(exists(fixture, "models/m/checkpoints/notes.txt"));
}

static void what_was_cut_off_goes_from_every_step_and_what_is_complete_stays(void **state)
{
    struct fixture *fixture = *state;
    static const char cut_off[] = "models/m/checkpoints/step-0000000300/shard-0-of-1.safetensors.tmp";
    static const char of_another[] = "models/m/checkpoints/step-0000000100/shard-1-of-2.safetensors.tmp";
    struct ampd_checkpoint_path second = {fixture->directory, "m", 1, 2};
    assert_int_equal(ampd_checkpoint_sweep_temporary(&second, NULL), 0); /* nothing there yet */
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    assert_int_equal(mkdir(storage_fixture_below(fixture->directory, "models/m/checkpoints/step-0000000300"), 0700), 0);
    store_file(fixture, cut_off, "x", 1);
    store_file(fixture, of_another, "x", 1);
    assert_int_equal(ampd_checkpoint_sweep_temporary(&second, NULL), 0);
    assert_true(exists(fixture, cut_off));
    assert_false(exists(fixture, of_another));
    assert_int_equal(ampd_checkpoint_sweep_temporary(&fixture->place, NULL), 0);
    assert_false(exists(fixture, "models/m/checkpoints/step-0000000300"));
    assert_true(exists(fixture, fixture->record.file));
}

/*
 * Shards may share the directory: each takes its own files away, and files of another number of shards when they are of
 * no use.
 */
static void a_sweep_leaves_the_files_of_other_shards(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_checkpoint_record keep = {.step = 200};
    const char *const mine[] = {
        "models/m/checkpoints/step-0000000100/shard-1-of-2.safetensors",
        "models/m/checkpoints/step-0000000100/shard-3-of-4.safetensors", /* 3 modulo 2 */
        "models/m/checkpoints/step-0000000200/shard-1-of-3.safetensors.tmp",
    };
    const char *const others[] = {
        "models/m/checkpoints/step-0000000100/shard-0-of-2.safetensors",
        "models/m/checkpoints/step-0000000100/shard-0-of-2.safetensors.tmp",
        "models/m/checkpoints/step-0000000100/shard-2-of-4.safetensors",
        "models/m/checkpoints/step-0000000200/shard-1-of-2.safetensors", /* kept */
        "models/m/checkpoints/step-0000000200/shard-1-of-3.safetensors", /* the kept one may be made of it */
        "models/m/checkpoints/step-0000000100/shard-1-of-2.safetensors.old",
    };
    (void)snprintf(keep.file, sizeof keep.file, "%s", others[3]);
    fixture->state.step = 100;
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    fixture->state.step = 200;
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    for (unsigned i = 0; i < sizeof mine / sizeof *mine; i++)
        store_file(fixture, mine[i], "x", 1);
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++)
        store_file(fixture, others[i], "x", 1);
    struct ampd_checkpoint_path place = {fixture->directory, "m", 1, 2};
    assert_int_equal(ampd_checkpoint_sweep(&place, &keep, 1, UINT64_MAX, NULL), 0);
    for (unsigned i = 0; i < sizeof mine / sizeof *mine; i++)
        assert_false(exists(fixture, mine[i]));
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++)
        assert_true(exists(fixture, others[i]));
    assert_int_equal(ampd_checkpoint_remove_model(&place, NULL), 0);
    assert_false(exists(fixture, others[3]));
    assert_false(exists(fixture, others[4]));
    assert_true(exists(fixture, others[0]));
    place.shards = place.shard = 0;
    assert_int_equal(ampd_checkpoint_remove_model(&place, NULL), 0);
    assert_false(exists(fixture, others[0]));
    assert_true(exists(fixture, others[5]));
}

static void a_file_name_tells_whose_part_it_is(void **state)
{
    uint32_t shard, shards;
    assert_true(
        ampd_checkpoint_file_shard("models/m/checkpoints/step-0000000001/shard-3-of-11.safetensors", &shard, &shards));
    assert_int_equal(shard, 3);
    assert_int_equal(shards, 11);
    assert_false(ampd_checkpoint_file_shard("shard-2-of-2.safetensors", &shard, &shards));
    assert_false(ampd_checkpoint_file_shard("shard-x-of-2.safetensors", &shard, &shards));
    assert_false(ampd_checkpoint_file_shard("shard-1-of-2.bin", &shard, &shards));
    assert_false(ampd_checkpoint_file_shard("", &shard, &shards));
}

static void a_file_name_that_comes_from_elsewhere_is_that_of_its_model_and_step(void **state)
{
    (void)state;
    static const char name[] = "models/m/checkpoints/step-0000000001/shard-3-of-11.safetensors";
    assert_true(ampd_checkpoint_file_is_of(name, "m", 1));
    assert_false(ampd_checkpoint_file_is_of(name, "m", 2));
    assert_false(ampd_checkpoint_file_is_of(name, "n", 1));
    assert_false(ampd_checkpoint_file_is_of(name, "..", 1));
    assert_false(ampd_checkpoint_file_is_of("../../../elsewhere/step-0000000001/shard-3-of-11.safetensors", "m", 1));
    assert_false(ampd_checkpoint_file_is_of("models/m/checkpoints/step-0000000001/shard-+3-of-11.safetensors", "m", 1));
    assert_false(ampd_checkpoint_file_is_of("", "m", 1));
}

/*
 * A link to nowhere is a name that can be listed and not opened, as a directory that another thread removes meanwhile.
 */
static void a_model_is_removed_also_while_a_step_of_it_is(void **state)
{
    struct fixture *fixture = *state;
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/models/m/checkpoints/step-0000000007", fixture->directory);
    assert_int_equal(symlink("nowhere", path), 0);
    struct amp_error error = {0};
    assert_int_equal(ampd_checkpoint_remove_model(&fixture->place, &error), 0);
    assert_false(exists(fixture, fixture->record.file));
    assert_int_equal(unlink(path), 0);
}

static int note_deleted(void *arg, const char *model)
{
    assert_string_equal(model, "m");
    ++*(unsigned *)arg;
    return 0;
}

static unsigned marked(struct fixture *fixture, uint32_t shard, uint32_t shards)
{
    const struct ampd_checkpoint_path place = {fixture->directory, "", shard, shards};
    unsigned count = 0;
    assert_int_equal(ampd_checkpoint_each_deleted(&place, &count, NULL, note_deleted), 0);
    return count;
}

/* Of any number of shards, if they fall to this one; not those that are about to go, and none that is not whole. */
static void files_of_a_model_that_nobody_knows_are_found(void **state)
{
    struct fixture *fixture = *state;
    static const char part[] = "models/m/checkpoints/step-0000000100/shard-1-of-3.safetensors";
    struct ampd_checkpoint_path place = {fixture->directory, "m", 1, 2};
    char file[512];
    assert_int_equal(ampd_checkpoint_any(&place, file, sizeof file, NULL), 0); /* nothing there yet */
    assert_string_equal(file, "");
    assert_int_equal(write_checkpoint(fixture, NULL), 0); /* that of shard 0 of 1 */
    store_file(fixture, "models/m/checkpoints/step-0000000100/shard-1-of-2.safetensors.tmp", "x", 1);
    assert_int_equal(ampd_checkpoint_any(&place, file, sizeof file, NULL), 0);
    assert_string_equal(file, "");
    store_file(fixture, part, "x", 1);
    assert_int_equal(ampd_checkpoint_any(&place, file, sizeof file, NULL), 0);
    assert_string_equal(file, part);
    assert_int_equal(ampd_checkpoint_mark_deleted(&place, NULL), 0);
    assert_int_equal(ampd_checkpoint_any(&place, file, sizeof file, NULL), 0);
    assert_string_equal(file, "");
    place.shard = 0;
    assert_int_equal(ampd_checkpoint_any(&place, file, sizeof file, NULL), 0);
    assert_string_equal(file, fixture->record.file);
    place.model = "..";
    assert_int_equal(ampd_checkpoint_any(&place, file, sizeof file, NULL), AMP_EINVAL);
}

/* Also by a shard of another number of them, to which its files fall. */
static void a_deletion_that_was_begun_is_found_by_whoever_is_the_shard(void **state)
{
    struct fixture *fixture = *state;
    static const char file[] = "models/m/checkpoints/step-0000000100/shard-1-of-2.safetensors";
    struct ampd_checkpoint_path place = {fixture->directory, "m", 1, 2};
    assert_int_equal(ampd_checkpoint_mark_deleted(&place, NULL), 0); /* it has no files */
    assert_int_equal(marked(fixture, 1, 2), 0);
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    store_file(fixture, file, "x", 1);
    store_file(fixture, "models/m/shard-2-of-2.deleted", "x", 1);
    store_file(fixture, "models/m/shard-0-of-2.deleted.not", "x", 1);
    for (int i = 0; i < 2; i++)
        assert_int_equal(ampd_checkpoint_mark_deleted(&place, NULL), 0);
    assert_int_equal(marked(fixture, 1, 2), 1);
    assert_int_equal(marked(fixture, 0, 2), 0);
    assert_int_equal(marked(fixture, 1, 3), 1);
    assert_int_equal(marked(fixture, 0, 1), 1);
    assert_int_equal(ampd_checkpoint_unmark_deleted(&place, NULL), 0);
    assert_int_equal(marked(fixture, 1, 2), 0);
    assert_int_equal(ampd_checkpoint_mark_deleted(&place, NULL), 0);
    assert_int_equal(ampd_checkpoint_remove_model(&place, NULL), 0);
    assert_int_equal(marked(fixture, 1, 2), 0);
    assert_false(exists(fixture, file));
    place.model = "..";
    assert_int_equal(ampd_checkpoint_mark_deleted(&place, NULL), AMP_EINVAL);
}

/* ---- a foreign reader ---- */

static void a_plain_python_reader_opens_the_file(void **state)
{
    struct fixture *fixture = *state;
    if (access("/usr/bin/python3", X_OK) != 0) {
        print_message("SKIPPED: no /usr/bin/python3 on this machine\n");
        skip();
    }
    assert_int_equal(write_checkpoint(fixture, NULL), 0);
    char command[2048];
    (void)snprintf(command, sizeof command,
                   "/usr/bin/python3 -c '\n"
                   "import json, struct, sys\n"
                   "data = open(sys.argv[1], \"rb\").read()\n"
                   "n, = struct.unpack(\"<Q\", data[:8])\n"
                   "head = json.loads(data[8:8 + n]); meta = head.pop(\"__metadata__\"); body = data[8 + n:]\n"
                   "assert all(type(v) is str for v in meta.values()) and meta[\"step\"] == \"100\"\n"
                   "assert head[\"b/weight\"][\"shape\"] == [12, 7] and head[\"c\\u00e4\"][\"shape\"] == []\n"
                   "assert sorted(head) == [\"a\", \"a#m\", \"a#v\", \"b/weight\", \"b/weight#m\", \"c\\u00e4\", "
                   "\"user_state#1\"]\n"
                   "spans = sorted(t[\"data_offsets\"] for t in head.values())\n"
                   "assert spans[0][0] == 0 and spans[-1][1] == len(body)\n"
                   "assert all(a[1] == b[0] for a, b in zip(spans, spans[1:]))\n"
                   "begin, end = head[\"a\"][\"data_offsets\"]\n"
                   "print(*(\"%%08x\" %% x for x in struct.unpack(\"<5I\", body[begin:end])))\n"
                   "' %s/%s",
                   fixture->directory, fixture->record.file);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    char line[128] = "", expected[128] = "";
    assert_non_null(fgets(line, sizeof line, pipe));
    assert_int_equal(pclose(pipe), 0);
    uint32_t bits[5];
    memcpy(bits, fixture->from.master + 128, sizeof bits);
    (void)snprintf(expected, sizeof expected, "%08x %08x %08x %08x %08x\n", bits[0], bits[1], bits[2], bits[3],
                   bits[4]);
    assert_string_equal(line, expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_state_comes_back_bit_for_bit, setup, teardown),
        cmocka_unit_test_setup_teardown(a_checkpoint_names_a_learning_rate_only_where_one_was_set, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_says_whether_its_moments_are_of_centered_rmsprop, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_names_no_optimizer_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(equal_states_give_equal_files, setup, teardown),
        cmocka_unit_test_setup_teardown(any_change_of_the_state_changes_the_manifest_or_the_file, setup, teardown),
        cmocka_unit_test_setup_teardown(names_that_would_be_ambiguous_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(every_flipped_bit_is_noticed, setup, teardown),
        cmocka_unit_test_setup_teardown(every_cut_off_file_is_noticed, setup, teardown),
        cmocka_unit_test_setup_teardown(hostile_headers_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_of_another_model_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk_leaves_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(without_descriptors_nothing_is_left_and_it_can_be_tried_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failed_fsync_is_an_error_wherever_it_is, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stopped_write_leaves_the_file_before_it, setup, teardown),
        cmocka_unit_test_setup_teardown(a_writer_that_has_lost_its_place_spoils_no_file_of_its_successor, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_writer_that_has_lost_its_place_names_no_file_of_its_successor, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(remove_takes_the_empty_step_directory_too, setup, teardown),
        cmocka_unit_test_setup_teardown(a_sweep_leaves_the_files_of_other_shards, setup, teardown),
        cmocka_unit_test(a_file_name_tells_whose_part_it_is),
        cmocka_unit_test(a_file_name_that_comes_from_elsewhere_is_that_of_its_model_and_step),
        cmocka_unit_test_setup_teardown(what_was_cut_off_goes_from_every_step_and_what_is_complete_stays, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_sweep_keeps_what_is_catalogued_and_what_is_not_ours, setup, teardown),
        cmocka_unit_test_setup_teardown(a_model_is_removed_also_while_a_step_of_it_is, setup, teardown),
        cmocka_unit_test_setup_teardown(files_of_a_model_that_nobody_knows_are_found, setup, teardown),
        cmocka_unit_test_setup_teardown(a_deletion_that_was_begun_is_found_by_whoever_is_the_shard, setup, teardown),
        cmocka_unit_test_setup_teardown(a_plain_python_reader_opens_the_file, setup, teardown),
    };
    return cmocka_run_group_tests_name("storage_checkpoint", tests, NULL, NULL);
}
