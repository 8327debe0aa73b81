#include "tests/unit/proto_messages.h"

#include "base/crc32c.h"
#include "proto/block.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define STREAMS  3000
#define DATA_MAX 700
#define OUT_MAX  (4 * AMPD_MSG_SIZE_MAX)

/* What came out of a reader, or out of pb_decode. */
struct seen {
    uint8_t part[AMPD_BLOCK_PART_MAX];
    size_t part_size;
    int headers;
    int trailers;
    int placed;
    int begins;
    int ends;
    bool intact;
    struct ampd_block block;
    uint8_t *data; /* block.size bytes, of its own, so that a sanitizer sees the first one beyond */
    bool refuse;   /* begin answers NULL */
    int code;      /* what begin and part return */
};

static int on_part(void *arg, enum ampd_block_part part, const uint8_t *data, size_t size, struct amp_error *error)
{
    struct seen *seen = arg;
    memcpy(seen->part, data, size);
    seen->part_size = size;
    *(part == AMPD_BLOCK_HEADER ? &seen->headers : part == AMPD_BLOCK_PLACED ? &seen->placed : &seen->trailers) += 1;
    return seen->code;
}

static int on_begin(void *arg, const struct ampd_block *block, uint8_t **destination, struct amp_error *error)
{
    struct seen *seen = arg;
    seen->begins++;
    seen->block = *block;
    free(seen->data);
    seen->data = malloc(block->size > 0 ? block->size : 1);
    if (!seen->refuse)
        *destination = seen->data;
    return seen->code;
}

static int on_end(void *arg, const struct ampd_block *block, bool intact, struct amp_error *error)
{
    struct seen *seen = arg;
    assert_int_equal(block->index, seen->block.index);
    seen->ends++;
    seen->intact = intact;
    return 0;
}

static void copy(void *to, const void *from, size_t size)
{
    memcpy(to, from, size);
}

static const struct ampd_block_reader_ops ops = {.part_cb = on_part, .begin_cb = on_begin, .end_cb = on_end};

/* Feeds one message in pieces: `piece` bytes each, or of random length for 0. */
static int feed(struct ampd_block_reader *reader, const uint8_t *data, size_t size, size_t piece,
                struct amp_random *random, struct amp_error *error)
{
    int rc = ampd_block_reader_begin(reader, size, error);
    for (size_t at = 0; at < size && rc == 0;) {
        size_t length = piece > 0 ? piece : 1 + amp_random_below(random, 90);
        if (length > size - at)
            length = size - at;
        uint8_t *exact = malloc(length);
        memcpy(exact, data + at, length);
        rc = ampd_block_reader_bytes(reader, exact, length, error);
        free(exact);
        at += length;
    }
    int last = ampd_block_reader_end(reader, error);
    return rc != 0 ? rc : last;
}

static struct seen *seen_new(void)
{
    return calloc(1, sizeof(struct seen));
}

static void seen_free(struct seen *seen)
{
    free(seen->data);
    free(seen);
}

/* A reader that has had an empty header. */
static void ready(struct ampd_block_reader *reader, struct seen *seen, bool has_trailer)
{
    ampd_block_reader_init(reader, &ops, seen, has_trailer);
    assert_int_equal(feed(reader, (const uint8_t *)"\x0a", 2, 1, NULL, NULL), 0);
    assert_int_equal(seen->headers, 1);
}

/* ---- what the writer makes, the reader reads ---- */

static void a_block_is_read_as_written_in_pieces_of_any_length(void **state)
{
    static const size_t pieces[] = {1, 2, 3, 7, 16, 17, 64, 16384, 1u << 30};
    uint8_t message[AMPD_BLOCK_HEAD_MAX + DATA_MAX];
    for (size_t i = 0; i < 2 * sizeof pieces / sizeof pieces[0]; i++) {
        struct seen *seen = seen_new();
        struct ampd_block_reader reader;
        uint8_t data[DATA_MAX];
        memset(data, (int)i + 1, sizeof data);
        struct ampd_block block = {.index = UINT32_MAX, .crc32c = amp_crc32c(0, data, DATA_MAX), .size = DATA_MAX};
        size_t head = ampd_block_head_encode(&block, message);
        memcpy(message + head, data, sizeof data);
        ready(&reader, seen, true);
        if (i % 2 == 1)
            ampd_block_reader_copy_by(&reader, copy);
        assert_int_equal(feed(&reader, message, head + DATA_MAX, pieces[i / 2], NULL, NULL), 0);
        assert_int_equal(seen->ends, 1);
        assert_true(seen->intact);
        assert_int_equal(seen->block.index, UINT32_MAX);
        assert_memory_equal(seen->data, data, DATA_MAX);
        ampd_block_reader_close(&reader);
        seen_free(seen);
    }
}

static void bytes_that_lie_in_their_place_are_taken_from_there(void **state)
{
    uint8_t message[AMPD_BLOCK_HEAD_MAX + DATA_MAX];
    uint8_t data[DATA_MAX];
    struct seen *seen = seen_new();
    struct ampd_block_reader reader;
    size_t left = 0;
    memset(data, 7, sizeof data);
    struct ampd_block block = {.index = 3, .crc32c = amp_crc32c(0, data, DATA_MAX), .size = DATA_MAX};
    size_t head = ampd_block_head_encode(&block, message);
    ready(&reader, seen, true);
    assert_null(ampd_block_reader_place(&reader, &left));
    assert_int_equal(ampd_block_reader_begin(&reader, head + DATA_MAX, NULL), 0);
    assert_int_equal(ampd_block_reader_bytes(&reader, message, head - 1, NULL), 0);
    assert_null(ampd_block_reader_place(&reader, &left));
    assert_int_equal(ampd_block_reader_bytes(&reader, message + head - 1, 1, NULL), 0);
    for (size_t at = 0; at < DATA_MAX; at += 100) {
        uint8_t *place = ampd_block_reader_place(&reader, &left);
        assert_ptr_equal(place, seen->data + at);
        assert_int_equal(left, DATA_MAX - at);
        memset(place, 0xee, left); /* of no effect: it is not given */
        memcpy(place, data, 100);
        assert_int_equal(ampd_block_reader_bytes(&reader, place, 100, NULL), 0);
    }
    assert_null(ampd_block_reader_place(&reader, &left));
    assert_int_equal(ampd_block_reader_end(&reader, NULL), 0);
    assert_int_equal(seen->ends, 1);
    assert_true(seen->intact);
    assert_memory_equal(seen->data, data, DATA_MAX);
    assert_int_equal(ampd_block_reader_begin(&reader, head + DATA_MAX, NULL), 0);
    assert_int_equal(ampd_block_reader_bytes(&reader, message, head, NULL), 0);
    ampd_block_reader_discard(&reader);
    assert_null(ampd_block_reader_place(&reader, &left));
    ampd_block_reader_close(&reader);
    seen_free(seen);
}

static void the_largest_block_needs_no_buffer(void **state)
{
    struct seen *seen = seen_new();
    struct ampd_block_reader reader;
    uint8_t *message = calloc(1, AMPD_BLOCK_HEAD_MAX + AMPD_BLOCK_DATA_MAX);
    struct ampd_block block = {.index = 1, .size = AMPD_BLOCK_DATA_MAX};
    size_t head = ampd_block_head_encode(&block, message);
    ready(&reader, seen, true);
    assert_int_equal(feed(&reader, message, head + AMPD_BLOCK_DATA_MAX, 16384, NULL, NULL), 0);
    assert_int_equal(seen->ends, 1);
    assert_false(seen->intact);
    assert_int_equal(reader.buffer.capacity, 0);
    ampd_block_reader_close(&reader);
    free(message);
    seen_free(seen);
}

static void header_and_trailer_are_given_whole(void **state)
{
    struct seen *seen = seen_new();
    struct ampd_block_reader reader;
    struct amp_buf body;
    struct amp_buf message;
    amp_buf_init(&body, OUT_MAX);
    amp_buf_init(&message, OUT_MAX);
    struct ampd_msg_push_header header = {.model = "digits", .step = 7, .user_state = {malloc(65536), 65536}};
    memset(header.user_state.data, 0x5a, 65536);
    assert_int_equal(ampd_msg_push_header_encode(&header, &body), 0);
    assert_int_equal(ampd_block_part_encode(AMPD_BLOCK_HEADER, &body, &message), 0);
    ampd_block_reader_init(&reader, &ops, seen, true);
    assert_false(ampd_block_reader_has_header(&reader));
    assert_int_equal(feed(&reader, message.data, message.size, 1000, NULL, NULL), 0);
    assert_true(ampd_block_reader_has_header(&reader));
    struct ampd_msg_push_header read;
    assert_int_equal(ampd_msg_push_header_decode(&read, seen->part, seen->part_size, NULL), 0);
    assert_string_equal(read.model, "digits");
    assert_int_equal(read.user_state.size, 65536);
    assert_memory_equal(read.user_state.data, header.user_state.data, 65536);
    ampd_msg_push_header_free(&read);
    ampd_msg_push_header_free(&header);
    assert_int_equal(feed(&reader, (const uint8_t *)"\x22\x03\x0a\x01\x05", 5, 1, NULL, NULL), 0);
    assert_int_equal(seen->trailers, 1);
    assert_memory_equal(seen->part, "\x0a\x01\x05", 3);
    ampd_block_reader_close(&reader);
    amp_buf_close(&body);
    amp_buf_close(&message);
    seen_free(seen);
}

static void a_part_beyond_its_bound_is_not_written(void **state)
{
    struct amp_buf body;
    struct amp_buf out;
    amp_buf_init(&body, OUT_MAX);
    amp_buf_init(&out, OUT_MAX);
    assert_int_equal(amp_buf_reserve(&body, AMPD_BLOCK_PART_MAX + 1), 0);
    memset(body.data, 0, AMPD_BLOCK_PART_MAX + 1);
    body.size = AMPD_BLOCK_PART_MAX + 1;
    assert_int_equal(ampd_block_part_encode(AMPD_BLOCK_HEADER, &body, &out), AMP_EINVAL);
    assert_int_equal(out.size, 0);
    amp_buf_close(&body);
    amp_buf_close(&out);
}

/* ---- what the reader refuses ---- */

static void refuse(const char *message, size_t size, const char *text)
{
    struct seen *seen = seen_new();
    struct ampd_block_reader reader;
    struct amp_error error = {.text = ""};
    ready(&reader, seen, true);
    assert_int_equal(feed(&reader, (const uint8_t *)message, size, 1, NULL, &error), AMP_EINVAL);
    assert_string_equal(error.text, text);
    assert_int_equal(seen->ends, 0);
    /* It stays refused. */
    assert_int_equal(feed(&reader, (const uint8_t *)"\x22", 2, 1, NULL, NULL), AMP_EINVAL);
    assert_int_equal(seen->trailers, 0);
    ampd_block_reader_close(&reader);
    seen_free(seen);
}

static void what_is_placed_comes_between_header_and_trailer_as_often_as_it_likes(void **state)
{
    struct seen *seen = seen_new();
    struct ampd_block_reader reader;
    struct amp_error error = {.text = ""};
    ready(&reader, seen, true);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(feed(&reader, (const uint8_t *)"\x2a\x02\x10\x05", 4, 1, NULL, &error), 0);
    assert_memory_equal(seen->part, "\x10\x05", 2);
    assert_int_equal(seen->placed, 3);
    assert_int_equal(feed(&reader, (const uint8_t *)"\x22\x00", 2, 1, NULL, &error), 0);
    assert_int_equal(feed(&reader, (const uint8_t *)"\x2a\x02\x10\x05", 4, 1, NULL, &error), AMP_EINVAL);
    assert_string_equal(error.text, "placed comes after the trailer");
    ampd_block_reader_close(&reader);
    seen_free(seen);
    refuse("\x2a\x02\x10\x05\x10\x01", 6, "a header, placed or a trailer is not alone");
}

static void a_malformed_message_is_refused_with_what_is_wrong(void **state)
{
    refuse("", 0, "a message holds neither header, data, placed nor trailer");
    refuse("\x10\x01\x1d\x00\x00\x00\x00", 7, "a message holds neither header, data, placed nor trailer");
    refuse("\x1d\x00\x00\x00\x00\x7a\x01x", 8, "data comes without index");
    refuse("\x10\x01\x7a\x01x", 5, "data comes without crc32c");
    refuse("\x10\x01\x10\x01", 4, "index is given twice in one message");
    refuse("\x7a\x00\x7a\x00", 4, "data is given twice in one message");
    refuse("\x0a\x00", 2, "header comes twice in the stream");
    refuse("\x7a\x00\x22\x00", 4, "trailer is not alone in its message");
    refuse("\x10\x80\x80\x80\x80\x10", 6, "index is out of the range of its type");
    refuse("\x15\x00\x00\x00\x00", 5, "field 2 has a wrong wire type: the schemas differ");
    refuse("\x78\x00", 2, "field 15 has a wrong wire type: the schemas differ");
    refuse("\x7a\x05xx", 4, "a field is longer than its message");
    refuse("\x7a\x81\x80\x10", 4, "a field is longer than its message");
    refuse("\x10", 1, "a message is cut off");
    refuse("\x1d\x00", 2, "a message is cut off");
    refuse("\x00\x00", 2, "a field number is out of range");
    refuse("\x80\x80\x80\x80\x80\x01\x00", 7, "a field number is out of range");
    refuse("\x13\x14", 2, "field 2 has a wrong wire type: the schemas differ");
    refuse("\xa3\x06\xa4\x06", 4, "a wire type is unknown");
    refuse("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 10, "a varint is longer than 64 bits");
}

static void a_block_larger_than_the_bound_is_refused_before_its_bytes(void **state)
{
    struct seen *seen = seen_new();
    struct ampd_block_reader reader;
    struct amp_error error;
    ready(&reader, seen, true);
    assert_int_equal(ampd_block_reader_begin(&reader, 300000, &error), 0);
    /* index 1, crc, data of 262145 bytes */
    assert_int_equal(
        ampd_block_reader_bytes(&reader, (const uint8_t *)"\x10\x01\x1d\x00\x00\x00\x00\x7a\x81\x80\x10", 11, &error),
        AMP_EINVAL);
    assert_string_equal(error.text, "data has 262145 bytes; a block has at most 262144");
    assert_int_equal(seen->begins, 0);
    ampd_block_reader_close(&reader);
    seen_free(seen);
}

static void the_order_of_a_stream_is_kept(void **state)
{
    static const uint8_t block[] = {0x10, 1, 0x1d, 0, 0, 0, 0, 0x7a, 1, 'x'};
    struct seen *seen = seen_new();
    struct ampd_block_reader reader;
    struct amp_error error;
    ampd_block_reader_init(&reader, &ops, seen, true);
    assert_int_equal(feed(&reader, block, sizeof block, 1, NULL, &error), AMP_EINVAL);
    assert_string_equal(error.text, "a block comes before the header");
    ampd_block_reader_close(&reader);
    ampd_block_reader_init(&reader, &ops, seen, true);
    assert_int_equal(feed(&reader, (const uint8_t *)"\x22", 2, 1, NULL, &error), AMP_EINVAL);
    assert_string_equal(error.text, "trailer comes before the header");
    ampd_block_reader_close(&reader);
    ready(&reader, seen, true);
    assert_int_equal(feed(&reader, (const uint8_t *)"\x22", 2, 1, NULL, &error), 0);
    assert_int_equal(feed(&reader, block, sizeof block, 1, NULL, &error), AMP_EINVAL);
    assert_string_equal(error.text, "a block comes after the trailer");
    ampd_block_reader_close(&reader);
    assert_int_equal(seen->begins, 0);
    seen_free(seen);
}

static void a_stream_without_trailers_passes_over_field_4(void **state)
{
    static const uint8_t block[] = {0x10, 1, 0x22, 1, 'y', 0x1d, 0, 0, 0, 0, 0x7a, 1, 'x'};
    struct seen *seen = seen_new();
    struct ampd_block_reader reader;
    ready(&reader, seen, false);
    assert_int_equal(feed(&reader, block, sizeof block, 1, NULL, NULL), 0);
    assert_int_equal(seen->ends, 1);
    assert_int_equal(seen->trailers, 0);
    ampd_block_reader_close(&reader);
    seen_free(seen);
}

static void a_block_that_nobody_wants_goes_nowhere(void **state)
{
    static const uint8_t early[] = {0x7a, 1, 'x', 0x10, 1, 0x1d, 0, 0, 0, 0};
    static const uint8_t block[] = {0x10, 1, 0x1d, 0, 0, 0, 0, 0x7a, 1, 'x'};
    struct seen *seen = seen_new();
    struct ampd_block_reader reader;
    seen->refuse = true;
    ready(&reader, seen, true);
    assert_int_equal(feed(&reader, block, sizeof block, 3, NULL, NULL), 0);
    assert_int_equal(feed(&reader, early, sizeof early, 3, NULL, NULL), 0);
    assert_int_equal(seen->begins, 2);
    assert_int_equal(seen->ends, 0);
    ampd_block_reader_close(&reader);
    seen_free(seen);
}

static void after_discard_nothing_is_written(void **state)
{
    static const uint8_t block[] = {0x10, 1, 0x1d, 0, 0, 0, 0, 0x7a, 4, 'a', 'b', 'c', 'd'};
    struct seen *seen = seen_new();
    struct ampd_block_reader reader;
    ready(&reader, seen, true);
    assert_int_equal(ampd_block_reader_begin(&reader, sizeof block, NULL), 0);
    assert_int_equal(ampd_block_reader_bytes(&reader, block, 11, NULL), 0);
    ampd_block_reader_discard(&reader);
    free(seen->data);
    seen->data = NULL;
    assert_int_equal(ampd_block_reader_bytes(&reader, block + 11, 2, NULL), 0);
    assert_int_equal(ampd_block_reader_end(&reader, NULL), 0);
    assert_int_equal(seen->ends, 0);
    ampd_block_reader_close(&reader);
    seen_free(seen);
}

static void the_code_of_a_callback_ends_the_stream(void **state)
{
    static const uint8_t block[] = {0x10, 1, 0x1d, 0, 0, 0, 0, 0x7a, 1, 'x'};
    struct seen *seen = seen_new();
    struct ampd_block_reader reader;
    ready(&reader, seen, true);
    seen->code = AMP_EABORTED;
    assert_int_equal(feed(&reader, block, sizeof block, 1, NULL, NULL), AMP_EABORTED);
    seen->code = 0;
    assert_int_equal(feed(&reader, block, sizeof block, 1, NULL, NULL), AMP_EABORTED);
    assert_int_equal(seen->begins, 1);
    assert_int_equal(seen->ends, 0);
    ampd_block_reader_close(&reader);
    seen_free(seen);
}

/* ---- against pb_decode ---- */

static void put_varint(struct amp_buf *out, uint64_t value)
{
    uint8_t byte;
    for (; value >= 0x80; value >>= 7) {
        byte = (uint8_t)(value | 0x80);
        assert_int_equal(amp_buf_append(out, &byte, 1), 0);
    }
    byte = (uint8_t)value;
    assert_int_equal(amp_buf_append(out, &byte, 1), 0);
}

static void put_unknown(struct amp_buf *out, struct amp_random *random)
{
    uint8_t bytes[20] = {0};
    uint32_t number = 16 + (uint32_t)amp_random_below(random, 5000);
    switch (amp_random_below(random, 4)) {
    case 0:
        put_varint(out, (uint64_t)number << 3);
        put_varint(out, amp_random_next(random) >> amp_random_below(random, 64));
        break;
    case 1:
        put_varint(out, (uint64_t)number << 3 | 1);
        assert_int_equal(amp_buf_append(out, bytes, 8), 0);
        break;
    case 2:
        put_varint(out, (uint64_t)number << 3 | 5);
        assert_int_equal(amp_buf_append(out, bytes, 4), 0);
        break;
    default:
        put_varint(out, (uint64_t)number << 3 | 2);
        put_varint(out, sizeof bytes);
        assert_int_equal(amp_buf_append(out, bytes, sizeof bytes), 0);
    }
}

static void put_field(struct amp_buf *out, int field, const struct ampd_block *block, const uint8_t *data)
{
    put_varint(out, field == 0 ? 0x10 : field == 1 ? 0x1d : 0x7a);
    if (field == 0)
        put_varint(out, block->index);
    if (field == 1)
        assert_int_equal(amp_buf_append(out, &block->crc32c, 4), 0);
    if (field != 2)
        return;
    put_varint(out, block->size);
    assert_int_equal(amp_buf_append(out, data, block->size), 0);
}

/* A block's message with its three fields in random order and unknown fields anywhere. */
static void random_block(struct amp_buf *out, struct amp_random *random)
{
    uint8_t data[DATA_MAX];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)amp_random_next(random);
    struct ampd_block block = {.index = (uint32_t)amp_random_next(random),
                               .size = (uint32_t)amp_random_below(random, DATA_MAX)};
    block.crc32c = amp_crc32c(0, data, block.size);
    int order[3] = {0, 1, 2};
    for (size_t i = 2; i > 0; i--) {
        size_t other = amp_random_below(random, i + 1);
        int field = order[i];
        order[i] = order[other];
        order[other] = field;
    }
    for (int i = 0; i < 3; i++) {
        if (amp_random_below(random, 3) == 0)
            put_unknown(out, random);
        put_field(out, order[i], &block, data);
    }
    if (amp_random_below(random, 3) == 0)
        put_unknown(out, random);
}

static bool take_data(pb_istream_t *stream, const pb_field_t *field, void **arg)
{
    struct seen *seen = *arg;
    free(seen->data);
    seen->block.size = (uint32_t)stream->bytes_left;
    seen->data = malloc(stream->bytes_left > 0 ? stream->bytes_left : 1);
    return pb_read(stream, seen->data, stream->bytes_left);
}

/* The message by pb_decode: the judge. */
static bool judge(const uint8_t *data, size_t size, ampd_v1_PushRequest *request, struct seen *seen)
{
    memset(request, 0, sizeof *request);
    request->data.funcs.decode = take_data;
    request->data.arg = seen;
    pb_istream_t stream = pb_istream_from_buffer(data, size);
    return pb_decode_ex(&stream, ampd_v1_PushRequest_fields, request, PB_DECODE_NOINIT);
}

static void compare(const uint8_t *message, size_t size, bool must_pass, size_t *passed, struct amp_random *random)
{
    ampd_v1_PushRequest request;
    struct seen *expected = seen_new();
    struct seen *seen = seen_new();
    struct ampd_block_reader reader;
    struct amp_error error = {.text = ""};
    bool ok = judge(message, size, &request, expected);
    ready(&reader, seen, true);
    int rc = feed(&reader, message, size, 0, random, &error);
    if (must_pass && (rc != 0 || !ok))
        fail_msg("a good message was refused: %s", error.text);
    assert_true(rc == 0 || rc == AMP_EINVAL);
    /*
     * What the reader takes, pb_decode takes and reads alike. (It takes more: fields that are missing or come twice.)
     */
    if (rc == 0 && seen->begins > 0) {
        assert_true(ok);
        assert_true(request.has_index && request.has_crc32c);
        assert_int_equal(seen->block.index, request.index);
        assert_int_equal(seen->block.crc32c, request.crc32c);
        assert_int_equal(seen->block.size, expected->block.size);
        assert_memory_equal(seen->data, expected->data, seen->block.size);
        assert_int_equal(seen->intact, amp_crc32c(0, seen->data, seen->block.size) == request.crc32c);
        ++*passed;
    }
    ampd_block_reader_close(&reader);
    seen_free(seen);
    seen_free(expected);
}

static void the_reader_agrees_with_pb_decode_on_any_order_and_segmentation(void **state)
{
    struct amp_random random;
    amp_random_init(&random, 21);
    size_t passed = 0;
    for (int i = 0; i < STREAMS; i++) {
        struct amp_buf message;
        amp_buf_init(&message, OUT_MAX);
        random_block(&message, &random);
        compare(message.data, message.size, true, &passed, &random);
        amp_buf_close(&message);
    }
    assert_int_equal(passed, STREAMS);
}

static void the_reader_takes_nothing_that_pb_decode_refuses(void **state)
{
    struct amp_random random;
    amp_random_init(&random, 22);
    size_t passed = 0;
    for (int i = 0; i < STREAMS; i++) {
        struct amp_buf message;
        amp_buf_init(&message, OUT_MAX);
        random_block(&message, &random);
        for (size_t k = amp_random_below(&random, 3); k < 3; k++) {
            /* Mostly where the fields begin. */
            size_t at = amp_random_below(&random, message.size < 24 ? message.size : 24);
            message.data[at] = (uint8_t)amp_random_next(&random);
        }
        if (amp_random_below(&random, 4) == 0)
            message.size = amp_random_below(&random, message.size);
        compare(message.data, message.size, false, &passed, &random);
        amp_buf_close(&message);
    }
    assert_true(passed > STREAMS / 100 && passed < STREAMS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_is_read_as_written_in_pieces_of_any_length),
        cmocka_unit_test(bytes_that_lie_in_their_place_are_taken_from_there),
        cmocka_unit_test(the_largest_block_needs_no_buffer),
        cmocka_unit_test(header_and_trailer_are_given_whole),
        cmocka_unit_test(a_part_beyond_its_bound_is_not_written),
        cmocka_unit_test(what_is_placed_comes_between_header_and_trailer_as_often_as_it_likes),
        cmocka_unit_test(a_malformed_message_is_refused_with_what_is_wrong),
        cmocka_unit_test(a_block_larger_than_the_bound_is_refused_before_its_bytes),
        cmocka_unit_test(the_order_of_a_stream_is_kept),
        cmocka_unit_test(a_stream_without_trailers_passes_over_field_4),
        cmocka_unit_test(a_block_that_nobody_wants_goes_nowhere),
        cmocka_unit_test(after_discard_nothing_is_written),
        cmocka_unit_test(the_code_of_a_callback_ends_the_stream),
        cmocka_unit_test(the_reader_agrees_with_pb_decode_on_any_order_and_segmentation),
        cmocka_unit_test(the_reader_takes_nothing_that_pb_decode_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
