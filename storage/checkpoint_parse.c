/*
 * Reads the header of a checkpoint file: which tensors the file has, checked against the parameters of the model. What
 * the header says is accepted only if it agrees with these, with the length of the file, and with the header's own
 * hash.
 */
#include "storage/checkpoint_format.h"

#include "base/hex.h"
#include "storage/json_memory.h"
#include "storage/records_memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METADATA "__metadata__"

static int damaged(struct amp_error *error, const char *what)
{
    return amp_error_set(error, AMP_EDATALOSS, "CHECKPOINT_DAMAGED", "%s", what);
}

/* ---- which parameter a name is of ---- */

/* The targets sorted by name, for look-ups. */
struct names {
    const struct ampd_checkpoint_target *targets;
    const struct ampd_checkpoint_target **sorted; /* owned */
    uint32_t count;
};

static int compare_targets(const void *a, const void *b)
{
    const struct ampd_checkpoint_target *const *left = a, *const *right = b;
    return strcmp((*left)->name, (*right)->name);
}

static int names_open(struct names *names, const struct ampd_checkpoint_target *targets, uint32_t count)
{
    *names = (struct names){.targets = targets, .count = count};
    names->sorted = malloc((count + (size_t)1) * sizeof *names->sorted);
    if (names->sorted == NULL)
        return AMP_ENOMEM;
    for (uint32_t i = 0; i < count; i++)
        names->sorted[i] = &targets[i];
    qsort(names->sorted, count, sizeof *names->sorted, compare_targets);
    return 0;
}

static const struct ampd_checkpoint_target *names_find(const struct names *names, const char *name)
{
    const struct ampd_checkpoint_target wanted = {.name = name}, *key = &wanted;
    const struct ampd_checkpoint_target **found =
        names->count == 0 ? NULL : bsearch(&key, names->sorted, names->count, sizeof *names->sorted, compare_targets);
    return found == NULL ? NULL : *found;
}

/* Reads 1 to 19 digits, which fit into 64 bits, and moves *text behind them. False: there are none, or more. */
static bool take_number(const char **text, uint64_t *value)
{
    size_t digits = strspn(*text, "0123456789");
    *value = digits == 0 || digits > 19 ? 0 : strtoull(*text, NULL, 10);
    *text += digits;
    return digits > 0 && digits <= 19;
}

/*
 * Parses the name of a tensor: "user_state#<rank>", or a parameter's with "#m" or "#v" and "@<first>:<end>". False: it
 * is neither, or belongs to no target.
 */
static bool take_name(const struct names *names, const char *name, struct checkpoint_piece *piece)
{
    static const char user_state[] = "user_state#";
    char base[AMPD_NAME_MAX];
    size_t size = strcspn(name, "#@");
    const char *rest = name + size;
    uint64_t number;
    const char *rank = name + strlen(user_state);
    if (strncmp(name, user_state, strlen(user_state)) == 0 && take_number(&rank, &number)) {
        piece->kind = CHECKPOINT_USER_STATE;
        piece->owner = (uint32_t)number;
        return *rank == 0 && number < AMPD_WORLD_MAX;
    }
    if (size >= sizeof base || strlen(name) >= sizeof piece->name)
        return false;
    memcpy(base, name, size);
    base[size] = 0;
    const struct ampd_checkpoint_target *target = names_find(names, base);
    if (target == NULL)
        return false;
    piece->owner = (uint32_t)(target - names->targets);
    piece->kind = CHECKPOINT_MASTER;
    if (strncmp(rest, "#m", 2) == 0 || strncmp(rest, "#v", 2) == 0) {
        piece->kind = rest[1] == 'm' ? CHECKPOINT_M : CHECKPOINT_V;
        rest += 2;
    }
    bool wanted =
        piece->kind == CHECKPOINT_MASTER || (piece->kind == CHECKPOINT_M ? target->m != NULL : target->v != NULL);
    piece->is_part = *rest == '@';
    if (!piece->is_part)
        return wanted && *rest == 0;
    rest++;
    uint64_t end = 0;
    bool whole = take_number(&rest, &piece->first) && *rest++ == ':' && take_number(&rest, &end) && *rest == 0;
    piece->elements = end - piece->first;
    return wanted && whole && piece->first < end;
}

/* ---- one tensor ---- */

static bool json_count(const json_t *value, uint64_t *count)
{
    json_int_t number = json_integer_value(value);
    *count = (uint64_t)number;
    return json_is_integer(value) && number >= 0;
}

/* Fills the piece's shape. False: it is not that of the parameter, or of the part that the name states. */
static bool take_shape(const json_t *shape, const json_t *metadata, const struct names *names,
                       struct checkpoint_piece *piece)
{
    const struct ampd_checkpoint_target *target = &names->targets[piece->owner];
    bool is_bytes = piece->kind == CHECKPOINT_USER_STATE;
    uint64_t elements = 0;
    piece->dimensions = (uint32_t)json_array_size(shape);
    if (!json_is_array(shape) || json_array_size(shape) > AMPD_DIMENSIONS_MAX)
        return false;
    for (uint32_t i = 0; i < piece->dimensions; i++)
        if (!json_count(json_array_get(shape, i), &piece->shape[i]))
            return false;
    if (is_bytes) {
        piece->elements = piece->shape[0];
        return piece->dimensions == 1 && piece->elements > 0 && piece->elements <= AMPD_USER_STATE_MAX;
    }
    if (!checkpoint_shape_elements(target->dimensions, target->shape, &elements))
        return false;
    if (!piece->is_part) {
        piece->elements = elements;
        return piece->dimensions == target->dimensions &&
               (piece->dimensions == 0 || /* a scalar: the shape may be NULL, which memcmp must not get */
                memcmp(piece->shape, target->shape, piece->dimensions * sizeof *piece->shape) == 0);
    }
    char key[AMPD_NAME_MAX + 8], text[CHECKPOINT_SHAPE_TEXT_MAX];
    (void)snprintf(key, sizeof key, "shape:%s", target->name);
    checkpoint_shape_text(target->dimensions, target->shape, text);
    const char *found = json_string_value(json_object_get(metadata, key));
    return found != NULL && strcmp(found, text) == 0 && piece->dimensions == 1 && piece->shape[0] == piece->elements &&
           piece->first + piece->elements <= elements;
}

/* Fills a piece from its entry in the header: shape, offsets and hash. False: one is missing or wrong. */
static bool take_piece(const json_t *entry, const json_t *metadata, const struct names *names,
                       struct checkpoint_piece *piece)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    bool is_bytes = piece->kind == CHECKPOINT_USER_STATE;
    char key[CHECKPOINT_TENSOR_NAME_MAX + 8];
    if (dtype == NULL || strcmp(dtype, is_bytes ? "U8" : "F32") != 0 || json_array_size(offsets) != 2 ||
        !take_shape(json_object_get(entry, "shape"), metadata, names, piece))
        return false;
    if (!json_count(json_array_get(offsets, 0), &piece->begin) || !json_count(json_array_get(offsets, 1), &piece->end))
        return false;
    (void)snprintf(key, sizeof key, "hash:%s", piece->name);
    const char *hash = json_string_value(json_object_get(metadata, key));
    return hash != NULL && piece->begin <= piece->end &&
           piece->end - piece->begin == piece->elements * (is_bytes ? 1 : sizeof(float)) &&
           amp_hex_parse(hash, piece->hash, sizeof piece->hash);
}

/* ---- the whole header ---- */

static int compare_by_begin(const void *a, const void *b)
{
    const struct checkpoint_piece *left = a, *right = b;
    return left->begin < right->begin ? -1 : left->begin > right->begin;
}

static int take_pieces(json_t *object, uint64_t data_size, const struct names *names, struct checkpoint_pieces *pieces,
                       struct amp_error *error)
{
    const json_t *metadata = json_object_get(object, METADATA);
    const char *name;
    json_t *entry;
    json_object_foreach(object, name, entry)
    {
        if (strcmp(name, METADATA) == 0)
            continue;
        struct checkpoint_piece *piece = &pieces->items[pieces->count++];
        if (!take_name(names, name, piece))
            return amp_error_set(error, AMP_EDATALOSS, "CHECKPOINT_DAMAGED",
                                 "tensor \"%.150s\" does not belong to the model; the file has %s", name,
                                 strchr(name, '#') != NULL ? "the moments of another optimizer, or of other arguments "
                                                             "of it: create the model with those of the file"
                                                           : "other tensors");
        (void)snprintf(piece->name, sizeof piece->name, "%s", name);
        if (!take_piece(entry, metadata, names, piece))
            return amp_error_set(error, AMP_EDATALOSS, "CHECKPOINT_DAMAGED",
                                 "tensor \"%.150s\" has another type, shape, size or no hash", name);
    }
    qsort(pieces->items, pieces->count, sizeof *pieces->items, compare_by_begin);
    uint64_t at = 0;
    for (uint32_t i = 0; i < pieces->count; at = pieces->items[i++].end)
        if (pieces->items[i].begin != at)
            return damaged(error, "tensors overlap or leave a hole");
    return at == data_size ? 0 : damaged(error, "the data is not as long as the header says");
}

static int read_object(json_t *object, uint64_t data_size, const struct names *names, struct checkpoint_pieces *pieces,
                       struct ampd_checkpoint_state *state, struct amp_error *error)
{
    int rc = checkpoint_header_check(object, error);
    if (rc == 0 && !checkpoint_numbers_read(json_object_get(object, METADATA), state))
        rc = damaged(error, "the header's numbers make no sense");
    if (rc != 0)
        return rc;
    pieces->items = calloc(json_object_size(object) + 1, sizeof *pieces->items);
    if (state->world_size > 0)
        state->user_states = calloc(state->world_size, sizeof *state->user_states);
    if (pieces->items == NULL || (state->world_size > 0 && state->user_states == NULL))
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory reading a checkpoint");
    rc = take_pieces(object, data_size, names, pieces, error);
    for (uint32_t i = 0; rc == 0 && i < pieces->count; i++)
        if (pieces->items[i].kind == CHECKPOINT_USER_STATE && pieces->items[i].owner >= state->world_size)
            rc = damaged(error, "a user state is of a rank that the model does not have");
    return rc;
}

int checkpoint_header_read(const char *json, size_t size, uint64_t data_size,
                           const struct ampd_checkpoint_target *targets, uint32_t targets_count,
                           struct checkpoint_pieces *pieces, struct ampd_checkpoint_state *state,
                           struct amp_error *error)
{
    struct names names;
    memset(state, 0, sizeof *state);
    *pieces = (struct checkpoint_pieces){0};
    json_t *object = ampd_json_read(json, size);
    if (object == NULL && ampd_json_no_memory())
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory reading a checkpoint");
    if (!json_is_object(object)) {
        json_decref(object);
        return damaged(error, "the header is not JSON of this format");
    }
    int rc = names_open(&names, targets, targets_count) != 0
                 ? amp_error_set(error, AMP_ENOMEM, NULL, "out of memory reading a checkpoint")
                 : read_object(object, data_size, &names, pieces, state, error);
    free(names.sorted);
    json_decref(object);
    if (rc != 0) {
        free(pieces->items);
        *pieces = (struct checkpoint_pieces){0};
        ampd_checkpoint_state_clear(state);
    }
    return rc;
}
