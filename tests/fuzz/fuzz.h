/*
 * What the fuzz targets share. A target is one file with fuzz_one; the preset `asan` links it with libFuzzer, every
 * other preset with replay.c, which runs the inputs in corpus/<target>.
 *
 * Many inputs begin with a script: a number of bytes, each of which says how long the next segment is and what happens
 * beside it. The bytes under test follow in one piece, so that a mutation of them stays one.
 */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include "base/assert.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* libFuzzer's entry: calls fuzz_one, and asserts that it has given back all memory that it took. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The target. */
void fuzz_one(const uint8_t *data, size_t size);

/* The bytes that are not read yet. */
struct fuzz_input {
    const uint8_t *data;
    size_t size;
};

/* The next byte; 0 at the end. */
uint8_t fuzz_byte(struct fuzz_input *input);

/* Bytes up to the next zero byte, which is taken too, or to the end. */
struct fuzz_input fuzz_part(struct fuzz_input *input);

/* A copy with nothing behind it, so that a sanitizer sees the first byte beyond. For free(); never NULL. */
uint8_t *fuzz_exact(const uint8_t *data, size_t size);
/* The same with a final zero. */
char *fuzz_text(struct fuzz_input part);

/* Most bytes of a script: enough for a story, few beside the bytes under test. */
#define FUZZ_SCRIPT_MAX 32

/* Steps after which the rest comes in one piece: more of them are slow, and tell nothing more. */
#define FUZZ_STEPS_MAX 400

struct fuzz_script {
    uint8_t bytes[FUZZ_SCRIPT_MAX];
    size_t count;
    size_t at;
};

/* Of what is only checked: that it is reached is no news to the fuzzer. */
#ifdef __clang__
#define FUZZ_NO_COVERAGE __attribute__((no_sanitize("coverage")))
#else
#define FUZZ_NO_COVERAGE
#endif

/* Reads a script: its length, modulo FUZZ_SCRIPT_MAX + 1, and its bytes. */
void fuzz_script_read(struct fuzz_script *script, struct fuzz_input *input);

/* One step, from a byte of the script; after the last byte it begins again. Without a script: everything, and 0. */
struct fuzz_step {
    size_t size;  /* of the segment: from 1 byte to SIZE_MAX */
    unsigned act; /* 0 to 31 */
};
struct fuzz_step fuzz_script_next(struct fuzz_script *script);

/* The next segment of at most `size` bytes, as fuzz_exact makes it. */
uint8_t *fuzz_segment(struct fuzz_input *input, size_t size, size_t *taken);

#endif
