/*
 * An incremental reader of one protobuf shape: pb_decode pulls its bytes and cannot wait for more, and would hold a
 * block until all of it is there.
 *
 *   IDLE --begin--> TAG --> VARINT ----------------.
 *                    |----> FIXED -----------------|
 *                    |----> LENGTH --> COLLECT ----|   field 1, 4 or 5: to part_cb
 *                    |                 DATA -------|   field 15, index and crc32c known: to its destination
 *                    |                 KEEP -------|   field 15, before them: to the buffer
 *                    |                 SKIP -------|
 *                    '<----------------------------'   at the end of the message: end --> IDLE
 *
 * What a field means is decided where it is complete; what a message means, in `end`. Every message holds exactly
 * one of header, block, placed and trailer, and each field at most once; the header is the first message of the stream
 * and of no other, and the trailer the last.
 */
#include "proto/block.h"

#include "base/assert.h"
#include "base/crc32c.h"

#include <string.h>

enum field {
    FIELD_HEADER = 1,
    FIELD_INDEX = 2,
    FIELD_CRC32C = 3,
    FIELD_TRAILER = 4,
    FIELD_PLACED = 5,
    FIELD_DATA = 15
};
enum wire { WIRE_VARINT = 0, WIRE_I64 = 1, WIRE_LEN = 2, WIRE_I32 = 5 };

#define REASON "INVALID_FIELD"

static int fail(struct ampd_block_reader *reader, int code)
{
    reader->state = AMPD_BLOCK_READER_FAILED;
    reader->code = code;
    reader->destination = NULL;
    return code;
}

/* Sets the text, and leaves the code to be kept by the exported function. */
static int invalid(struct amp_error *error, const char *what)
{
    return amp_error_set(error, AMP_EINVAL, REASON, "%s", what);
}

static bool has(const struct ampd_block_reader *reader, enum field field)
{
    return (reader->seen >> field & 1) != 0;
}

/* Marks a field of ours; a second time is an error. */
static int mark(struct ampd_block_reader *reader, const char *name, struct amp_error *error)
{
    uint32_t bit = UINT32_C(1) << reader->field;
    if ((reader->seen & bit) != 0)
        return amp_error_set(error, AMP_EINVAL, REASON, "%s is given twice in one message", name);
    reader->seen |= bit;
    return 0;
}

static bool is_part(const struct ampd_block_reader *reader)
{
    return reader->field == FIELD_HEADER || reader->field == FIELD_PLACED ||
           (reader->field == FIELD_TRAILER && reader->has_trailer);
}

/* A complete key: what comes next. */
static int take_key(struct ampd_block_reader *reader, struct amp_error *error)
{
    if (reader->varint > UINT32_MAX || reader->varint >> 3 == 0)
        return invalid(error, "a field number is out of range");
    reader->field = (uint32_t)(reader->varint >> 3);
    unsigned wire = (unsigned)(reader->varint & 7);
    if (((is_part(reader) || reader->field == FIELD_DATA) && wire != WIRE_LEN) ||
        (reader->field == FIELD_INDEX && wire != WIRE_VARINT) || (reader->field == FIELD_CRC32C && wire != WIRE_I32))
        return amp_error_set(error, AMP_EINVAL, REASON, "field %u has a wrong wire type: the schemas differ",
                             (unsigned)reader->field);
    reader->varint = 0;
    reader->varint_bits = 0;
    switch (wire) {
    case WIRE_VARINT:
        reader->state = AMPD_BLOCK_READER_VARINT;
        return 0;
    case WIRE_LEN:
        reader->state = AMPD_BLOCK_READER_LENGTH;
        return 0;
    case WIRE_I64:
    case WIRE_I32:
        reader->state = AMPD_BLOCK_READER_FIXED;
        reader->field_left = wire == WIRE_I64 ? 8 : 4;
        return 0;
    default:
        return invalid(error, "a wire type is unknown");
    }
}

static int take_varint(struct ampd_block_reader *reader, struct amp_error *error)
{
    reader->state = AMPD_BLOCK_READER_TAG;
    if (reader->field != FIELD_INDEX)
        return 0;
    if (reader->varint > UINT32_MAX)
        return invalid(error, "index is out of the range of its type");
    reader->block.index = (uint32_t)reader->varint;
    return mark(reader, "index", error);
}

static int take_fixed(struct ampd_block_reader *reader, struct amp_error *error)
{
    reader->state = AMPD_BLOCK_READER_TAG;
    if (reader->field != FIELD_CRC32C)
        return 0;
    reader->block.crc32c = (uint32_t)reader->varint;
    return mark(reader, "crc32c", error);
}

/* A block whose size, index and checksum are known: asks where its bytes go. */
static int begin_block(struct ampd_block_reader *reader, struct amp_error *error)
{
    if (!reader->header_seen)
        return invalid(error, "a block comes before the header");
    if (reader->trailer_seen)
        return invalid(error, "a block comes after the trailer");
    reader->crc = 0;
    reader->destination = NULL;
    return reader->ops->begin_cb(reader->arg, &reader->block, &reader->destination, error);
}

static int end_block(struct ampd_block_reader *reader, struct amp_error *error)
{
    if (reader->destination == NULL)
        return 0;
    reader->destination = NULL;
    return reader->ops->end_cb(reader->arg, &reader->block, reader->crc == reader->block.crc32c, error);
}

/* Puts bytes of the block to their place, and sums them while they are in the cache. */
static void put(struct ampd_block_reader *reader, size_t offset, const uint8_t *data, size_t size)
{
    if (reader->destination == NULL || size == 0)
        return;
    if (data == reader->destination + offset)
        ; /* read into its place: ampd_block_reader_place */
    else if (reader->copy != NULL)
        reader->copy(reader->destination + offset, data, size);
    else
        memcpy(reader->destination + offset, data, size);
    reader->crc = amp_crc32c(reader->crc, data, size);
}

static const char *part_name(const struct ampd_block_reader *reader)
{
    return reader->field == FIELD_HEADER ? "header" : reader->field == FIELD_PLACED ? "placed" : "trailer";
}

static int finish_part(struct ampd_block_reader *reader, struct amp_error *error)
{
    bool header = reader->field == FIELD_HEADER;
    if (header && reader->header_seen)
        return invalid(error, "header comes twice in the stream");
    if (!header && !reader->header_seen)
        return amp_error_set(error, AMP_EINVAL, REASON, "%s comes before the header", part_name(reader));
    if (!header && reader->trailer_seen)
        return amp_error_set(error, AMP_EINVAL, REASON, "%s comes %s", part_name(reader),
                             reader->field == FIELD_TRAILER ? "twice in the stream" : "after the trailer");
    reader->header_seen = true;
    reader->trailer_seen = reader->field == FIELD_TRAILER;
    /* An empty submessage has no bytes, but its place. */
    static const uint8_t nothing[1];
    const uint8_t *data = reader->buffer.size > 0 ? reader->buffer.data : nothing;
    int rc = reader->ops->part_cb(reader->arg, (enum ampd_block_part)reader->field, data, reader->buffer.size, error);
    amp_buf_close(&reader->buffer);
    return rc;
}

/* All bytes of a field with a length are there. */
static int finish_field(struct ampd_block_reader *reader, struct amp_error *error)
{
    enum ampd_block_reader_state state = reader->state;
    reader->state = AMPD_BLOCK_READER_TAG;
    if (state == AMPD_BLOCK_READER_COLLECT)
        return finish_part(reader, error);
    if (state == AMPD_BLOCK_READER_DATA)
        return end_block(reader, error);
    return 0;
}

static int take_data_length(struct ampd_block_reader *reader, struct amp_error *error)
{
    if (reader->field_left > AMPD_BLOCK_DATA_MAX)
        return amp_error_set(error, AMP_EINVAL, REASON, "data has %zu bytes; a block has at most %d",
                             reader->field_left, AMPD_BLOCK_DATA_MAX);
    if (has(reader, FIELD_HEADER) || has(reader, FIELD_TRAILER) || has(reader, FIELD_PLACED))
        return invalid(error, "data stands beside a header, placed or a trailer");
    int rc = mark(reader, "data", error);
    if (rc != 0)
        return rc;
    reader->block.size = (uint32_t)reader->field_left;
    if (has(reader, FIELD_INDEX) && has(reader, FIELD_CRC32C)) {
        reader->state = AMPD_BLOCK_READER_DATA;
        return begin_block(reader, error);
    }
    reader->state = AMPD_BLOCK_READER_KEEP;
    reader->kept = true;
    return 0;
}

static int take_part_length(struct ampd_block_reader *reader, struct amp_error *error)
{
    const char *name = part_name(reader);
    if (reader->field_left > AMPD_BLOCK_PART_MAX)
        return amp_error_set(error, AMP_EINVAL, REASON, "%s has %zu bytes; at most %d are allowed", name,
                             reader->field_left, AMPD_BLOCK_PART_MAX);
    /* The buffer has one use a message: no block may stand beside a header. */
    if ((reader->seen & ~(UINT32_C(1) << reader->field)) != 0)
        return amp_error_set(error, AMP_EINVAL, REASON, "%s is not alone in its message", name);
    reader->state = AMPD_BLOCK_READER_COLLECT;
    return mark(reader, name, error);
}

static int take_length(struct ampd_block_reader *reader, struct amp_error *error)
{
    if (reader->varint > reader->message_left)
        return invalid(error, "a field is longer than its message");
    reader->field_left = (size_t)reader->varint;
    reader->state = AMPD_BLOCK_READER_SKIP;
    int rc = 0;
    if (reader->field == FIELD_DATA)
        rc = take_data_length(reader, error);
    else if (is_part(reader))
        rc = take_part_length(reader, error);
    if (rc == 0 && reader->field_left == 0)
        rc = finish_field(reader, error);
    return rc;
}

/* One byte of a varint: a key, a length or a value. */
static int step_varint(struct ampd_block_reader *reader, uint8_t byte, struct amp_error *error)
{
    if (reader->varint_bits == 63 && byte > 1)
        return invalid(error, "a varint is longer than 64 bits");
    reader->varint |= (uint64_t)(byte & 0x7f) << reader->varint_bits;
    reader->varint_bits += 7;
    if (byte >= 0x80)
        return 0;
    if (reader->state == AMPD_BLOCK_READER_TAG)
        return take_key(reader, error);
    int rc = reader->state == AMPD_BLOCK_READER_LENGTH ? take_length(reader, error) : take_varint(reader, error);
    reader->varint = 0;
    reader->varint_bits = 0;
    return rc;
}

static int step_fixed(struct ampd_block_reader *reader, uint8_t byte, struct amp_error *error)
{
    reader->varint |= (uint64_t)byte << reader->varint_bits;
    reader->varint_bits += 8;
    if (--reader->field_left > 0)
        return 0;
    int rc = take_fixed(reader, error);
    reader->varint = 0;
    reader->varint_bits = 0;
    return rc;
}

/* Bytes of a field with a length; `size` is not beyond its end. */
static int step_bytes(struct ampd_block_reader *reader, const uint8_t *data, size_t size, struct amp_error *error)
{
    int rc = 0;
    if (reader->state == AMPD_BLOCK_READER_DATA)
        put(reader, reader->block.size - reader->field_left, data, size);
    else if (reader->state != AMPD_BLOCK_READER_SKIP)
        rc = amp_buf_append(&reader->buffer, data, size);
    if (rc != 0)
        return amp_error_set(error, rc, NULL, "no memory for %zu bytes of a message", reader->field_left);
    reader->field_left -= size;
    return reader->field_left == 0 ? finish_field(reader, error) : 0;
}

void ampd_block_reader_init(struct ampd_block_reader *reader, const struct ampd_block_reader_ops *ops, void *arg,
                            bool has_trailer)
{
    *reader = (struct ampd_block_reader){.ops = ops, .arg = arg, .has_trailer = has_trailer};
    amp_buf_init(&reader->buffer, AMPD_BLOCK_DATA_MAX);
}

void ampd_block_reader_close(struct ampd_block_reader *reader)
{
    amp_buf_close(&reader->buffer);
    reader->destination = NULL;
}

int ampd_block_reader_begin(struct ampd_block_reader *reader, size_t size, struct amp_error *error)
{
    if (reader->state == AMPD_BLOCK_READER_FAILED)
        return reader->code;
    AMP_ASSERT(reader->state == AMPD_BLOCK_READER_IDLE);
    reader->state = AMPD_BLOCK_READER_TAG;
    reader->message_left = size;
    reader->seen = 0;
    reader->kept = false;
    reader->varint = 0;
    reader->varint_bits = 0;
    reader->block = (struct ampd_block){0};
    return 0;
}

int ampd_block_reader_bytes(struct ampd_block_reader *reader, const uint8_t *data, size_t size, struct amp_error *error)
{
    struct amp_error own;
    if (error == NULL)
        error = &own;
    AMP_ASSERT(reader->state == AMPD_BLOCK_READER_FAILED || size <= reader->message_left);
    int rc = 0;
    while (size > 0 && rc == 0) {
        size_t taken = 1;
        switch (reader->state) {
        case AMPD_BLOCK_READER_COLLECT:
        case AMPD_BLOCK_READER_DATA:
        case AMPD_BLOCK_READER_KEEP:
        case AMPD_BLOCK_READER_SKIP:
            taken = size < reader->field_left ? size : reader->field_left;
            reader->message_left -= taken;
            rc = step_bytes(reader, data, taken, error);
            break;
        case AMPD_BLOCK_READER_FIXED:
            reader->message_left--;
            rc = step_fixed(reader, *data, error);
            break;
        case AMPD_BLOCK_READER_FAILED:
            return reader->code;
        default:
            reader->message_left--;
            rc = step_varint(reader, *data, error);
        }
        data += taken;
        size -= taken;
    }
    return rc == 0 ? 0 : fail(reader, rc);
}

/* Data that came before its index or checksum: both are here now, or never. */
static int end_kept(struct ampd_block_reader *reader, struct amp_error *error)
{
    int rc = begin_block(reader, error);
    if (rc != 0)
        return rc;
    put(reader, 0, reader->buffer.data, reader->buffer.size);
    amp_buf_close(&reader->buffer);
    return end_block(reader, error);
}

static int end_message(struct ampd_block_reader *reader, struct amp_error *error)
{
    uint32_t parts = UINT32_C(1) << FIELD_HEADER | UINT32_C(1) << FIELD_TRAILER | UINT32_C(1) << FIELD_PLACED;
    if ((reader->seen & parts) != 0)
        return (reader->seen & (reader->seen - 1)) == 0 ? 0
                                                        : invalid(error, "a header, placed or a trailer is not alone");
    if (!has(reader, FIELD_DATA))
        return invalid(error, "a message holds neither header, data, placed nor trailer");
    if (!has(reader, FIELD_INDEX))
        return invalid(error, "data comes without index");
    if (!has(reader, FIELD_CRC32C))
        return invalid(error, "data comes without crc32c");
    return reader->kept ? end_kept(reader, error) : 0;
}

int ampd_block_reader_end(struct ampd_block_reader *reader, struct amp_error *error)
{
    struct amp_error own;
    if (error == NULL)
        error = &own;
    if (reader->state == AMPD_BLOCK_READER_FAILED)
        return reader->code;
    bool whole = reader->message_left == 0 && reader->state == AMPD_BLOCK_READER_TAG && reader->varint_bits == 0;
    if (!whole)
        return fail(reader, invalid(error, "a message is cut off"));
    reader->state = AMPD_BLOCK_READER_IDLE;
    int rc = end_message(reader, error);
    return rc == 0 ? 0 : fail(reader, rc);
}

void ampd_block_reader_discard(struct ampd_block_reader *reader)
{
    reader->destination = NULL;
}

uint8_t *ampd_block_reader_place(const struct ampd_block_reader *reader, size_t *size)
{
    if (reader->state != AMPD_BLOCK_READER_DATA || reader->destination == NULL)
        return NULL;
    *size = reader->field_left;
    return reader->destination + (reader->block.size - reader->field_left);
}

void ampd_block_reader_copy_by(struct ampd_block_reader *reader, ampd_block_copy_fn *copy)
{
    reader->copy = copy;
}

bool ampd_block_reader_has_header(const struct ampd_block_reader *reader)
{
    return reader->header_seen;
}
