/* Writes a whole checkpoint file, and reads the parts of a checkpoint. checkpoint_format.c has the format. */
#include "storage/checkpoint.h"

#include "base/assert.h"
#include "storage/bulk_reader.h"
#include "storage/checkpoint_files.h"
#include "storage/checkpoint_format.h"
#include "storage/checkpoint_writer.h"
#include "storage/records_memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- writing ---- */

static int put_all(struct ampd_checkpoint_writer *writer, const struct ampd_checkpoint_tensor *tensors, uint32_t count,
                   const atomic_bool *cancel, struct amp_error *error)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct ampd_checkpoint_tensor *tensor = &tensors[i];
        uint64_t first = tensor->is_part ? tensor->first : 0, end = tensor->end;
        if (cancel != NULL && atomic_load(cancel))
            return amp_error_set(error, AMP_ECANCELLED, NULL, "writing a checkpoint was stopped");
        if (!tensor->is_part)
            (void)checkpoint_shape_elements(tensor->dimensions, tensor->shape, &end); /* the writer has checked it */
        int rc = first == end
                     ? 0
                     : ampd_checkpoint_put(writer, i, first, end - first, tensor->master, tensor->m, tensor->v, error);
        if (rc != 0)
            return rc;
    }
    return 0;
}

int ampd_checkpoint_write(const struct ampd_checkpoint_path *where, const struct ampd_checkpoint_tensor *tensors,
                          uint32_t tensors_count, const struct ampd_checkpoint_state *state, const atomic_bool *cancel,
                          struct ampd_checkpoint_record *record, struct amp_error *error)
{
    struct ampd_checkpoint_writer *writer;
    memset(record, 0, sizeof *record);
    int rc = ampd_checkpoint_begin(where, tensors, tensors_count, state, &writer, error);
    if (rc != 0)
        return rc;
    rc = put_all(writer, tensors, tensors_count, cancel, error);
    if (rc == 0)
        rc = ampd_checkpoint_end(writer, record, error);
    if (rc != 0)
        ampd_checkpoint_abandon(writer);
    return rc;
}

/* ---- reading ---- */

/* A checkpoint that is being read. */
struct reading {
    const struct ampd_checkpoint_target *targets;
    uint32_t targets_count;
    struct ampd_checkpoint_state *state; /* of the first part; the others must agree with it */
    struct range *ranges;                /* the elements that were read into targets; owned */
    size_t ranges_count, ranges_room;
    struct bulk_reader *file; /* the part that is read now */
    uint64_t data_at;         /* offset in bytes at which its data begins */
};

/* The elements [first, end) of one kind of a target, counted in the parameter. */
struct range {
    uint32_t owner;
    enum checkpoint_kind kind;
    uint64_t first, end;
};

/* The memory for the bytes [begin, end) of a piece; its other bytes are not wanted. */
struct destination {
    uint8_t *memory;
    uint64_t begin, end;
};

static int damaged(struct amp_error *error, const char *what)
{
    return amp_error_set(error, AMP_EDATALOSS, "CHECKPOINT_DAMAGED", "%s", what);
}

static int out_of_memory(struct amp_error *error)
{
    return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory reading a checkpoint");
}

static int read_all(struct bulk_reader *file, void *to, uint64_t size, uint64_t offset, struct amp_error *error)
{
    const uint8_t *data;
    for (uint64_t at = 0, got; at < size; at += got) {
        int rc = bulk_reader_get(file, offset + at, size - at, &data, &got, error);
        if (rc != 0)
            return rc;
        memcpy((uint8_t *)to + at, data, got);
    }
    return 0;
}

/* Reads the length at the start of the file and the JSON after it; *json is the caller's (free). */
static int read_header(struct bulk_reader *file, char **json, uint64_t *size, struct amp_error *error)
{
    uint64_t file_size = bulk_reader_size(file);
    if (file_size < 8)
        return damaged(error, "the file is shorter than a header");
    int rc = read_all(file, size, sizeof *size, 0, error); /* little-endian */
    if (rc != 0)
        return rc;
    if (*size < 2 || *size > file_size - 8 || *size > CHECKPOINT_HEADER_MAX)
        return damaged(error, "the header's length is invalid");
    *json = malloc(*size);
    if (*json == NULL)
        return out_of_memory(error);
    rc = read_all(file, *json, *size, 8, error);
    if (rc != 0)
        free(*json);
    return rc;
}

/* The memory for an element of a kind; `element` counts in the parameter. */
static float *memory_of(const struct ampd_checkpoint_target *target, enum checkpoint_kind kind, uint64_t element)
{
    float *base = kind == CHECKPOINT_MASTER ? target->master : kind == CHECKPOINT_M ? target->m : target->v;
    return base + (element - (target->is_part ? target->first : 0));
}

static struct range wanted_of(const struct ampd_checkpoint_target *target, const struct checkpoint_piece *piece)
{
    struct range range = {piece->owner, piece->kind, piece->first, piece->first + piece->elements};
    if (target->is_part && range.first < target->first)
        range.first = target->first;
    if (target->is_part && range.end > target->end)
        range.end = target->end;
    return range;
}

/* Reads a piece in parts and hashes all of it; the wanted bytes are copied to their memory. */
static int read_piece(const struct reading *reading, const struct checkpoint_piece *piece, const struct destination *to,
                      XXH3_state_t *hash, struct amp_error *error)
{
    const uint8_t *data;
    uint64_t size = piece->end - piece->begin;
    for (uint64_t at = 0, got; at < size; at += got) {
        int rc = bulk_reader_get(reading->file, reading->data_at + piece->begin + at, size - at, &data, &got, error);
        if (rc != 0)
            return rc;
        (void)XXH3_128bits_update(hash, data, got);
        uint64_t from = at > to->begin ? at : to->begin, until = at + got < to->end ? at + got : to->end;
        if (from < until)
            memcpy(to->memory + (from - to->begin), data + (from - at), until - from);
    }
    return 0;
}

static int verify_piece(const struct reading *reading, const struct checkpoint_piece *piece,
                        const struct destination *to, struct amp_error *error)
{
    XXH3_state_t *hash = XXH3_createState();
    if (hash == NULL)
        return out_of_memory(error);
    (void)XXH3_128bits_reset(hash); /* fails only on NULL */
    int rc = read_piece(reading, piece, to, hash, error);
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(hash));
    (void)XXH3_freeState(hash); /* always XXH_OK */
    if (rc == 0 && memcmp(canonical.digest, piece->hash, sizeof piece->hash) != 0)
        rc = amp_error_set(error, AMP_EDATALOSS, "CHECKPOINT_DAMAGED", "the hash of tensor \"%s\" does not match",
                           piece->name);
    return rc;
}

static int read_user_state(struct reading *reading, const struct checkpoint_piece *piece, struct amp_error *error)
{
    uint8_t *data = malloc(piece->elements);
    if (data == NULL)
        return out_of_memory(error);
    const struct destination to = {data, 0, piece->end - piece->begin};
    int rc = verify_piece(reading, piece, &to, error);
    if (rc != 0 || reading->state->user_states[piece->owner].data != NULL) {
        free(data); /* every part has them; the first one's counts */
        return rc;
    }
    reading->state->user_states[piece->owner].data = data;
    reading->state->user_states[piece->owner].size = (uint32_t)piece->elements;
    return 0;
}

static int read_tensor(struct reading *reading, const struct checkpoint_piece *piece, struct amp_error *error)
{
    const struct ampd_checkpoint_target *target = &reading->targets[piece->owner];
    struct range wanted = wanted_of(target, piece);
    if (wanted.first >= wanted.end)
        return 0; /* another shard's */
    if (reading->ranges_count == reading->ranges_room) {
        size_t room = reading->ranges_room * 2 + 64;
        void *grown = realloc(reading->ranges, room * sizeof *reading->ranges);
        if (grown == NULL)
            return out_of_memory(error);
        reading->ranges = grown;
        reading->ranges_room = room;
    }
    reading->ranges[reading->ranges_count++] = wanted;
    const struct destination to = {(uint8_t *)memory_of(target, piece->kind, wanted.first),
                                   (wanted.first - piece->first) * sizeof(float),
                                   (wanted.end - piece->first) * sizeof(float)};
    return verify_piece(reading, piece, &to, error);
}

/* Whether two parts have the same state, user states not compared: only then they are of one checkpoint. */
static bool same_state(const struct ampd_checkpoint_state *a, const struct ampd_checkpoint_state *b)
{
    const struct amp_scaler_state *left = &a->carry.scaler, *right = &b->carry.scaler;
    return a->step == b->step && a->version == b->version && a->world_size == b->world_size &&
           memcmp(&left->scale, &right->scale, sizeof left->scale) == 0 && left->scale_id == right->scale_id &&
           left->attempted == right->attempted && left->applied == right->applied && left->skipped == right->skipped &&
           memcmp(&a->carry.lr, &b->carry.lr, sizeof a->carry.lr) == 0;
}

static int take_state(struct reading *reading, bool first, struct ampd_checkpoint_state *state, struct amp_error *error)
{
    if (first) {
        *reading->state = *state;
        return 0;
    }
    bool same = same_state(reading->state, state);
    ampd_checkpoint_state_clear(state);
    return same ? 0 : damaged(error, "the part is of another step or state than the others");
}

static int read_file(struct reading *reading, const struct ampd_checkpoint_part *part, bool first,
                     struct amp_error *error)
{
    char *json;
    uint64_t header_size;
    int rc = read_header(reading->file, &json, &header_size, error);
    if (rc != 0)
        return rc;
    struct checkpoint_pieces pieces;
    struct ampd_checkpoint_state state;
    rc = checkpoint_header_read(json, header_size, bulk_reader_size(reading->file) - 8 - header_size, reading->targets,
                                reading->targets_count, &pieces, &state, error);
    free(json);
    if (rc != 0)
        return rc;
    reading->data_at = 8 + header_size;
    rc = take_state(reading, first, &state, error);
    uint8_t found[CHECKPOINT_HASH_BYTES];
    checkpoint_manifest(&pieces, found);
    if (rc == 0 && part->manifest != NULL && memcmp(part->manifest, found, sizeof found) != 0)
        rc = damaged(error, "the file is not the one that the catalogue names");
    for (uint32_t i = 0; rc == 0 && i < pieces.count; i++) {
        const struct checkpoint_piece *piece = &pieces.items[i];
        rc = piece->kind == CHECKPOINT_USER_STATE ? read_user_state(reading, piece, error)
                                                  : read_tensor(reading, piece, error);
    }
    free(pieces.items);
    return rc;
}

static int read_part(struct reading *reading, const struct ampd_checkpoint_part *part, bool first,
                     struct amp_error *error)
{
    char path[CHECKPOINT_PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", part->data_dir, part->file) >= sizeof path)
        return amp_error_set(error, AMP_EINVAL, NULL, "the data directory's path is too long");
    int rc = bulk_reader_open(path, &reading->file, error);
    if (rc != 0)
        return rc;
    rc = read_file(reading, part, first, error);
    bulk_reader_close(reading->file);
    if (rc != 0)
        amp_error_wrap(error, "checkpoint %s", part->file);
    return rc;
}

static int compare_ranges(const void *a, const void *b)
{
    const struct range *left = a, *right = b;
    if (left->owner != right->owner)
        return left->owner < right->owner ? -1 : 1;
    if (left->kind != right->kind)
        return left->kind < right->kind ? -1 : 1;
    return left->first < right->first ? -1 : left->first > right->first;
}

/* Checks that every wanted element was read exactly once. */
static int check_whole(struct reading *reading, struct amp_error *error)
{
    if (reading->ranges_count > 0)
        qsort(reading->ranges, reading->ranges_count, sizeof *reading->ranges, compare_ranges);
    size_t next = 0;
    for (uint32_t i = 0; i < reading->targets_count; i++) {
        const struct ampd_checkpoint_target *target = &reading->targets[i];
        const float *const memory[CHECKPOINT_KINDS] = {target->master, target->m, target->v};
        for (unsigned k = 0; k < CHECKPOINT_KINDS; k++) {
            uint64_t at = target->is_part ? target->first : 0, end = target->end;
            if (!target->is_part && !checkpoint_shape_elements(target->dimensions, target->shape, &end))
                return amp_error_set(error, AMP_EINVAL, NULL, "tensor \"%s\" has no valid shape", target->name);
            if (memory[k] == NULL)
                continue;
            for (; next < reading->ranges_count && reading->ranges[next].owner == i && reading->ranges[next].kind == k;
                 next++) {
                if (reading->ranges[next].first != at)
                    break;
                at = reading->ranges[next].end;
            }
            if (at != end)
                return amp_error_set(error, AMP_EDATALOSS, "CHECKPOINT_DAMAGED",
                                     "tensor \"%s\" is not whole: element %" PRIu64
                                     " of its %s is missing, or there twice",
                                     target->name, at,
                                     k == 0   ? "values"
                                     : k == 1 ? "first moment"
                                              : "second moment");
        }
    }
    return next == reading->ranges_count ? 0 : damaged(error, "elements of a tensor are there twice");
}

int ampd_checkpoint_read_parts(const struct ampd_checkpoint_part *parts, uint32_t parts_count,
                               const struct ampd_checkpoint_target *targets, uint32_t targets_count,
                               struct ampd_checkpoint_state *state, struct amp_error *error)
{
    memset(state, 0, sizeof *state);
    struct reading reading = {.targets = targets, .targets_count = targets_count, .state = state};
    int rc = parts_count > 0 ? 0 : amp_error_set(error, AMP_EINVAL, NULL, "a checkpoint has at least one part");
    for (uint32_t i = 0; rc == 0 && i < parts_count; i++)
        rc = read_part(&reading, &parts[i], i == 0, error);
    if (rc == 0 && (rc = check_whole(&reading, error)) != 0)
        amp_error_wrap(error, "checkpoint %s", parts[0].file);
    free(reading.ranges);
    if (rc != 0)
        ampd_checkpoint_state_clear(state);
    return rc;
}

int ampd_checkpoint_read(const char *data_dir, const char *file, const uint8_t manifest[16],
                         const struct ampd_checkpoint_target *targets, uint32_t targets_count,
                         struct ampd_checkpoint_state *state, struct amp_error *error)
{
    const struct ampd_checkpoint_part part = {data_dir, file, manifest};
    return ampd_checkpoint_read_parts(&part, 1, targets, targets_count, state, error);
}
