/* A growable byte buffer with a bound. */
#ifndef AMP_BASE_BUF_H
#define AMP_BASE_BUF_H

#include <stddef.h>
#include <stdint.h>

struct amp_buf {
    uint8_t *data;
    size_t size;     /* bytes in use */
    size_t capacity; /* bytes allocated */
    size_t max;      /* neither size nor capacity grows beyond this */
};

/* An empty buffer that may grow to max bytes; allocates nothing yet. */
void amp_buf_init(struct amp_buf *buf, size_t max);

/* Frees the bytes and makes the buffer empty; it may be used again. */
void amp_buf_close(struct amp_buf *buf);

/* Makes room for `more` bytes after the used ones. 0, AMP_EEXHAUSTED beyond max, AMP_ENOMEM; unchanged on failure. */
int amp_buf_reserve(struct amp_buf *buf, size_t more);

/* Appends bytes. Errors as amp_buf_reserve. */
int amp_buf_append(struct amp_buf *buf, const void *data, size_t size);

/* Drops the first `size` bytes (at most buf->size). */
void amp_buf_consume(struct amp_buf *buf, size_t size);

#endif
