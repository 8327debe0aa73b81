/*
 * safetensors (github.com/huggingface/safetensors, "Format"): a 64-bit little-endian length, a JSON object of that length,
 * the data. The object maps a tensor's name to {dtype, shape, data_offsets}, offsets counted from the start of the data;
 * "__metadata__" maps strings to strings. Offsets neither overlap nor leave holes. The JSON may end in spaces.
 *
 * Our metadata: "format" "ampd/1"; numbers of the state as decimal text, the scale also as the bits of its fp32;
 * "hash:<tensor>" as 32 hex digits; "hash": XXH3-128 of the whole object without this one entry, dumped compact and
 * sorted. Keys are sorted, so that equal states give equal bytes.
 */
#include "storage/checkpoint_format.h"
#include "storage/store.h"

#include "base/assert.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define FORMAT_PREFIX  "ampd/"
#define FORMAT_VERSION 1
#define METADATA       "__metadata__"
#define DUMP_FLAGS     (JSON_SORT_KEYS | JSON_COMPACT)

/* 32 hex digits and the final zero. */
#define HASH_TEXT_MAX (2 * CHECKPOINT_HASH_BYTES + 1)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are written as they lie in memory");

/* ---- the numbers of the state ---- */

struct number {
    const char *key;
    bool is_64;
    size_t offset;
};

#define NUMBER_64(key, member)                                                                                         \
    {                                                                                                                  \
        key, true, offsetof(struct ampd_checkpoint_state, member)                                                      \
    }
#define NUMBER_32(key, member)                                                                                         \
    {                                                                                                                  \
        key, false, offsetof(struct ampd_checkpoint_state, member)                                                     \
    }

static const struct number numbers[] = {
    NUMBER_64("step", step),
    NUMBER_64("version", version),
    NUMBER_32("scale_bits", scaler.scale),
    NUMBER_64("scale_id", scaler.scale_id),
    NUMBER_32("growth_tracker", scaler.growth_tracker),
    NUMBER_32("hysteresis_left", scaler.hysteresis_left),
    NUMBER_32("consecutive_overflows", scaler.consecutive_overflows),
    NUMBER_64("total_overflows", scaler.total_overflows),
    NUMBER_64("steps_since_overflow", scaler.steps_since_overflow),
    NUMBER_64("attempted", scaler.attempted),
    NUMBER_64("applied", scaler.applied),
    NUMBER_64("skipped", scaler.skipped),
    NUMBER_32("world_size", world_size),
};

#define NUMBERS_COUNT (sizeof numbers / sizeof *numbers)

/* Decimal digits only, the whole text, within 64 bits. */
static bool parse_number(const char *text, uint64_t *value)
{
    *value = 0;
    if (text == NULL || *text == 0)
        return false;
    for (; *text != 0; text++) {
        if (*text < '0' || *text > '9' || *value > (UINT64_MAX - (uint64_t)(*text - '0')) / 10)
            return false;
        *value = *value * 10 + (uint64_t)(*text - '0');
    }
    return true;
}

static bool numbers_read(const json_t *metadata, struct ampd_checkpoint_state *state)
{
    for (size_t i = 0; i < NUMBERS_COUNT; i++) {
        char *at = (char *)state + numbers[i].offset;
        uint64_t value;
        if (!parse_number(json_string_value(json_object_get(metadata, numbers[i].key)), &value))
            return false;
        uint32_t narrow = (uint32_t)value;
        if (!numbers[i].is_64 && value != narrow)
            return false;
        memcpy(at, numbers[i].is_64 ? (const void *)&value : (const void *)&narrow,
               numbers[i].is_64 ? sizeof value : sizeof narrow);
    }
    return isfinite(state->scaler.scale) && state->scaler.scale > 0 && state->world_size <= AMPD_WORLD_MAX;
}

static int set_string(json_t *object, const char *key, const char *text)
{
    return json_object_set_new(object, key, json_string(text));
}

static int numbers_write(json_t *metadata, const struct ampd_checkpoint_state *state)
{
    char text[32];
    int failed = 0;
    for (size_t i = 0; i < NUMBERS_COUNT; i++) {
        const char *at = (const char *)state + numbers[i].offset;
        uint64_t value = 0;
        memcpy(&value, at, numbers[i].is_64 ? sizeof value : sizeof(uint32_t)); /* little-endian */
        (void)snprintf(text, sizeof text, "%" PRIu64, value);
        failed |= set_string(metadata, numbers[i].key, text);
    }
    (void)snprintf(text, sizeof text, "%.9g", (double)state->scaler.scale); /* for people; the bits count */
    return failed | set_string(metadata, "scale", text);
}

/* ---- hashes ---- */

static void hash_text(const uint8_t hash[CHECKPOINT_HASH_BYTES], char text[HASH_TEXT_MAX])
{
    for (int i = 0; i < CHECKPOINT_HASH_BYTES; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", hash[i]);
}

/* The hash of an object's dump. 0 or AMP_ENOMEM. */
static int hash_object(const json_t *object, char text[HASH_TEXT_MAX])
{
    char *dump = json_dumps(object, DUMP_FLAGS);
    if (dump == NULL)
        return AMP_ENOMEM;
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(dump, strlen(dump)));
    free(dump);
    hash_text(canonical.digest, text);
    return 0;
}

static bool hash_parse(const char *text, uint8_t hash[CHECKPOINT_HASH_BYTES])
{
    if (text == NULL || strlen(text) != HASH_TEXT_MAX - 1)
        return false;
    for (int i = 0; i < CHECKPOINT_HASH_BYTES; i++) {
        char pair[3] = {text[2 * i], text[2 * i + 1], 0};
        if (strspn(pair, "0123456789abcdef") != 2)
            return false;
        hash[i] = (uint8_t)strtoul(pair, NULL, 16);
    }
    return true;
}

void checkpoint_manifest(const struct checkpoint_pieces *pieces, uint8_t manifest[CHECKPOINT_HASH_BYTES])
{
    XXH128_hash_t hash = {0, 0};
    for (uint32_t i = 0; i < pieces->count; i++) {
        const struct checkpoint_piece *piece = &pieces->items[i];
        /* One record a tensor, fixed size, unused bytes zero; the chain goes on through the seed. */
        struct {
            char name[CHECKPOINT_TENSOR_NAME_MAX];
            uint64_t shape[AMPD_DIMENSIONS_MAX];
            uint32_t dimensions, is_f32;
            uint8_t hash[CHECKPOINT_HASH_BYTES];
            uint8_t before[CHECKPOINT_HASH_BYTES];
        } record;
        XXH128_canonical_t canonical;
        memset(&record, 0, sizeof record);
        memcpy(record.name, piece->name, strlen(piece->name));
        memcpy(record.shape, piece->shape, piece->dimensions * sizeof *piece->shape);
        record.dimensions = piece->dimensions;
        record.is_f32 = piece->is_f32;
        memcpy(record.hash, piece->hash, sizeof record.hash);
        XXH128_canonicalFromHash(&canonical, hash);
        memcpy(record.before, canonical.digest, sizeof record.before);
        hash = XXH3_128bits(&record, sizeof record);
    }
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, hash);
    memcpy(manifest, canonical.digest, CHECKPOINT_HASH_BYTES);
}

/* ---- pieces ---- */

bool checkpoint_shape_elements(uint32_t dimensions, const uint64_t *shape, uint64_t *elements)
{
    *elements = 1;
    if (dimensions > AMPD_DIMENSIONS_MAX)
        return false;
    for (uint32_t i = 0; i < dimensions; i++) {
        if (shape[i] == 0 || *elements > AMPD_ELEMENTS_MAX / shape[i])
            return false;
        *elements *= shape[i];
    }
    return true;
}

static bool name_ok(const char *name)
{
    size_t size = strnlen(name, AMPD_NAME_MAX);
    return size > 0 && size < AMPD_NAME_MAX && strpbrk(name, "#@") == NULL && strcmp(name, METADATA) != 0;
}

static void add_piece(struct checkpoint_pieces *pieces, const struct ampd_checkpoint_target *target, uint64_t elements,
                      const char *suffix, float *data)
{
    if (data == NULL)
        return;
    struct checkpoint_piece *piece = &pieces->items[pieces->count++];
    (void)snprintf(piece->name, sizeof piece->name, "%s%s", target->name, suffix);
    piece->is_f32 = true;
    piece->dimensions = target->dimensions;
    for (uint32_t i = 0; i < target->dimensions; i++)
        piece->shape[i] = target->shape[i];
    piece->data = data;
    piece->end = elements * sizeof(float);
}

static void add_user_state(struct checkpoint_pieces *pieces, uint32_t rank, uint8_t *data, uint32_t size)
{
    struct checkpoint_piece *piece = &pieces->items[pieces->count++];
    (void)snprintf(piece->name, sizeof piece->name, "user_state#%" PRIu32, rank);
    piece->dimensions = 1;
    piece->shape[0] = size;
    piece->data = data;
    piece->end = size;
}

int checkpoint_pieces_of(const struct ampd_checkpoint_target *targets, uint32_t count,
                         const struct ampd_checkpoint_state *state, struct checkpoint_pieces *pieces,
                         struct amp_error *error)
{
    AMP_ASSERT(count <= AMPD_PARAMETERS_MAX);
    /* Room for the user states too, which a reader finds later. */
    *pieces = (struct checkpoint_pieces){.items = calloc(3 * (size_t)count + AMPD_WORLD_MAX, sizeof *pieces->items)};
    if (pieces->items == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for a checkpoint's header");
    for (uint32_t i = 0; i < count; i++) {
        const struct ampd_checkpoint_target *target = &targets[i];
        uint64_t elements;
        if (!name_ok(target->name) || !checkpoint_shape_elements(target->dimensions, target->shape, &elements)) {
            free(pieces->items);
            return amp_error_set(error, AMP_EINVAL, "INVALID_TENSOR",
                                 "parameter \"%.100s\": a name or shape that a checkpoint cannot hold", target->name);
        }
        add_piece(pieces, target, elements, "", target->master);
        add_piece(pieces, target, elements, "#m", target->m);
        add_piece(pieces, target, elements, "#v", target->v);
    }
    for (uint32_t rank = 0; state != NULL && state->user_states != NULL && rank < state->world_size; rank++)
        if (state->user_states[rank].size > 0)
            add_user_state(pieces, rank, state->user_states[rank].data, state->user_states[rank].size);
    return 0;
}

static int compare_for_layout(const void *a, const void *b)
{
    const struct checkpoint_piece *left = a, *right = b;
    if (left->is_f32 != right->is_f32)
        return left->is_f32 ? -1 : 1;
    return strcmp(left->name, right->name);
}

void checkpoint_layout(struct checkpoint_pieces *pieces)
{
    qsort(pieces->items, pieces->count, sizeof *pieces->items, compare_for_layout);
    uint64_t at = 0;
    for (uint32_t i = 0; i < pieces->count; i++) {
        uint64_t size = pieces->items[i].end - pieces->items[i].begin;
        pieces->items[i].begin = at;
        at += size;
        pieces->items[i].end = at;
    }
}

/* ---- writing ---- */

static json_t *piece_to_json(const struct checkpoint_piece *piece)
{
    json_t *shape = json_array();
    for (uint32_t i = 0; i < piece->dimensions; i++)
        if (json_array_append_new(shape, json_integer((json_int_t)piece->shape[i])) != 0)
            break;
    if (json_array_size(shape) != piece->dimensions) {
        json_decref(shape);
        return NULL;
    }
    return json_pack("{s:s, s:o, s:[I,I]}", "dtype", piece->is_f32 ? "F32" : "U8", "shape", shape, "data_offsets",
                     (json_int_t)piece->begin, (json_int_t)piece->end);
}

/* The whole object but the hash of itself. NULL: out of memory, or a name that is not UTF-8 or given twice. */
static json_t *header_object(const struct checkpoint_pieces *pieces, const struct ampd_checkpoint_state *state)
{
    json_t *object = json_object(), *metadata = json_object();
    char format[16];
    (void)snprintf(format, sizeof format, FORMAT_PREFIX "%d", FORMAT_VERSION);
    int failed = json_object_set(object, METADATA, metadata) | set_string(metadata, "format", format) |
                 numbers_write(metadata, state);
    for (uint32_t i = 0; !failed && i < pieces->count; i++) {
        const struct checkpoint_piece *piece = &pieces->items[i];
        char key[CHECKPOINT_TENSOR_NAME_MAX + 8], hash[HASH_TEXT_MAX];
        (void)snprintf(key, sizeof key, "hash:%s", piece->name);
        hash_text(piece->hash, hash);
        if (json_object_get(object, piece->name) != NULL)
            failed = 1;
        else
            failed = json_object_set_new(object, piece->name, piece_to_json(piece)) | set_string(metadata, key, hash);
    }
    json_decref(metadata); /* the object holds it, if all went well */
    if (failed) {
        json_decref(object);
        return NULL;
    }
    return object;
}

/* Puts length and JSON, padded with spaces, into one allocation. */
static int frame_header(const char *json, uint8_t **header, size_t *size)
{
    size_t used = strlen(json);
    *size = (8 + used + CHECKPOINT_ALIGNMENT - 1) / CHECKPOINT_ALIGNMENT * CHECKPOINT_ALIGNMENT;
    *header = malloc(*size);
    if (*header == NULL)
        return AMP_ENOMEM;
    uint64_t length = *size - 8;
    memcpy(*header, &length, 8); /* little-endian */
    memcpy(*header + 8, json, used);
    memset(*header + 8 + used, ' ', *size - 8 - used);
    return 0;
}

int checkpoint_header_write(const struct checkpoint_pieces *pieces, const struct ampd_checkpoint_state *state,
                            uint8_t **header, size_t *size, struct amp_error *error)
{
    json_t *object = header_object(pieces, state);
    if (object == NULL)
        return amp_error_set(error, AMP_EINVAL, "INVALID_TENSOR",
                             "a parameter's name is not UTF-8 or given twice, or memory ran out");
    char hash[HASH_TEXT_MAX];
    char *json = NULL;
    int rc = hash_object(object, hash);
    if (rc == 0 && set_string(json_object_get(object, METADATA), "hash", hash) == 0)
        json = json_dumps(object, DUMP_FLAGS);
    rc = json != NULL ? frame_header(json, header, size) : AMP_ENOMEM;
    free(json);
    json_decref(object);
    if (rc == 0 && *size - 8 <= CHECKPOINT_HEADER_MAX)
        return 0;
    if (rc == 0)
        free(*header);
    return amp_error_set(error, rc == 0 ? AMP_EINVAL : rc, NULL,
                         "a checkpoint's header is too large or memory ran out");
}

/* ---- reading ---- */

static int damaged(struct amp_error *error, const char *what)
{
    return amp_error_set(error, AMP_EDATALOSS, "CHECKPOINT_DAMAGED", "%s", what);
}

static int check_format(const char *format, struct amp_error *error)
{
    uint64_t version;
    size_t prefix = strlen(FORMAT_PREFIX);
    if (format == NULL || strncmp(format, FORMAT_PREFIX, prefix) != 0 || !parse_number(format + prefix, &version))
        return damaged(error, "not a checkpoint of ampd");
    if (version > FORMAT_VERSION)
        return amp_error_set(error, AMP_EVERSION, "CHECKPOINT_NEWER",
                             "checkpoint format ampd/%" PRIu64 ", this ampd knows up to ampd/%d", version,
                             FORMAT_VERSION);
    return version == FORMAT_VERSION ? 0 : damaged(error, "not a checkpoint of ampd");
}

/* Compares the header's hash of itself; takes it out of the object. */
static int check_hash(const json_t *object, json_t *metadata, struct amp_error *error)
{
    char expected[HASH_TEXT_MAX] = "", found[HASH_TEXT_MAX];
    const char *text = json_string_value(json_object_get(metadata, "hash"));
    if (text == NULL || strlen(text) != HASH_TEXT_MAX - 1)
        return damaged(error, "the header has no hash");
    memcpy(expected, text, sizeof expected);
    (void)json_object_del(metadata, "hash"); /* it is there */
    if (hash_object(object, found) != 0)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory reading a checkpoint");
    return memcmp(expected, found, sizeof found) == 0 ? 0 : damaged(error, "the header's hash does not match");
}

static bool json_count(const json_t *value, uint64_t *count)
{
    json_int_t number = json_integer_value(value);
    *count = (uint64_t)number;
    return json_is_integer(value) && number >= 0;
}

/* Fills begin and end of a piece from its entry, which must have its type, shape and size. */
static bool piece_from_json(const json_t *entry, const json_t *metadata, struct checkpoint_piece *piece)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
    uint64_t size = piece->end, value;
    char key[CHECKPOINT_TENSOR_NAME_MAX + 8];
    if (dtype == NULL || strcmp(dtype, piece->is_f32 ? "F32" : "U8") != 0 || !json_is_array(shape) ||
        json_array_size(shape) != piece->dimensions || json_array_size(offsets) != 2)
        return false;
    for (uint32_t i = 0; i < piece->dimensions; i++)
        if (!json_count(json_array_get(shape, i), &value) || value != piece->shape[i])
            return false;
    if (!json_count(json_array_get(offsets, 0), &piece->begin) || !json_count(json_array_get(offsets, 1), &piece->end))
        return false;
    (void)snprintf(key, sizeof key, "hash:%s", piece->name);
    return piece->begin <= piece->end && piece->end - piece->begin == size &&
           hash_parse(json_string_value(json_object_get(metadata, key)), piece->hash);
}

/* Finds the user states of a file: allocates their memory and adds their pieces. */
static int find_user_states(const json_t *object, struct checkpoint_pieces *pieces, struct ampd_checkpoint_state *state,
                            struct amp_error *error)
{
    if (state->world_size == 0)
        return 0;
    state->user_states = calloc(state->world_size, sizeof *state->user_states);
    if (state->user_states == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory reading a checkpoint");
    for (uint32_t rank = 0; rank < state->world_size; rank++) {
        char name[32];
        (void)snprintf(name, sizeof name, "user_state#%" PRIu32, rank);
        const json_t *entry = json_object_get(object, name);
        uint64_t size;
        if (entry == NULL)
            continue;
        if (!json_count(json_array_get(json_object_get(entry, "shape"), 0), &size) || size == 0 ||
            size > AMPD_USER_STATE_MAX)
            return damaged(error, "a user state has no valid size");
        uint8_t *data = malloc(size);
        if (data == NULL)
            return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory reading a checkpoint");
        state->user_states[rank].data = data;
        state->user_states[rank].size = (uint32_t)size;
        add_user_state(pieces, rank, data, (uint32_t)size);
    }
    return 0;
}

static int compare_by_begin(const void *a, const void *b)
{
    const struct checkpoint_piece *left = a, *right = b;
    return left->begin < right->begin ? -1 : left->begin > right->begin;
}

static int read_object(json_t *object, uint64_t data_size, struct checkpoint_pieces *pieces,
                       struct ampd_checkpoint_state *state, struct amp_error *error)
{
    json_t *metadata = json_object_get(object, METADATA);
    int rc = check_format(json_string_value(json_object_get(metadata, "format")), error);
    if (rc == 0)
        rc = check_hash(object, metadata, error);
    if (rc == 0 && !numbers_read(metadata, state))
        rc = damaged(error, "the header's numbers make no sense");
    if (rc == 0)
        rc = find_user_states(object, pieces, state, error);
    if (rc != 0)
        return rc;
    if (json_object_size(object) != (size_t)pieces->count + 1)
        return damaged(error, "the file has other tensors than the model");
    for (uint32_t i = 0; i < pieces->count; i++)
        if (!piece_from_json(json_object_get(object, pieces->items[i].name), metadata, &pieces->items[i]))
            return amp_error_set(error, AMP_EDATALOSS, "CHECKPOINT_DAMAGED",
                                 "tensor \"%s\" is missing or has another type, shape or size", pieces->items[i].name);
    qsort(pieces->items, pieces->count, sizeof *pieces->items, compare_by_begin);
    uint64_t at = 0;
    for (uint32_t i = 0; i < pieces->count; at = pieces->items[i++].end)
        if (pieces->items[i].begin != at)
            return damaged(error, "tensors overlap or leave a hole");
    return at == data_size ? 0 : damaged(error, "the data is not as long as the header says");
}

int checkpoint_header_read(const char *json, size_t size, uint64_t data_size, struct checkpoint_pieces *pieces,
                           struct ampd_checkpoint_state *state, struct amp_error *error)
{
    memset(state, 0, sizeof *state);
    json_t *object = json_loadb(json, size, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(object) || !json_is_object(json_object_get(object, METADATA))) {
        json_decref(object);
        return damaged(error, "the header is not JSON of this format");
    }
    int rc = read_object(object, data_size, pieces, state, error);
    json_decref(object);
    if (rc != 0)
        ampd_checkpoint_state_clear(state);
    return rc;
}
