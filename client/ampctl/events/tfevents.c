#include "client/ampctl/events/tfevents.h"

#include "base/crc32c.h"
#include "base/err.h"

#include <string.h>

/* Numbers of fields, as the published schema has them (event.proto, summary.proto, tensor.proto). */
enum {
    EVENT_WALL_TIME = 1,
    EVENT_STEP = 2,
    EVENT_FILE_VERSION = 3,
    EVENT_SUMMARY = 5,
    EVENT_SESSION_LOG = 7,
    SESSION_STATUS = 1,
    SUMMARY_VALUE = 1,
    VALUE_TAG = 1,
    VALUE_NUMBER = 2,
    VALUE_TENSOR = 8,
    VALUE_METADATA = 9,
    METADATA_PLUGIN = 1,
    PLUGIN_NAME = 1,
    TENSOR_DTYPE = 1,
    TENSOR_SHAPE = 2,
    TENSOR_STRING = 8,
    SHAPE_DIM = 2,
    DIM_SIZE = 1,
};
#define SESSION_START 1
#define DTYPE_STRING  7

/* How a field is written (protobuf's encoding). */
enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

static uint32_t masked_crc(const void *data, size_t size)
{
    uint32_t crc = amp_crc32c(0, data, size);
    return ((crc >> 15) | (crc << 17)) + UINT32_C(0xa282ead8);
}

static uint64_t load_le(const uint8_t *at, size_t size)
{
    uint64_t value = 0;
    for (size_t i = size; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

/* ---- writing ---- */

/* Appends unless an earlier append has failed: *rc keeps the first failure. */
static void put(struct amp_buf *out, const void *data, size_t size, int *rc)
{
    if (*rc == 0)
        *rc = amp_buf_append(out, data, size);
}

static void put_le(struct amp_buf *out, uint64_t value, size_t size, int *rc)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
    put(out, bytes, size, rc);
}

static void put_varint(struct amp_buf *out, uint64_t value, int *rc)
{
    uint8_t bytes[10];
    size_t size = 0;
    for (; value >= 0x80; value >>= 7)
        bytes[size++] = (uint8_t)(value | 0x80);
    bytes[size++] = (uint8_t)value;
    put(out, bytes, size, rc);
}

static void put_number(struct amp_buf *out, unsigned field, uint64_t value, int *rc)
{
    put_varint(out, field << 3 | WIRE_VARINT, rc);
    put_varint(out, value, rc);
}

static void put_bytes(struct amp_buf *out, unsigned field, const void *data, size_t size, int *rc)
{
    put_varint(out, field << 3 | WIRE_BYTES, rc);
    put_varint(out, size, rc);
    put(out, data, size, rc);
}

static void put_time(struct amp_buf *out, double wall_time, int *rc)
{
    uint64_t bits;
    memcpy(&bits, &wall_time, sizeof bits);
    put_varint(out, EVENT_WALL_TIME << 3 | WIRE_FIXED64, rc);
    put_le(out, bits, 8, rc);
}

/* A tensor of one string, and what makes TensorBoard show it as a text. */
static void put_text(struct amp_buf *out, const char *text, int *rc)
{
    static const uint8_t shape[] = {SHAPE_DIM << 3 | WIRE_BYTES, 2, DIM_SIZE << 3 | WIRE_VARINT, 1};
    static const uint8_t metadata[] = {
        METADATA_PLUGIN << 3 | WIRE_BYTES, 6, PLUGIN_NAME << 3 | WIRE_BYTES, 4, 't', 'e', 'x', 't'};
    struct amp_buf tensor;
    amp_buf_init(&tensor, AMPCTL_TFEVENTS_EVENT_MAX);
    put_number(&tensor, TENSOR_DTYPE, DTYPE_STRING, rc);
    put_bytes(&tensor, TENSOR_SHAPE, shape, sizeof shape, rc);
    put_bytes(&tensor, TENSOR_STRING, text, strlen(text), rc);
    put_bytes(out, VALUE_TENSOR, tensor.data, tensor.size, rc);
    put_bytes(out, VALUE_METADATA, metadata, sizeof metadata, rc);
    amp_buf_close(&tensor);
}

static void put_value(struct amp_buf *out, const struct ampctl_tfvalue *value, int *rc)
{
    uint32_t bits;
    struct amp_buf body;
    amp_buf_init(&body, AMPCTL_TFEVENTS_EVENT_MAX);
    put_bytes(&body, VALUE_TAG, value->tag, strlen(value->tag), rc);
    if (value->text != NULL) {
        put_text(&body, value->text, rc);
    } else {
        memcpy(&bits, &value->number, sizeof bits);
        put_varint(&body, VALUE_NUMBER << 3 | WIRE_FIXED32, rc);
        put_le(&body, bits, 4, rc);
    }
    put_bytes(out, SUMMARY_VALUE, body.data, body.size, rc);
    amp_buf_close(&body);
}

/* Puts the frame around an event, which is then done with. */
static int put_record(struct amp_buf *out, struct amp_buf *event, int rc)
{
    uint8_t length[8];
    for (size_t i = 0; i < sizeof length; i++)
        length[i] = (uint8_t)((uint64_t)event->size >> 8 * i);
    if (rc == 0)
        rc = amp_buf_reserve(out, event->size + AMPCTL_TFEVENTS_FRAME); /* all of the record, or nothing */
    put(out, length, sizeof length, &rc);
    put_le(out, masked_crc(length, sizeof length), 4, &rc);
    put(out, event->data, event->size, &rc);
    put_le(out, masked_crc(event->data, event->size), 4, &rc);
    amp_buf_close(event);
    return rc;
}

int ampctl_tfevents_begin(struct amp_buf *out, double wall_time)
{
    static const char version[] = "brain.Event:2";
    struct amp_buf event;
    int rc = 0;
    amp_buf_init(&event, AMPCTL_TFEVENTS_EVENT_MAX);
    put_time(&event, wall_time, &rc);
    put_bytes(&event, EVENT_FILE_VERSION, version, sizeof version - 1, &rc);
    return put_record(out, &event, rc);
}

int ampctl_tfevents_restart(struct amp_buf *out, double wall_time, uint64_t step)
{
    static const uint8_t log[] = {SESSION_STATUS << 3 | WIRE_VARINT, SESSION_START};
    struct amp_buf event;
    int rc = 0;
    amp_buf_init(&event, AMPCTL_TFEVENTS_EVENT_MAX);
    put_time(&event, wall_time, &rc);
    put_number(&event, EVENT_STEP, step, &rc);
    put_bytes(&event, EVENT_SESSION_LOG, log, sizeof log, &rc);
    return put_record(out, &event, rc);
}

int ampctl_tfevents_values(struct amp_buf *out, double wall_time, uint64_t step, const struct ampctl_tfvalue *values,
                           size_t count)
{
    struct amp_buf event, summary;
    int rc = 0;
    amp_buf_init(&event, AMPCTL_TFEVENTS_EVENT_MAX);
    amp_buf_init(&summary, AMPCTL_TFEVENTS_EVENT_MAX);
    put_time(&event, wall_time, &rc);
    put_number(&event, EVENT_STEP, step, &rc);
    for (size_t i = 0; i < count; i++)
        put_value(&summary, &values[i], &rc);
    put_bytes(&event, EVENT_SUMMARY, summary.data, summary.size, &rc);
    amp_buf_close(&summary);
    return put_record(out, &event, rc);
}

/* ---- reading ---- */

/* The fields of a message, one after another. */
struct fields {
    const uint8_t *at;
    size_t left;
    bool bad;
    unsigned number, wire;
    uint64_t value; /* of a number */
    const uint8_t *bytes;
    size_t size; /* of bytes */
};

static uint64_t take_varint(struct fields *fields)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && fields->left > 0; shift += 7) {
        uint8_t byte = *fields->at++;
        fields->left--;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return value;
    }
    fields->bad = true;
    return 0;
}

static bool next_field(struct fields *fields)
{
    if (fields->left == 0 || fields->bad)
        return false;
    uint64_t key = take_varint(fields);
    fields->number = (unsigned)(key >> 3);
    fields->wire = (unsigned)(key & 7);
    fields->bytes = fields->at;
    fields->size = 0;
    if (fields->wire == WIRE_VARINT)
        fields->value = take_varint(fields);
    else if (fields->wire == WIRE_FIXED64)
        fields->size = 8;
    else if (fields->wire == WIRE_FIXED32)
        fields->size = 4;
    else if (fields->wire == WIRE_BYTES)
        fields->size = (size_t)take_varint(fields);
    else
        fields->bad = true;
    if (fields->wire != WIRE_VARINT)
        fields->bytes = fields->at;
    fields->bad = fields->bad || fields->size > fields->left;
    if (fields->bad)
        return false;
    if (fields->wire != WIRE_VARINT) {
        fields->value = fields->size <= 8 ? load_le(fields->bytes, fields->size) : 0;
        fields->at += fields->size;
        fields->left -= fields->size;
    }
    return true;
}

static bool is_bytes(const struct fields *fields, unsigned number)
{
    return fields->number == number && fields->wire == WIRE_BYTES;
}

int ampctl_tfevents_parse(const uint8_t *data, size_t size, struct ampctl_tfevent *event)
{
    struct fields fields = {.at = data, .left = size};
    *event = (struct ampctl_tfevent){0};
    while (next_field(&fields)) {
        if (fields.number == EVENT_STEP && fields.wire == WIRE_VARINT) {
            event->step = fields.value;
        } else if (is_bytes(&fields, EVENT_SUMMARY)) {
            event->summary = fields.bytes;
            event->summary_size = fields.size;
        } else if (is_bytes(&fields, EVENT_SESSION_LOG)) {
            struct fields log = {.at = fields.bytes, .left = fields.size};
            while (next_field(&log))
                event->restarts = event->restarts || (log.number == SESSION_STATUS && log.value == SESSION_START);
        }
    }
    return fields.bad ? AMP_EINVAL : 1;
}

int ampctl_tfevents_read(const uint8_t *data, size_t size, struct ampctl_tfevent *event, size_t *used)
{
    *used = AMPCTL_TFEVENTS_FRAME;
    if (size < 12)
        return 0;
    uint64_t length = load_le(data, 8);
    if (load_le(data + 8, 4) != masked_crc(data, 8) || length > AMPCTL_TFEVENTS_EVENT_MAX)
        return AMP_EINVAL;
    *used = (size_t)length + AMPCTL_TFEVENTS_FRAME;
    if (size < *used)
        return 0;
    if (load_le(data + 12 + length, 4) != masked_crc(data + 12, (size_t)length))
        return AMP_EINVAL;
    return ampctl_tfevents_parse(data + 12, (size_t)length, event);
}

/* Finds the value of a tag; *value goes on behind its tag. */
static bool find(const struct ampctl_tfevent *event, const char *tag, struct fields *value)
{
    struct fields summary = {.at = event->summary, .left = event->summary_size};
    while (next_field(&summary)) {
        if (!is_bytes(&summary, SUMMARY_VALUE))
            continue;
        *value = (struct fields){.at = summary.bytes, .left = summary.size};
        if (next_field(value) && is_bytes(value, VALUE_TAG) && value->size == strlen(tag) &&
            memcmp(value->bytes, tag, value->size) == 0)
            return true;
    }
    return false;
}

bool ampctl_tfevents_number(const struct ampctl_tfevent *event, const char *tag, float *number)
{
    struct fields value;
    if (!find(event, tag, &value))
        return false;
    while (next_field(&value))
        if (value.number == VALUE_NUMBER && value.wire == WIRE_FIXED32) {
            uint32_t bits = (uint32_t)value.value;
            memcpy(number, &bits, sizeof *number);
            return true;
        }
    return false;
}

bool ampctl_tfevents_text(const struct ampctl_tfevent *event, const char *tag, char *text, size_t capacity)
{
    struct fields value;
    if (!find(event, tag, &value))
        return false;
    while (next_field(&value)) {
        if (!is_bytes(&value, VALUE_TENSOR))
            continue;
        struct fields tensor = {.at = value.bytes, .left = value.size};
        while (next_field(&tensor))
            if (is_bytes(&tensor, TENSOR_STRING) && tensor.size < capacity) {
                memcpy(text, tensor.bytes, tensor.size);
                text[tensor.size] = 0;
                return true;
            }
    }
    return false;
}
