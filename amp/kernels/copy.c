/* The copy past the caches, with what every x86-64 processor has. */
#include "amp/copy.h"

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

#define LINE_BYTES ((size_t)64)

/* Whole lines only: part of one would be read from memory to be filled up. */
static void stream_lines(uint8_t *to, const uint8_t *from, size_t lines)
{
    for (; lines > 0; lines--, to += LINE_BYTES, from += LINE_BYTES) {
        __m128i part[LINE_BYTES / sizeof(__m128i)];
        memcpy(part, from, sizeof part);
        for (size_t i = 0; i < LINE_BYTES / sizeof(__m128i); i++)
            _mm_stream_si128((__m128i *)(void *)to + i, part[i]);
    }
    _mm_sfence();
}

void amp_copy_streamed(void *to, const void *from, size_t size)
{
    uint8_t *at = to;
    const uint8_t *source = from;
    size_t head = (LINE_BYTES - (uintptr_t)at % LINE_BYTES) % LINE_BYTES;
    if (size < head + LINE_BYTES) {
        memcpy(to, from, size);
        return;
    }
    memcpy(at, source, head);
    size_t lines = (size - head) / LINE_BYTES;
    stream_lines(at + head, source + head, lines);
    size_t done = head + lines * LINE_BYTES;
    memcpy(at + done, source + done, size - done);
}

#else

void amp_copy_streamed(void *to, const void *from, size_t size)
{
    memcpy(to, from, size);
}

#endif
