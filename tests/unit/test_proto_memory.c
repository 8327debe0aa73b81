/*
 * The n-th allocation fails, for each n until none does: a clean error, nothing lost, nothing leaked (a sanitizer
 * sees).
 */
#include "tests/unit/proto_messages.h"

#include "proto/block.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define OUT_MAX (4 * AMPD_MSG_SIZE_MAX)

/* The linker's --wrap puts these in the place of malloc and realloc. */
void *__real_malloc(size_t size);
void *__real_realloc(void *data, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_realloc(void *data, size_t size);

static long countdown = -1; /* allocations that still succeed; negative: all do */
static size_t denials;

static bool denied(void)
{
    bool deny = countdown >= 0 && countdown-- == 0;
    denials += deny;
    return deny;
}

void *__wrap_malloc(size_t size)
{
    return denied() ? NULL : __real_malloc(size);
}

void *__wrap_realloc(void *data, size_t size)
{
    return denied() ? NULL : __real_realloc(data, size);
}

static void without_memory(const struct proto_message *row, struct amp_random *random)
{
    void *message = malloc(row->size);
    uint8_t *zero = calloc(1, row->size);
    struct amp_buf out;
    struct amp_error error;
    int rc = AMP_ENOMEM;
    amp_buf_init(&out, OUT_MAX);
    row->fill(message, random, FILL_EXTREME);
    for (long n = 0; rc != 0; n++) {
        amp_buf_close(&out);
        countdown = n;
        rc = row->encode(message, &out);
        countdown = -1;
        assert_true(rc == 0 || rc == AMP_ENOMEM);
        assert_true(rc == 0 || out.size == 0);
    }
    row->release(message);
    rc = AMP_ENOMEM;
    for (long n = 0; rc != 0; n++) {
        countdown = n;
        rc = row->decode(message, out.data, out.size, &error);
        countdown = -1;
        assert_true(rc == 0 || rc == AMP_ENOMEM);
        if (rc != 0)
            assert_memory_equal(message, zero, row->size);
    }
    row->release(message);
    amp_buf_close(&out);
    free(zero);
    free(message);
}

static void every_message_bears_a_failed_allocation(void **state)
{
    struct amp_random random;
    amp_random_init(&random, 31);
    for (size_t i = 0; i < proto_messages_count; i++)
        without_memory(&proto_messages[i], &random);
    /* None of them is empty, so that each encode was denied at least once. */
    assert_true(denials > proto_messages_count);
}

static int on_part(void *arg, enum ampd_block_part part, const uint8_t *data, size_t size, struct amp_error *error)
{
    return 0;
}

static int on_begin(void *arg, const struct ampd_block *block, uint8_t **destination, struct amp_error *error)
{
    *destination = arg;
    return 0;
}

static int on_end(void *arg, const struct ampd_block *block, bool intact, struct amp_error *error)
{
    return 0;
}

static void a_reader_without_memory_fails_and_stays_failed(void **state)
{
    static const struct ampd_block_reader_ops ops = {on_part, on_begin, on_end};
    static const uint8_t header[] = {0x0a, 2, 0x10, 1};
    uint8_t data[4];
    struct ampd_block_reader reader;
    ampd_block_reader_init(&reader, &ops, data, true);
    assert_int_equal(ampd_block_reader_begin(&reader, sizeof header, NULL), 0);
    countdown = 0;
    assert_int_equal(ampd_block_reader_bytes(&reader, header, sizeof header, NULL), AMP_ENOMEM);
    countdown = -1;
    assert_int_equal(ampd_block_reader_end(&reader, NULL), AMP_ENOMEM);
    assert_int_equal(ampd_block_reader_begin(&reader, sizeof header, NULL), AMP_ENOMEM);
    ampd_block_reader_close(&reader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_bears_a_failed_allocation),
        cmocka_unit_test(a_reader_without_memory_fails_and_stays_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
