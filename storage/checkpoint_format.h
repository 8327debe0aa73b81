/* The header of a checkpoint file, and the pieces of data behind it: pure functions of memory. */
#ifndef AMPD_CHECKPOINT_FORMAT_H
#define AMPD_CHECKPOINT_FORMAT_H

#include "storage/checkpoint.h"

#include <jansson.h>

/* A tensor's name: a parameter's, "#m" and "@first:end" of up to 11 digits each, or "user_state#" and a rank. */
#define CHECKPOINT_TENSOR_NAME_MAX (AMPD_NAME_MAX + 32)

#define CHECKPOINT_HEADER_MAX AMPD_CHECKPOINT_HEADER_MAX

/* The data starts at a multiple of this, so that a mapped file has aligned floats. */
#define CHECKPOINT_ALIGNMENT 64

#define CHECKPOINT_HASH_BYTES 16

enum checkpoint_kind { CHECKPOINT_MASTER, CHECKPOINT_M, CHECKPOINT_V, CHECKPOINT_USER_STATE };
#define CHECKPOINT_KINDS 3 /* of F32 tensors */

/* One tensor of the file. To write: all but begin, end and hash are given. Read: all but data. */
struct checkpoint_piece {
    char name[CHECKPOINT_TENSOR_NAME_MAX];
    enum checkpoint_kind kind;
    uint32_t owner; /* index of its parameter in the array of tensors; user state: its rank */
    uint32_t dimensions;
    uint64_t shape[AMPD_DIMENSIONS_MAX];
    uint64_t first;                      /* F32: its first element, counted in the parameter, and how many */
    uint64_t elements;                   /* user state: bytes */
    bool is_part;                        /* "@first:end" */
    const void *data;                    /* borrowed; only read; NULL where the elements come later */
    uint64_t begin, end;                 /* bytes from the start of the data */
    uint8_t hash[CHECKPOINT_HASH_BYTES]; /* XXH3-128, canonical byte order */
};

struct checkpoint_pieces {
    struct checkpoint_piece *items; /* owned */
    uint32_t count;
};

/* Bytes of elements of a shape: false if they are more than AMPD_ELEMENTS_MAX or there are too many dimensions. */
bool checkpoint_shape_elements(uint32_t dimensions, const uint64_t *shape, uint64_t *elements);

/*
 * The pieces of tensors and of user states, without order. On success the caller frees items with free(). AMP_EINVAL: a
 * name or shape that a file cannot hold; AMP_ENOMEM.
 */
int checkpoint_pieces_of(const struct ampd_checkpoint_tensor *tensors, uint32_t count,
                         const struct ampd_checkpoint_state *state, struct checkpoint_pieces *pieces,
                         struct amp_error *error);

/* Sorts the pieces into the file's order and lays them out: fills begin and end. */
void checkpoint_layout(struct checkpoint_pieces *pieces);

/* XXH3-128 over names, types, shapes and hashes, in the file's order. */
void checkpoint_manifest(const struct checkpoint_pieces *pieces, uint8_t manifest[CHECKPOINT_HASH_BYTES]);

/*
 * Everything before the data: length, JSON and padding. Its size does not depend on the hashes. `tensors` as in
 * checkpoint_pieces_of. On success *header is the caller's (free). AMP_ENOMEM; AMP_EINVAL: a name that is not UTF-8 or
 * given twice.
 */
int checkpoint_header_write(const struct checkpoint_pieces *pieces, const struct ampd_checkpoint_tensor *tensors,
                            const struct ampd_checkpoint_state *state, uint8_t **header, size_t *size,
                            struct amp_error *error);

/* Compares the header's hash of itself with what it should be, and takes it out of the object. */
int checkpoint_header_check(json_t *object, struct amp_error *error);

/* The numbers of the state, out of the metadata. False: they make no sense. */
bool checkpoint_numbers_read(const json_t *metadata, struct ampd_checkpoint_state *state);

/* A hash as the metadata has it: 32 hex digits. */
bool checkpoint_hash_parse(const char *text, uint8_t hash[CHECKPOINT_HASH_BYTES]);

/* A text of the metadata: the shape of a parameter that is cut, as "2,3". Room for 20 digits and a comma each. */
#define CHECKPOINT_SHAPE_TEXT_MAX (AMPD_DIMENSIONS_MAX * 21 + 1)
void checkpoint_shape_text(uint32_t dimensions, const uint64_t *shape, char text[CHECKPOINT_SHAPE_TEXT_MAX]);

/*
 * Reads the JSON of a header whose data has data_size bytes. Every tensor must belong to one of `targets` (all
 * parameters of the model), with its shape, and they must follow each other without holes; *pieces are those, in the
 * file's order, the caller's (free). Allocates state->user_states without their data. AMP_EDATALOSS, AMP_EVERSION,
 * AMP_ENOMEM; nothing is the caller's then, and *state is empty.
 */
int checkpoint_header_read(const char *json, size_t size, uint64_t data_size,
                           const struct ampd_checkpoint_target *targets, uint32_t targets_count,
                           struct checkpoint_pieces *pieces, struct ampd_checkpoint_state *state,
                           struct amp_error *error);

#endif
