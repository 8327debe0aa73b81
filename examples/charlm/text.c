#include "examples/charlm/charlm.h"

#include <stdlib.h>
#include <string.h>

/* Batches of the validation; fewer if the text is short. */
#define VALIDATION_BATCHES 16

static int refuse(const char *path, const char *what)
{
    (void)fprintf(stderr, "charlm: %s: %s\n", path, what);
    return -1;
}

/* The whole file, or NULL. */
static uint8_t *read_file(const char *path, size_t *count)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return NULL;
    uint8_t *bytes = NULL;
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    if (size > 0 && fseek(file, 0, SEEK_SET) == 0)
        bytes = malloc((size_t)size);
    if (bytes != NULL && fread(bytes, 1, (size_t)size, file) != (size_t)size) {
        free(bytes);
        bytes = NULL;
    }
    (void)fclose(file);
    *count = bytes != NULL ? (size_t)size : 0;
    return bytes;
}

int charlm_text_open(struct charlm_text *text, const char *path, size_t context)
{
    *text = (struct charlm_text){0};
    text->characters = read_file(path, &text->count);
    if (text->characters == NULL)
        return refuse(path, "cannot be read, or is empty; --text names another file");
    for (size_t i = 0; i < text->count; i++)
        if (text->characters[i] >= CHARLM_TOKENS)
            return refuse(path, "is not ASCII; take out or replace what is beyond it");
    text->train_count = text->count / 10 * 9;
    if (text->count < 20 * context)
        return refuse(path, "is too short: 20 times --context are needed");
    return 0;
}

void charlm_text_close(struct charlm_text *text)
{
    free(text->characters);
    *text = (struct charlm_text){0};
}

/* splitmix64: any number becomes one that looks random. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

void charlm_text_batch(const struct charlm_text *text, const struct charlm_options *options, uint32_t rank,
                       uint64_t first, uint8_t *inputs, uint8_t *targets)
{
    size_t context = options->shape.context;
    for (size_t i = 0; i < options->shape.sequences; i++) {
        uint64_t number = (first + i) * options->world + rank;
        size_t place = mix(mix(options->seed) + number) % (text->train_count - context);
        memcpy(inputs + i * context, text->characters + place, context);
        memcpy(targets + i * context, text->characters + place + 1, context);
    }
}

double charlm_text_validate(const struct charlm_text *text, struct charlm_model *model)
{
    size_t context = model->shape.context, sequences = model->shape.sequences;
    size_t all = (text->count - text->train_count - 1) / context, done = 0;
    all = all < VALIDATION_BATCHES * sequences ? all : VALIDATION_BATCHES * sequences;
    double sum = 0.0;
    while (done < all) {
        const uint8_t *next = text->characters + text->train_count + done * context;
        size_t count = all - done < sequences ? all - done : sequences;
        sum += (double)count * charlm_evaluate(model, next, next + 1, count);
        done += count;
    }
    return sum / (double)done;
}
