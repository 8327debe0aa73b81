#include "examples/digits/digits.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every fifth row is test: the file is in the order of its writers (LICENSE.digits.md). */
#define TEST_EVERY 5
#define ROWS_MAX   100000
#define PIXEL_MAX  16

/* splitmix64: a small generator of its own, so that the batches never depend on a C library. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int parse_row(const char *line, float *pixels, uint8_t *digit)
{
    for (size_t i = 0; i <= DIGITS_PIXELS; i++) {
        char *end;
        long value = strtol(line, &end, 10);
        long max = i < DIGITS_PIXELS ? PIXEL_MAX : DIGITS_CLASSES - 1;
        if (end == line || value < 0 || value > max || (i < DIGITS_PIXELS && *end != ','))
            return -1;
        if (i < DIGITS_PIXELS)
            pixels[i] = (float)value / PIXEL_MAX;
        else
            *digit = (uint8_t)value;
        line = end + 1;
    }
    return 0;
}

static int count_rows(FILE *file, size_t *rows)
{
    char line[1024];
    *rows = 0;
    while (fgets(line, sizeof line, file) != NULL)
        (*rows)++;
    rewind(file);
    return *rows >= TEST_EVERY && *rows <= ROWS_MAX ? 0 : -1;
}

static int read_rows(struct digits_data *data, FILE *file, const char *path)
{
    char line[1024];
    for (size_t row = 0; fgets(line, sizeof line, file) != NULL; row++) {
        bool test = row % TEST_EVERY == 0;
        size_t at = test ? data->test_count++ : data->train_count++;
        float *pixels = (test ? data->test_pixels : data->train_pixels) + at * DIGITS_PIXELS;
        uint8_t *digit = (test ? data->test_digits : data->train_digits) + at;
        if (parse_row(line, pixels, digit) != 0) {
            (void)fprintf(stderr, "digits: %s: line %zu is not 64 pixels of 0..16 and a digit\n", path, row + 1);
            return -1;
        }
    }
    return 0;
}

int digits_data_open(struct digits_data *data, const char *path)
{
    *data = (struct digits_data){.order_epoch = UINT64_MAX};
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        (void)fprintf(stderr, "digits: cannot open %s: %s; name the file with --data\n", path, strerror(errno));
        return -1;
    }
    size_t rows;
    if (count_rows(file, &rows) != 0) {
        (void)fprintf(stderr, "digits: %s: %zu rows, expected 5 to %d\n", path, rows, ROWS_MAX);
        goto fail;
    }
    data->train_pixels = calloc(rows, DIGITS_PIXELS * sizeof(float));
    data->test_pixels = calloc(rows, DIGITS_PIXELS * sizeof(float));
    data->train_digits = calloc(rows, 1);
    data->test_digits = calloc(rows, 1);
    data->order = calloc(rows, sizeof *data->order);
    if (data->train_pixels == NULL || data->test_pixels == NULL || data->train_digits == NULL ||
        data->test_digits == NULL || data->order == NULL) {
        (void)fprintf(stderr, "digits: out of memory\n");
        goto fail;
    }
    if (read_rows(data, file, path) != 0)
        goto fail;
    (void)fclose(file);
    return 0;
fail:
    (void)fclose(file);
    digits_data_close(data);
    return -1;
}

void digits_data_close(struct digits_data *data)
{
    free(data->train_pixels);
    free(data->test_pixels);
    free(data->train_digits);
    free(data->test_digits);
    free(data->order);
    *data = (struct digits_data){.order_epoch = UINT64_MAX};
}

/* Fisher-Yates, seeded by (seed, epoch). */
static void shuffle(struct digits_data *data, uint64_t seed, uint64_t epoch)
{
    uint64_t state = seed * 0x2545f4914f6cdd1du + epoch;
    (void)next_random(&state);
    for (size_t i = 0; i < data->train_count; i++)
        data->order[i] = (uint32_t)i;
    for (size_t i = data->train_count - 1; i > 0; i--) {
        size_t j = next_random(&state) % (i + 1);
        uint32_t swap = data->order[i];
        data->order[i] = data->order[j];
        data->order[j] = swap;
    }
    data->order_epoch = epoch;
}

void digits_data_batch(struct digits_data *data, uint64_t seed, uint64_t step, uint32_t rank, uint32_t world,
                       size_t batch, float *pixels, uint8_t *digits)
{
    uint64_t first = ((step - 1) * world + rank) * batch;
    for (size_t i = 0; i < batch; i++) {
        uint64_t epoch = (first + i) / data->train_count;
        if (epoch != data->order_epoch)
            shuffle(data, seed, epoch);
        size_t row = data->order[(first + i) % data->train_count];
        memcpy(pixels + i * DIGITS_PIXELS, data->train_pixels + row * DIGITS_PIXELS, DIGITS_PIXELS * sizeof(float));
        digits[i] = data->train_digits[row];
    }
}
