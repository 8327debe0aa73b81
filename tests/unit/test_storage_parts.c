/*
 * Checkpoints of models that are cut into blocks over shards: written for K1 shards, read for K2, bit for bit; and what
 * a damaged or missing part does. The cuts are the core's (ampd_layout_shard).
 */
#include "base/random.h"
#include "server/core/model/layout.h"
#include "storage/checkpoint.h"
#include "storage/store.h"
#include "tests/unit/storage_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define BLOCK      64
#define SHARDS_MAX 4
#define PARAMETERS 4

/* 330 elements over 7 blocks of 64, pads included: "b" lies in five of them, "d" begins with a pad before it. */
static struct ampd_parameter_spec parameters[PARAMETERS] = {
    {.name = "a", .dimensions = 1, .shape = {40}},
    {.name = "b", .dimensions = 2, .shape = {5, 51}},
    {.name = "c", .dimensions = 0},
    {.name = "d", .dimensions = 1, .shape = {34}},
};

struct fixture {
    char directory[256];
    struct ampd_layout *layout;
    float *from[3], *to[3]; /* masters, m, v: flat */
    struct ampd_checkpoint_state state;
    struct ampd_checkpoint_record records[SHARDS_MAX];
};

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    const struct ampd_model_spec spec = {.name = "m", .parameters_count = PARAMETERS, .parameters = parameters};
    struct amp_random random;
    strcpy(fixture->directory, storage_fixture_directory());
    assert_int_equal(0, ampd_layout_new(&spec, BLOCK, &fixture->layout));
    amp_random_init(&random, 7);
    for (int k = 0; k < 3; k++) {
        fixture->from[k] = calloc(fixture->layout->elements, sizeof(float));
        fixture->to[k] = calloc(fixture->layout->elements, sizeof(float));
        for (uint32_t p = 0; p < PARAMETERS; p++)
            for (uint64_t i = 0; i < fixture->layout->sizes[p]; i++)
                fixture->from[k][fixture->layout->starts[p] + i] = (float)amp_random_unit(&random);
    }
    fixture->state = (struct ampd_checkpoint_state){.step = 12, .version = 11, .world_size = 2};
    fixture->state.carry.scaler.scale = 4096;
    fixture->state.user_states = calloc(2, sizeof *fixture->state.user_states);
    fixture->state.user_states[1].data = calloc(1, 9);
    fixture->state.user_states[1].size = 9;
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    for (int k = 0; k < 3; k++) {
        free(fixture->from[k]);
        free(fixture->to[k]);
    }
    ampd_layout_free(fixture->layout);
    ampd_checkpoint_state_clear(&fixture->state);
    storage_fixture_remove(fixture->directory);
    free(fixture);
    return 0;
}

/* What shard k of K has of each parameter, with its memory in the flat tensors. */
static void targets_of(const struct fixture *fixture, float *const flat[3], uint32_t shard, uint32_t shards,
                       struct ampd_checkpoint_target targets[PARAMETERS])
{
    const struct ampd_layout *layout = fixture->layout;
    uint64_t first, count;
    ampd_layout_shard(layout, shard, shards, &first, &count);
    uint64_t from = first * BLOCK, until = (first + count) * BLOCK;
    for (uint32_t p = 0; p < PARAMETERS; p++) {
        uint64_t start = layout->starts[p], stop = start + layout->sizes[p];
        uint64_t begin = from > start ? from : start, end = until < stop ? until : stop;
        if (begin >= end)
            begin = end = start;
        targets[p] = (struct ampd_checkpoint_target){.name = parameters[p].name,
                                                     .dimensions = parameters[p].dimensions,
                                                     .shape = parameters[p].shape,
                                                     .master = flat[0] + begin,
                                                     .m = flat[1] + begin,
                                                     .v = flat[2] + begin,
                                                     .is_part = true,
                                                     .first = begin - start,
                                                     .end = end - start};
    }
}

static void write_parts(struct fixture *fixture, uint32_t shards)
{
    for (uint32_t k = 0; k < shards; k++) {
        struct ampd_checkpoint_target targets[PARAMETERS];
        struct ampd_checkpoint_tensor tensors[PARAMETERS];
        const struct ampd_checkpoint_path place = {fixture->directory, "m", k, shards};
        targets_of(fixture, fixture->from, k, shards, targets);
        for (uint32_t p = 0; p < PARAMETERS; p++)
            tensors[p] = (struct ampd_checkpoint_tensor){targets[p].name,
                                                         targets[p].dimensions,
                                                         targets[p].shape,
                                                         targets[p].master,
                                                         targets[p].m,
                                                         targets[p].v,
                                                         true,
                                                         targets[p].first,
                                                         targets[p].end};
        assert_int_equal(
            0, ampd_checkpoint_write(&place, tensors, PARAMETERS, &fixture->state, NULL, &fixture->records[k], NULL));
    }
}

static int read_part_of(struct fixture *fixture, uint32_t parts, uint32_t shard, uint32_t shards,
                        struct amp_error *error)
{
    struct ampd_checkpoint_target targets[PARAMETERS];
    struct ampd_checkpoint_part files[SHARDS_MAX];
    struct ampd_checkpoint_state state;
    targets_of(fixture, fixture->to, shard, shards, targets);
    for (uint32_t k = 0; k < parts; k++)
        files[k] =
            (struct ampd_checkpoint_part){fixture->directory, fixture->records[k].file, fixture->records[k].manifest};
    int rc = ampd_checkpoint_read_parts(files, parts, targets, PARAMETERS, &state, error);
    if (rc == 0) {
        assert_int_equal(12, state.step);
        assert_true(state.carry.scaler.scale == 4096);
        assert_int_equal(9, state.user_states[1].size);
    }
    ampd_checkpoint_state_clear(&state);
    return rc;
}

static void a_checkpoint_of_any_number_of_shards_is_read_onto_any_other_bit_for_bit(void **state)
{
    struct fixture *fixture = *state;
    static const uint32_t pairs[][2] = {{1, 2}, {2, 1}, {2, 4}, {4, 3}, {3, 4}, {4, 1}, {1, 4}, {3, 3}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        write_parts(fixture, pairs[i][0]);
        for (int k = 0; k < 3; k++)
            memset(fixture->to[k], 0, fixture->layout->elements * sizeof(float));
        for (uint32_t k = 0; k < pairs[i][1]; k++)
            assert_int_equal(0, read_part_of(fixture, pairs[i][0], k, pairs[i][1], NULL));
        for (int k = 0; k < 3; k++)
            assert_memory_equal(fixture->from[k], fixture->to[k], fixture->layout->elements * sizeof(float));
    }
}

static void a_shard_reads_its_own_part_alone(void **state)
{
    struct fixture *fixture = *state;
    write_parts(fixture, 3);
    fixture->records[0] = fixture->records[1];
    assert_int_equal(0, read_part_of(fixture, 1, 1, 3, NULL));
}

static void a_part_that_is_missing_is_named_by_the_tensor_that_lacks_it(void **state)
{
    struct fixture *fixture = *state;
    struct amp_error error;
    write_parts(fixture, 3);
    assert_int_equal(AMP_EDATALOSS, read_part_of(fixture, 2, 0, 1, &error)); /* the third is left out */
    assert_non_null(strstr(error.text, "is not whole"));
    assert_non_null(strstr(error.text, "\"b\""));
    fixture->records[2] = fixture->records[1]; /* one is given twice */
    assert_int_equal(AMP_EDATALOSS, read_part_of(fixture, 3, 0, 1, &error));
}

static void parts_of_different_steps_are_not_mixed(void **state)
{
    struct fixture *fixture = *state;
    struct amp_error error;
    write_parts(fixture, 2);
    struct ampd_checkpoint_record old = fixture->records[1];
    fixture->state.step = 13;
    write_parts(fixture, 2);
    fixture->records[1] = old;
    assert_int_equal(AMP_EDATALOSS, read_part_of(fixture, 2, 0, 1, &error));
    assert_non_null(strstr(error.text, "another step"));
    assert_non_null(strstr(error.text, "step-0000000012/shard-1-of-2"));
}

/* Offset of the data of a file, and its size. */
static uint64_t data_at(FILE *file, uint64_t *size)
{
    uint64_t header;
    struct stat info;
    assert_int_equal(1, fread(&header, sizeof header, 1, file));
    assert_int_equal(0, fstat(fileno(file), &info));
    *size = (uint64_t)info.st_size;
    return 8 + header;
}

static void every_flipped_bit_of_a_tensor_is_refused_with_file_and_tensor(void **state)
{
    struct fixture *fixture = *state;
    char path[600];
    write_parts(fixture, 2);
    (void)snprintf(path, sizeof path, "%s/%s", fixture->directory, fixture->records[1].file);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    uint64_t size, begin = data_at(file, &size);
    for (uint64_t at = begin; at < size - 9; at += 13) { /* the last 9 bytes are a user state */
        struct amp_error error;
        for (int flip = 0; flip < 2; flip++) {
            assert_int_equal(0, fseek(file, (long)at, SEEK_SET));
            int byte = fgetc(file);
            assert_int_equal(0, fseek(file, (long)at, SEEK_SET));
            assert_true(fputc(byte ^ (1 << at % 8), file) != EOF);
            assert_int_equal(0, fflush(file));
            int rc = read_part_of(fixture, 2, 0, 1, &error);
            assert_int_equal(flip == 0 ? AMP_EDATALOSS : 0, rc);
            if (rc == 0)
                continue;
            assert_non_null(strstr(error.text, fixture->records[1].file));
            assert_non_null(strstr(error.text, "the hash of tensor \""));
        }
    }
    assert_int_equal(0, fclose(file));
}

/* A file of some size: one parameter of 60,000 elements with both moments, 720 KB. */
static void a_file_cut_off_at_any_page_is_refused(void **state)
{
    struct fixture *fixture = *state;
    static const uint64_t shape[] = {60000};
    float *values = calloc(60000, sizeof *values);
    const struct ampd_checkpoint_tensor tensor = {
        .name = "big", .dimensions = 1, .shape = shape, .master = values, .m = values, .v = values};
    const struct ampd_checkpoint_target target = {
        .name = "big", .dimensions = 1, .shape = shape, .master = values, .m = values, .v = values};
    const struct ampd_checkpoint_path place = {fixture->directory, "m", 0, 1};
    struct ampd_checkpoint_record *record = &fixture->records[0];
    char path[600];
    assert_int_equal(0, ampd_checkpoint_write(&place, &tensor, 1, &fixture->state, NULL, record, NULL));
    (void)snprintf(path, sizeof path, "%s/%s", fixture->directory, record->file);
    assert_true(record->size_bytes > 700000);
    unsigned refused = 0;
    for (uint64_t size = (record->size_bytes - 1) / 4096 * 4096;; size -= 4096) {
        struct ampd_checkpoint_state read;
        struct amp_error error;
        assert_int_equal(0, truncate(path, (off_t)size));
        assert_int_equal(AMP_EDATALOSS, ampd_checkpoint_read(fixture->directory, record->file, record->manifest,
                                                             &target, 1, &read, &error));
        assert_non_null(strstr(error.text, record->file));
        assert_null(read.user_states);
        refused++;
        if (size == 0)
            break;
    }
    assert_true(refused > 170);
    free(values);
}

/* The header's text has to be what jansson makes of it: a reader hashes that. */
static void names_may_have_any_characters_and_any_place_among_the_keys(void **state)
{
    static const char *const names[] = {
        "Z",  "^",  "_",   "__metadata_",     "__metadata__.x",           "hash", "user_state",
        "\"", "\\", "a/b", "a\x01\n\x1f\x7f", "\xc3\xa4\xf0\x9d\x84\x9e", "~"};
    struct fixture *fixture = *state;
    char before[AMPD_NAME_MAX];
    memcpy(before, parameters[1].name, sizeof before);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        (void)snprintf(parameters[1].name, sizeof parameters[1].name, "%s", names[i]);
        write_parts(fixture, 3); /* it lies in two of them, whose keys also name its shape */
        for (uint32_t k = 0; k < 3; k++)
            assert_int_equal(0, read_part_of(fixture, 3, k, 3, NULL));
    }
    memcpy(parameters[1].name, before, sizeof before);
}

int main(void)
{
#define ROW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        ROW(a_checkpoint_of_any_number_of_shards_is_read_onto_any_other_bit_for_bit),
        ROW(a_shard_reads_its_own_part_alone),
        ROW(a_part_that_is_missing_is_named_by_the_tensor_that_lacks_it),
        ROW(parts_of_different_steps_are_not_mixed),
        ROW(every_flipped_bit_of_a_tensor_is_refused_with_file_and_tensor),
        ROW(a_file_cut_off_at_any_page_is_refused),
        ROW(names_may_have_any_characters_and_any_place_among_the_keys),
    };
#undef ROW
    return cmocka_run_group_tests_name("storage_parts", tests, NULL, NULL);
}
