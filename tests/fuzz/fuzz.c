#include "tests/fuzz/fuzz.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/allocator_interface.h>
#define HAS_COUNT 1
#endif
#endif

/* Bytes in use; only AddressSanitizer's allocator tells. */
static size_t allocated(void)
{
#ifdef HAS_COUNT
    return __sanitizer_get_current_allocated_bytes();
#else
    return 0;
#endif
}

/*
 * Libraries keep some things from their first use on, and libFuzzer's own thread allocates, too; what is kept each time
 * is a leak.
 */
#define TIMES 4

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bool kept = true;
    for (int i = 0; i < TIMES && kept; i++) {
        size_t before = allocated();
        fuzz_one(data, size);
        kept = allocated() > before;
    }
    AMP_ASSERT(!kept);
    return 0;
}

uint8_t fuzz_byte(struct fuzz_input *input)
{
    if (input->size == 0)
        return 0;
    input->size--;
    return *input->data++;
}

struct fuzz_input fuzz_part(struct fuzz_input *input)
{
    const uint8_t *zero = input->size > 0 ? memchr(input->data, 0, input->size) : NULL;
    struct fuzz_input part = {input->data, zero != NULL ? (size_t)(zero - input->data) : input->size};
    size_t used = part.size + (zero != NULL);
    input->data += used;
    input->size -= used;
    return part;
}

uint8_t *fuzz_exact(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size);
    AMP_ASSERT(copy != NULL);
    if (size > 0)
        memcpy(copy, data, size);
    return copy;
}

char *fuzz_text(struct fuzz_input part)
{
    char *copy = malloc(part.size + 1);
    AMP_ASSERT(copy != NULL);
    if (part.size > 0)
        memcpy(copy, part.data, part.size);
    copy[part.size] = 0;
    return copy;
}

void fuzz_script_read(struct fuzz_script *script, struct fuzz_input *input)
{
    *script = (struct fuzz_script){.count = fuzz_byte(input) % (FUZZ_SCRIPT_MAX + 1)};
    for (size_t i = 0; i < script->count; i++)
        script->bytes[i] = fuzz_byte(input);
}

struct fuzz_step fuzz_script_next(struct fuzz_script *script)
{
    /* Heads of frames have 9 bytes, prefixes 5; larger ones are bodies. */
    static const size_t sizes[] = {SIZE_MAX, 1, 2, 5, 9, 40, 300, 3000};
    if (script->count == 0 || script->at == FUZZ_STEPS_MAX)
        return (struct fuzz_step){.size = SIZE_MAX};
    uint8_t byte = script->bytes[script->at++ % script->count];
    return (struct fuzz_step){.size = sizes[byte % 8], .act = byte / 8};
}

uint8_t *fuzz_segment(struct fuzz_input *input, size_t size, size_t *taken)
{
    *taken = size < input->size ? size : input->size;
    uint8_t *segment = fuzz_exact(input->data, *taken);
    input->data += *taken;
    input->size -= *taken;
    return segment;
}
