#include "base/buf.h"

#include "base/assert.h"
#include "base/err.h"

#include <stdlib.h>
#include <string.h>

#define BUF_FIRST_CAPACITY 256

void amp_buf_init(struct amp_buf *buf, size_t max)
{
    *buf = (struct amp_buf){.max = max};
}

void amp_buf_close(struct amp_buf *buf)
{
    free(buf->data);
    amp_buf_init(buf, buf->max);
}

int amp_buf_reserve(struct amp_buf *buf, size_t more)
{
    if (more > buf->max - buf->size)
        return AMP_EEXHAUSTED;
    size_t need = buf->size + more;
    if (need <= buf->capacity)
        return 0;
    size_t capacity = buf->capacity > 0 ? buf->capacity : BUF_FIRST_CAPACITY;
    while (capacity < need)
        capacity *= 2;
    if (capacity > buf->max)
        capacity = buf->max;
    uint8_t *data = realloc(buf->data, capacity);
    if (data == NULL)
        return AMP_ENOMEM;
    buf->data = data;
    buf->capacity = capacity;
    return 0;
}

int amp_buf_append(struct amp_buf *buf, const void *data, size_t size)
{
    int rc = amp_buf_reserve(buf, size);
    if (rc != 0 || size == 0)
        return rc;
    memcpy(buf->data + buf->size, data, size);
    buf->size += size;
    return 0;
}

void amp_buf_consume(struct amp_buf *buf, size_t size)
{
    AMP_ASSERT(size <= buf->size);
    buf->size -= size;
    if (buf->size > 0)
        memmove(buf->data, buf->data + size, buf->size);
}
