/*
 * The incremental block reader against nanopb's decoder on the same messages: both take a message and find the same in
 * it, or the reader refuses it; and what it refuses, nanopb refuses too or one of the reader's own rules does.
 */
#include "tests/fuzz/fuzz.h"

#include "base/crc32c.h"
#include "base/err.h"
#include "proto/block.h"

#include "ampd/v1/parameter_service.pb.h"

#include <pb_decode.h>
#include <stdlib.h>
#include <string.h>

enum { FIELD_HEADER = 1, FIELD_INDEX = 2, FIELD_CRC32C = 3, FIELD_TRAILER = 4, FIELD_PLACED = 5, FIELD_DATA = 15 };

/* What one message holds, as the reader told it or as nanopb found it. */
struct found {
    int parts; /* headers, trailers and what is placed */
    int begins;
    int ends;
    bool intact;
    struct ampd_block block;
    enum ampd_block_part part;
    uint32_t part_crc;
    uint8_t *data; /* block.size bytes */
    bool refuse;   /* begin_cb gives no destination */
};

/* The rules of a stream that nanopb does not know. */
struct order {
    bool header_seen;
    bool trailer_seen;
};

static int on_part(void *arg, enum ampd_block_part part, const uint8_t *data, size_t size, struct amp_error *error)
{
    struct found *found = arg;
    AMP_ASSERT(error != NULL && size <= AMPD_BLOCK_PART_MAX);
    found->parts++;
    found->part = part;
    found->part_crc = amp_crc32c(0, data, size);
    return 0;
}

static int on_begin(void *arg, const struct ampd_block *block, uint8_t **destination, struct amp_error *error)
{
    struct found *found = arg;
    AMP_ASSERT(error != NULL && *destination == NULL && block->size <= AMPD_BLOCK_DATA_MAX);
    found->begins++;
    found->block = *block;
    free(found->data);
    found->data = malloc(block->size > 0 ? block->size : 1);
    AMP_ASSERT(found->data != NULL);
    if (!found->refuse)
        *destination = found->data;
    return 0;
}

static int on_end(void *arg, const struct ampd_block *block, bool intact, struct amp_error *error)
{
    struct found *found = arg;
    AMP_ASSERT(error != NULL && block->index == found->block.index && block->size == found->block.size);
    found->ends++;
    found->intact = intact;
    return 0;
}

static const struct ampd_block_reader_ops ops = {.part_cb = on_part, .begin_cb = on_begin, .end_cb = on_end};

static int read_message(struct ampd_block_reader *reader, struct fuzz_input message, struct fuzz_script *script)
{
    struct amp_error error = {.text = ""};
    int rc = ampd_block_reader_begin(reader, message.size, &error);
    while (rc == 0 && message.size > 0) {
        size_t size;
        uint8_t *segment = fuzz_segment(&message, fuzz_script_next(script).size, &size);
        rc = ampd_block_reader_bytes(reader, segment, size, &error);
        free(segment);
    }
    if (rc == 0)
        rc = ampd_block_reader_end(reader, &error);
    AMP_ASSERT(rc == 0 || (rc == AMP_EINVAL && error.text[0] != 0));
    return rc;
}

/* One field of nanopb's. False: the message is refused, by nanopb or by a rule. */
static bool take_field(pb_istream_t *stream, uint32_t tag, pb_wire_type_t type, bool has_trailer, struct found *found,
                       uint32_t *seen)
{
    bool part = tag == FIELD_HEADER || tag == FIELD_PLACED || (tag == FIELD_TRAILER && has_trailer);
    bool known = part || tag == FIELD_INDEX || tag == FIELD_CRC32C || tag == FIELD_DATA;
    uint64_t any;
    /* nanopb skips a varint of any length, and a key that is a negative number; both are no protobuf, and refused. */
    if (!known)
        return type == PB_WT_VARINT ? pb_decode_varint(stream, &any) : pb_skip_field(stream, type);
    if ((*seen >> tag & 1) != 0)
        return false;
    *seen |= UINT32_C(1) << tag;
    if (tag == FIELD_INDEX) {
        uint64_t index;
        if (type != PB_WT_VARINT || !pb_decode_varint(stream, &index) || index > UINT32_MAX)
            return false;
        found->block.index = (uint32_t)index;
        return true;
    }
    if (tag == FIELD_CRC32C)
        return type == PB_WT_32BIT && pb_decode_fixed32(stream, &found->block.crc32c);
    pb_istream_t inner;
    if (type != PB_WT_STRING || !pb_make_string_substream(stream, &inner))
        return false;
    size_t size = inner.bytes_left;
    uint8_t *bytes = malloc(size > 0 ? size : 1);
    AMP_ASSERT(bytes != NULL);
    bool ok = pb_read(&inner, bytes, size) && pb_close_string_substream(stream, &inner) &&
              size <= (size_t)(part ? AMPD_BLOCK_PART_MAX : AMPD_BLOCK_DATA_MAX);
    if (ok && part) {
        found->parts++;
        found->part = (enum ampd_block_part)tag;
        found->part_crc = amp_crc32c(0, bytes, size);
    } else if (ok) {
        found->data = bytes;
        found->block.size = (uint32_t)size;
        return true;
    }
    free(bytes);
    return ok;
}

static bool rules_hold(uint32_t seen, const struct found *found, struct order *order)
{
    uint32_t parts = UINT32_C(1) << FIELD_HEADER | UINT32_C(1) << FIELD_TRAILER | UINT32_C(1) << FIELD_PLACED;
    uint32_t block = UINT32_C(1) << FIELD_INDEX | UINT32_C(1) << FIELD_CRC32C | UINT32_C(1) << FIELD_DATA;
    if ((seen & parts) == 0)
        return seen == block && order->header_seen && !order->trailer_seen;
    if ((seen & (seen - 1)) != 0)
        return false;
    if (found->part == AMPD_BLOCK_PLACED)
        return order->header_seen && !order->trailer_seen;
    bool *once = found->part == AMPD_BLOCK_HEADER ? &order->header_seen : &order->trailer_seen;
    bool good = !*once && (found->part == AMPD_BLOCK_HEADER || order->header_seen);
    *once = true;
    return good;
}

/* The message by nanopb's own functions. */
static bool decode_message(struct fuzz_input message, bool has_trailer, struct order *order, struct found *found)
{
    pb_istream_t stream = pb_istream_from_buffer(message.data, message.size);
    uint32_t seen = 0;
    while (stream.bytes_left > 0) {
        uint64_t key;
        if (!pb_decode_varint(&stream, &key) || key > UINT32_MAX || key >> 3 == 0)
            return false;
        if (!take_field(&stream, (uint32_t)key >> 3, (pb_wire_type_t)(key & 7), has_trailer, found, &seen))
            return false;
    }
    return rules_hold(seen, found, order);
}

static void compare(const struct found *ours, const struct found *theirs)
{
    AMP_ASSERT(ours->parts == theirs->parts);
    if (theirs->parts > 0) {
        AMP_ASSERT(ours->begins == 0 && ours->part == theirs->part && ours->part_crc == theirs->part_crc);
        return;
    }
    AMP_ASSERT(ours->begins == 1 && ours->ends == !ours->refuse);
    AMP_ASSERT(ours->block.index == theirs->block.index && ours->block.crc32c == theirs->block.crc32c &&
               ours->block.size == theirs->block.size);
    if (ours->refuse)
        return;
    AMP_ASSERT(memcmp(ours->data, theirs->data, theirs->block.size) == 0);
    AMP_ASSERT(ours->intact == (amp_crc32c(0, theirs->data, theirs->block.size) == theirs->block.crc32c));
}

/*
 * pb_decode of the whole message, as any other program of nanopb's would call it: it may not refuse what the reader
 * takes, unless for what is inside of a header, which is the codec's to check.
 */
static void decode_whole(struct fuzz_input message, const struct found *ours)
{
    ampd_v1_PushRequest *request = calloc(1, sizeof *request);
    AMP_ASSERT(request != NULL);
    pb_istream_t stream = pb_istream_from_buffer(message.data, message.size);
    bool ok = pb_decode(&stream, ampd_v1_PushRequest_fields, request);
    AMP_ASSERT(ok || ours->parts > 0);
    if (ok && ours->parts == 0)
        AMP_ASSERT(request->has_index && request->index == ours->block.index && request->has_crc32c &&
                   request->crc32c == ours->block.crc32c);
    pb_release(ampd_v1_PushRequest_fields, request);
    free(request);
}

static bool one_message(struct ampd_block_reader *reader, struct found *ours, struct fuzz_input message,
                        bool has_trailer, struct order *order, struct fuzz_script *script)
{
    struct found theirs = {0};
    bool good = decode_message(message, has_trailer, order, &theirs);
    ours->parts = ours->begins = ours->ends = 0;
    int rc = read_message(reader, message, script);
    AMP_ASSERT((rc == 0) == good);
    if (good)
        compare(ours, &theirs);
    if (good && has_trailer)
        decode_whole(message, ours);
    free(theirs.data);
    return good;
}

/* A script, a byte of choices, then messages, each behind two bytes of its length; the last one takes what there is. */
void fuzz_one(const uint8_t *data, size_t size)
{
    struct fuzz_input input = {data, size};
    struct fuzz_script script;
    fuzz_script_read(&script, &input);
    unsigned choices = fuzz_byte(&input);
    bool has_trailer = (choices & 1) == 0;
    struct found ours = {.refuse = (choices & 2) != 0};
    struct order order = {0};
    struct ampd_block_reader reader;
    ampd_block_reader_init(&reader, &ops, &ours, has_trailer);
    bool good = true;
    while (good && input.size > 0) {
        size_t length = (size_t)fuzz_byte(&input) << 8;
        length |= fuzz_byte(&input);
        uint8_t *bytes = fuzz_segment(&input, length, &length);
        good = one_message(&reader, &ours, (struct fuzz_input){bytes, length}, has_trailer, &order, &script);
        free(bytes);
    }
    ampd_block_reader_close(&reader);
    free(ours.data);
}
