/*
 * The header of a checkpoint file, written and checked.
 *
 * safetensors (github.com/huggingface/safetensors, "Format"): a 64-bit little-endian length, a JSON object of that
 * length, the data. The object maps a tensor's name to {dtype, shape, data_offsets}, with offsets from the start of the
 * data; "__metadata__" maps strings to strings. The tensors neither overlap nor leave holes. The JSON may end in
 * spaces.
 *
 * The metadata of ampd: "format" is "ampd/1"; the numbers of the state as decimal text, the scale as the bits of its
 * fp32 and for people also as a decimal; "optimizer", the one whose moments the file has; "centered", 0 or 1, of
 * rmsprop; "shape:<parameter>" of parameters in parts; "hash:<tensor>" as 32 hex digits; "hash", the XXH3-128 of the
 * whole object without this entry, printed compactly and sorted. Keys are sorted, so that equal states give equal
 * bytes.
 */
#include "storage/checkpoint_format.h"
#include "storage/store.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/hex.h"
#include "storage/json_memory.h"

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
#define HASH           "hash"
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
    NUMBER_32("scale_bits", carry.scaler.scale),
    NUMBER_64("scale_id", carry.scaler.scale_id),
    NUMBER_32("growth_tracker", carry.scaler.growth_tracker),
    NUMBER_32("hysteresis_left", carry.scaler.hysteresis_left),
    NUMBER_32("consecutive_overflows", carry.scaler.consecutive_overflows),
    NUMBER_64("total_overflows", carry.scaler.total_overflows),
    NUMBER_64("steps_since_overflow", carry.scaler.steps_since_overflow),
    NUMBER_64("attempted", carry.scaler.attempted),
    NUMBER_64("applied", carry.scaler.applied),
    NUMBER_64("skipped", carry.scaler.skipped),
    NUMBER_32("world_size", world_size),
};

#define NUMBERS_COUNT (sizeof numbers / sizeof *numbers)

/* Reads a text of decimal digits only. False: it is NULL, empty or something else, or does not fit into 64 bits. */
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

/* UNSET: there is no name, or a name that this program does not know, from a newer ampd. */
static enum amp_optimizer read_optimizer(const json_t *metadata)
{
    const char *name = json_string_value(json_object_get(metadata, "optimizer"));
    for (int i = AMP_OPT_UNSET + 1; name != NULL && i < AMP_OPTIMIZERS; i++)
        if (strcmp(name, amp_optim_name((enum amp_optimizer)i)) == 0)
            return (enum amp_optimizer)i;
    return AMP_OPT_UNSET;
}

static enum ampd_centered read_centered(const json_t *metadata)
{
    uint64_t centered;
    if (!parse_number(json_string_value(json_object_get(metadata, "centered")), &centered))
        return AMPD_CENTERED_UNKNOWN;
    return centered != 0 ? AMPD_CENTERED : AMPD_CENTERED_NOT;
}

/*
 * The base learning rate that an operator has set, as the bits of its double. The entry is written only if one is set,
 * so that all other files have the same bytes as before this entry existed.
 */
#define LEARNING_RATE_BITS "learning_rate_bits"

/* Reads the learning rate, 0 if there is no entry. False: the entry has an impossible value. */
static bool read_learning_rate(const json_t *metadata, double *lr)
{
    const json_t *text = json_object_get(metadata, LEARNING_RATE_BITS);
    uint64_t bits;
    *lr = 0;
    if (text == NULL)
        return true;
    if (!parse_number(json_string_value(text), &bits))
        return false;
    memcpy(lr, &bits, sizeof bits);
    return isfinite(*lr) && *lr > 0;
}

bool checkpoint_numbers_read(const json_t *metadata, struct ampd_checkpoint_state *state)
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
    state->optimizer = read_optimizer(metadata);
    state->centered = read_centered(metadata);
    return read_learning_rate(metadata, &state->carry.lr) && isfinite(state->carry.scaler.scale) &&
           state->carry.scaler.scale > 0 && state->world_size <= AMPD_WORLD_MAX;
}

/* One entry of the metadata. */
struct entry {
    char key[CHECKPOINT_TENSOR_NAME_MAX + 8], text[CHECKPOINT_SHAPE_TEXT_MAX];
};

struct entries {
    struct entry *items; /* owned */
    uint32_t count;
};

/* Adds an entry, with an empty text if `text` is NULL. There is room for it. */
static void add(struct entries *entries, const char *prefix, const char *name, const char *text)
{
    struct entry *entry = &entries->items[entries->count++];
    (void)snprintf(entry->key, sizeof entry->key, "%s%s", prefix, name);
    (void)snprintf(entry->text, sizeof entry->text, "%s", text != NULL ? text : "");
}

/* "format", "scale", learning rate, optimizer and "centered". */
#define OTHERS_COUNT 5

static void add_numbers(struct entries *entries, const struct ampd_checkpoint_state *state)
{
    char text[32];
    for (size_t i = 0; i < NUMBERS_COUNT; i++) {
        const char *at = (const char *)state + numbers[i].offset;
        uint64_t value = 0;
        memcpy(&value, at, numbers[i].is_64 ? sizeof value : sizeof(uint32_t)); /* little-endian */
        (void)snprintf(text, sizeof text, "%" PRIu64, value);
        add(entries, "", numbers[i].key, text);
    }
    (void)snprintf(text, sizeof text, "%.9g", (double)state->carry.scaler.scale); /* for people; the bits count */
    add(entries, "", "scale", text);
    if (state->carry.lr != 0) {
        uint64_t bits;
        memcpy(&bits, &state->carry.lr, sizeof bits);
        (void)snprintf(text, sizeof text, "%" PRIu64, bits);
        add(entries, "", LEARNING_RATE_BITS, text);
    }
    if (state->optimizer != AMP_OPT_UNSET)
        add(entries, "", "optimizer", amp_optim_name(state->optimizer));
    if (state->centered != AMPD_CENTERED_UNKNOWN)
        add(entries, "", "centered", state->centered == AMPD_CENTERED ? "1" : "0");
}

/* ---- hashes ---- */

static void hash_json(const void *json, size_t size, char text[HASH_TEXT_MAX])
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(json, size));
    amp_hex_write(canonical.digest, CHECKPOINT_HASH_BYTES, text);
}

/* The hash of an object's JSON text, compact and sorted. 0 or AMP_ENOMEM. */
static int hash_object(const json_t *object, char text[HASH_TEXT_MAX])
{
    char *dump = json_dumps(object, DUMP_FLAGS);
    if (dump == NULL || ampd_json_no_memory()) { /* a dump that lacked memory may be cut */
        free(dump);
        return AMP_ENOMEM;
    }
    hash_json(dump, strlen(dump), text);
    free(dump);
    return 0;
}

void checkpoint_manifest(const struct checkpoint_pieces *pieces, uint8_t manifest[CHECKPOINT_HASH_BYTES])
{
    XXH128_hash_t hash = {0, 0};
    for (uint32_t i = 0; i < pieces->count; i++) {
        const struct checkpoint_piece *piece = &pieces->items[i];
        /*
         * Each tensor is hashed as one record of fixed size, unused bytes zero, that has the hash of those before it.
         */
        struct {
            char name[AMPD_NAME_MAX + 16]; /* without "@first:end", which the shape of a part carries */
            uint64_t shape[AMPD_DIMENSIONS_MAX];
            uint32_t dimensions, is_f32;
            uint8_t hash[CHECKPOINT_HASH_BYTES];
            uint8_t before[CHECKPOINT_HASH_BYTES];
        } record;
        XXH128_canonical_t canonical;
        memset(&record, 0, sizeof record);
        memcpy(record.name, piece->name, strcspn(piece->name, "@"));
        memcpy(record.shape, piece->shape, piece->dimensions * sizeof *piece->shape);
        if (piece->is_part) {
            record.shape[1] = piece->first;
            record.shape[2] = 1;
        }
        record.dimensions = piece->dimensions;
        record.is_f32 = piece->kind != CHECKPOINT_USER_STATE;
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

static void add_piece(struct checkpoint_pieces *pieces, const struct ampd_checkpoint_tensor *tensor, uint32_t owner,
                      enum checkpoint_kind kind, const float *data)
{
    static const char *const suffixes[CHECKPOINT_KINDS] = {"", "#m", "#v"};
    struct checkpoint_piece *piece = &pieces->items[pieces->count];
    uint64_t elements;
    (void)checkpoint_shape_elements(tensor->dimensions, tensor->shape, &elements); /* checked before */
    *piece = (struct checkpoint_piece){.kind = kind, .owner = owner, .elements = elements, .data = data};
    if (tensor->is_part) {
        piece->first = tensor->first;
        piece->elements = tensor->end - tensor->first;
    }
    if (piece->elements == 0)
        return; /* nothing of it is here */
    piece->is_part = piece->elements < elements;
    if (piece->is_part) {
        (void)snprintf(piece->name, sizeof piece->name, "%s%s@%" PRIu64 ":%" PRIu64, tensor->name, suffixes[kind],
                       tensor->first, tensor->end);
        piece->dimensions = 1;
        piece->shape[0] = piece->elements;
    } else {
        (void)snprintf(piece->name, sizeof piece->name, "%s%s", tensor->name, suffixes[kind]);
        piece->dimensions = tensor->dimensions;
        for (uint32_t i = 0; i < tensor->dimensions; i++)
            piece->shape[i] = tensor->shape[i];
    }
    piece->end = piece->elements * sizeof(float);
    pieces->count++;
}

static void add_user_state(struct checkpoint_pieces *pieces, uint32_t rank, const uint8_t *data, uint32_t size)
{
    struct checkpoint_piece *piece = &pieces->items[pieces->count++];
    *piece = (struct checkpoint_piece){.kind = CHECKPOINT_USER_STATE, .owner = rank, .dimensions = 1, .elements = size};
    (void)snprintf(piece->name, sizeof piece->name, "user_state#%" PRIu32, rank);
    piece->shape[0] = size;
    piece->data = data;
    piece->end = size;
}

static bool tensor_ok(const struct ampd_checkpoint_tensor *tensor)
{
    uint64_t elements;
    return name_ok(tensor->name) && checkpoint_shape_elements(tensor->dimensions, tensor->shape, &elements) &&
           (!tensor->is_part || (tensor->first <= tensor->end && tensor->end <= elements));
}

int checkpoint_pieces_of(const struct ampd_checkpoint_tensor *tensors, uint32_t count,
                         const struct ampd_checkpoint_state *state, struct checkpoint_pieces *pieces,
                         struct amp_error *error)
{
    AMP_ASSERT(count <= AMPD_PARAMETERS_MAX && state->world_size <= AMPD_WORLD_MAX);
    *pieces = (struct checkpoint_pieces){
        .items = calloc(CHECKPOINT_KINDS * (size_t)count + state->world_size + 1, sizeof *pieces->items)};
    if (pieces->items == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for a checkpoint's header");
    for (uint32_t i = 0; i < count; i++) {
        const struct ampd_checkpoint_tensor *tensor = &tensors[i];
        if (!tensor_ok(tensor)) {
            free(pieces->items);
            return amp_error_set(error, AMP_EINVAL, "INVALID_TENSOR",
                                 "parameter \"%.100s\": a name or shape that a checkpoint cannot hold", tensor->name);
        }
        add_piece(pieces, tensor, i, CHECKPOINT_MASTER, tensor->master);
        if (tensor->m != NULL)
            add_piece(pieces, tensor, i, CHECKPOINT_M, tensor->m);
        if (tensor->v != NULL)
            add_piece(pieces, tensor, i, CHECKPOINT_V, tensor->v);
    }
    for (uint32_t rank = 0; state->user_states != NULL && rank < state->world_size; rank++)
        if (state->user_states[rank].size > 0)
            add_user_state(pieces, rank, state->user_states[rank].data, state->user_states[rank].size);
    return 0;
}

static int compare_for_layout(const void *a, const void *b)
{
    const struct checkpoint_piece *left = a, *right = b;
    bool left_bytes = left->kind == CHECKPOINT_USER_STATE, right_bytes = right->kind == CHECKPOINT_USER_STATE;
    if (left_bytes != right_bytes)
        return left_bytes ? 1 : -1;
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

/*
 * The header's text is written here, not by jansson, for which the objects of 8,192 parameters with moments were a
 * second of work: steps wait for it. It is what jansson writes for the same object, since readers check the hash
 * against that.
 */
struct text {
    struct amp_buf buf;
    int rc; /* of the first call that failed; those after it do nothing */
};

static void put(struct text *out, const void *bytes, size_t size)
{
    if (out->rc == 0)
        out->rc = amp_buf_append(&out->buf, bytes, size);
}

static bool is_plain(const char *string)
{
    for (; *string != 0; string++)
        if (*string < ' ' || *string > '~' || *string == '"' || *string == '\\')
            return false;
    return true;
}

/* AMP_EINVAL: the string is not UTF-8. */
static void put_string(struct text *out, const char *string)
{
    if (is_plain(string)) {
        put(out, "\"", 1);
        put(out, string, strlen(string));
        put(out, "\"", 1);
        return;
    }
    json_t *value = json_string(string);
    char *quoted = value != NULL ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    if (out->rc == 0 && (quoted == NULL || ampd_json_no_memory()))
        out->rc = ampd_json_no_memory() ? AMP_ENOMEM : AMP_EINVAL;
    put(out, quoted, quoted != NULL ? strlen(quoted) : 0);
    free(quoted);
    json_decref(value);
}

void checkpoint_shape_text(uint32_t dimensions, const uint64_t *shape, char text[CHECKPOINT_SHAPE_TEXT_MAX])
{
    size_t used = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < dimensions; i++)
        used +=
            (size_t)snprintf(text + used, CHECKPOINT_SHAPE_TEXT_MAX - used, "%s%" PRIu64, i > 0 ? "," : "", shape[i]);
}

static void put_piece(struct text *out, const struct checkpoint_piece *piece)
{
    char shape[CHECKPOINT_SHAPE_TEXT_MAX], entry[CHECKPOINT_SHAPE_TEXT_MAX + 128];
    checkpoint_shape_text(piece->dimensions, piece->shape, shape);
    int size =
        snprintf(entry, sizeof entry, ":{\"data_offsets\":[%" PRIu64 ",%" PRIu64 "],\"dtype\":\"%s\",\"shape\":[%s]}",
                 piece->begin, piece->end, piece->kind != CHECKPOINT_USER_STATE ? "F32" : "U8", shape);
    put_string(out, piece->name);
    put(out, entry, (size_t)size);
}

static int compare_entries(const void *a, const void *b)
{
    const struct entry *left = a, *right = b;
    return strcmp(left->key, right->key);
}

/* Puts the object of the metadata, without "hash", whose place in the text is then *hash_at. */
static void put_metadata(struct text *out, struct entries *entries, size_t *hash_at)
{
    qsort(entries->items, entries->count, sizeof *entries->items, compare_entries);
    put_string(out, METADATA);
    put(out, ":{", 2);
    for (uint32_t i = 0; i < entries->count; i++) {
        if (i > 0)
            put(out, ",", 1);
        if (*hash_at == 0 && strcmp(entries->items[i].key, HASH) > 0)
            *hash_at = out->buf.size;
        put_string(out, entries->items[i].key);
        put(out, ":", 1);
        put_string(out, entries->items[i].text);
    }
    put(out, "}", 1);
}

static int compare_names(const void *a, const void *b)
{
    const struct checkpoint_piece *const *left = a, *const *right = b;
    return strcmp((*left)->name, (*right)->name);
}

/* Puts the whole object. AMP_EINVAL also if a name is there twice. */
static void put_object(struct text *out, const struct checkpoint_piece **by_name, uint32_t count,
                       struct entries *entries, size_t *hash_at)
{
    bool metadata = false;
    qsort(by_name, count, sizeof(const struct checkpoint_piece *), compare_names);
    put(out, "{", 1);
    for (uint32_t i = 0; i <= count; i++) {
        if (!metadata && (i == count || strcmp(by_name[i]->name, METADATA) > 0)) {
            metadata = true;
            put_metadata(out, entries, hash_at);
            put(out, ",", i < count ? 1 : 0);
        }
        if (i == count)
            break;
        if (i > 0 && out->rc == 0 && strcmp(by_name[i - 1]->name, by_name[i]->name) == 0)
            out->rc = AMP_EINVAL;
        put_piece(out, by_name[i]);
        put(out, ",", i + 1 < count || !metadata ? 1 : 0);
    }
    put(out, "}", 1);
}

static int make_object(const struct checkpoint_pieces *pieces, const struct ampd_checkpoint_tensor *tensors,
                       const struct ampd_checkpoint_state *state, struct text *out, size_t *hash_at)
{
    char text[CHECKPOINT_SHAPE_TEXT_MAX];
    struct entries entries = {
        .items = malloc((2 * (size_t)pieces->count + NUMBERS_COUNT + OTHERS_COUNT) * sizeof *entries.items)};
    const struct checkpoint_piece **by_name = malloc((pieces->count + (size_t)1) * sizeof *by_name);
    if (entries.items == NULL || by_name == NULL)
        out->rc = AMP_ENOMEM;
    for (uint32_t i = 0; out->rc == 0 && i < pieces->count; i++) {
        const struct checkpoint_piece *piece = by_name[i] = &pieces->items[i];
        amp_hex_write(piece->hash, CHECKPOINT_HASH_BYTES, text);
        add(&entries, HASH ":", piece->name, text);
        if (!piece->is_part || piece->kind != CHECKPOINT_MASTER)
            continue;
        const struct ampd_checkpoint_tensor *tensor = &tensors[piece->owner];
        checkpoint_shape_text(tensor->dimensions, tensor->shape, text);
        add(&entries, "shape:", tensor->name, text);
    }
    if (out->rc == 0) {
        (void)snprintf(text, sizeof text, FORMAT_PREFIX "%d", FORMAT_VERSION);
        add(&entries, "", "format", text);
        add_numbers(&entries, state);
        put_object(out, by_name, pieces->count, &entries, hash_at);
    }
    free(by_name);
    free(entries.items);
    return out->rc;
}

/* Puts the length and the JSON, with its hash and padded with spaces, into one allocation. */
static int frame_header(const struct amp_buf *json, size_t hash_at, uint8_t **header, size_t *size)
{
    AMP_ASSERT(hash_at > 0); /* some keys come after it */
    char hash[HASH_TEXT_MAX], entry[HASH_TEXT_MAX + 16];
    hash_json(json->data, json->size, hash);
    size_t added = (size_t)snprintf(entry, sizeof entry, "\"" HASH "\":\"%s\",", hash), used = json->size + added;
    *size = (8 + used + CHECKPOINT_ALIGNMENT - 1) / CHECKPOINT_ALIGNMENT * CHECKPOINT_ALIGNMENT;
    *header = malloc(*size);
    if (*header == NULL)
        return AMP_ENOMEM;
    uint64_t length = *size - 8;
    memcpy(*header, &length, 8); /* little-endian */
    memcpy(*header + 8, json->data, hash_at);
    memcpy(*header + 8 + hash_at, entry, added);
    memcpy(*header + 8 + hash_at + added, json->data + hash_at, json->size - hash_at);
    memset(*header + 8 + used, ' ', *size - 8 - used);
    return 0;
}

int checkpoint_header_write(const struct checkpoint_pieces *pieces, const struct ampd_checkpoint_tensor *tensors,
                            const struct ampd_checkpoint_state *state, uint8_t **header, size_t *size,
                            struct amp_error *error)
{
    struct text json = {.rc = 0};
    size_t hash_at = 0;
    ampd_json_begin();
    amp_buf_init(&json.buf, CHECKPOINT_HEADER_MAX);
    int rc = make_object(pieces, tensors, state, &json, &hash_at);
    if (rc == 0)
        rc = frame_header(&json.buf, hash_at, header, size);
    amp_buf_close(&json.buf);
    if (rc == 0 && *size - 8 > CHECKPOINT_HEADER_MAX) {
        free(*header);
        rc = AMP_EEXHAUSTED;
    }
    if (rc == 0)
        return 0;
    if (rc == AMP_ENOMEM)
        return amp_error_set(error, rc, NULL, "out of memory writing a checkpoint");
    return amp_error_set(error, AMP_EINVAL, "INVALID_TENSOR",
                         rc == AMP_EINVAL ? "a parameter's name is not UTF-8 or given twice"
                                          : "the names of the parameters make a checkpoint's header too large");
}

/* ---- checking ---- */

static int damaged(struct amp_error *error, const char *what)
{
    return amp_error_set(error, AMP_EDATALOSS, "CHECKPOINT_DAMAGED", "%s", what);
}

static int foreign(struct amp_error *error)
{
    return amp_error_set(error, AMP_EDATALOSS, AMPD_CHECKPOINT_FOREIGN, "not a checkpoint of ampd");
}

static int check_format(const char *format, struct amp_error *error)
{
    uint64_t version;
    size_t prefix = strlen(FORMAT_PREFIX);
    if (format == NULL || strncmp(format, FORMAT_PREFIX, prefix) != 0 || !parse_number(format + prefix, &version))
        return foreign(error);
    if (version > FORMAT_VERSION)
        return amp_error_set(error, AMP_EVERSION, "CHECKPOINT_NEWER",
                             "checkpoint format ampd/%" PRIu64 ", this ampd knows up to ampd/%d", version,
                             FORMAT_VERSION);
    return version == FORMAT_VERSION ? 0 : foreign(error);
}

int checkpoint_header_check(json_t *object, struct amp_error *error)
{
    json_t *metadata = json_object_get(object, METADATA);
    char expected[HASH_TEXT_MAX] = "", found[HASH_TEXT_MAX];
    int rc = check_format(json_string_value(json_object_get(metadata, "format")), error);
    if (rc != 0)
        return rc;
    const char *text = json_string_value(json_object_get(metadata, HASH));
    if (text == NULL || strlen(text) != HASH_TEXT_MAX - 1)
        return damaged(error, "the header has no hash");
    memcpy(expected, text, sizeof expected);
    (void)json_object_del(metadata, HASH); /* it is there */
    if (hash_object(object, found) != 0)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory reading a checkpoint");
    return memcmp(expected, found, sizeof found) == 0 ? 0 : damaged(error, "the header's hash does not match");
}
