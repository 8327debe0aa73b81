/*
 * The header of a checkpoint file (checkpoint.h), and the layout of the data after it. Pure functions of memory: they
 * do no I/O, and may be called from any thread.
 *
 * Pieces are the tensors of one file: at most three for each parameter (values, m, v), and the user states. The order
 * of calls to write: checkpoint_pieces_of, checkpoint_layout, then the data and its hashes, checkpoint_header_write.
 */
#ifndef AMPD_CHECKPOINT_FORMAT_H
#define AMPD_CHECKPOINT_FORMAT_H

#include "storage/checkpoint.h"

#include <jansson.h>

/*
 * Bytes of a tensor's name in the file: the parameter's name, "#m" or "#v", and "@first:end" with up to 11 digits each;
 * or "user_state#" and a rank.
 */
#define CHECKPOINT_TENSOR_NAME_MAX (AMPD_NAME_MAX + 32)

#define CHECKPOINT_HEADER_MAX AMPD_CHECKPOINT_HEADER_MAX

/* Bytes. The data starts at a multiple of this in the file, so that the floats of a mapped file are aligned. */
#define CHECKPOINT_ALIGNMENT 64

#define CHECKPOINT_HASH_BYTES 16

enum checkpoint_kind { CHECKPOINT_MASTER, CHECKPOINT_M, CHECKPOINT_V, CHECKPOINT_USER_STATE };
#define CHECKPOINT_KINDS 3 /* the kinds of F32 tensors, all but CHECKPOINT_USER_STATE */

/*
 * One tensor of a file. When a file is written, checkpoint_layout sets begin and end, and the caller sets hash before
 * checkpoint_header_write. When one is read, checkpoint_header_read sets all members but data.
 */
struct checkpoint_piece {
    char name[CHECKPOINT_TENSOR_NAME_MAX];
    enum checkpoint_kind kind;
    uint32_t owner; /* index of the parameter in the array of tensors or targets; of a user state: its rank */
    uint32_t dimensions;
    uint64_t shape[AMPD_DIMENSIONS_MAX]; /* as in the file: of a part one dimension, its number of elements */
    uint64_t first;                      /* F32: the first element, counted in the parameter; else 0 */
    uint64_t elements;                   /* number of elements; of a user state: bytes */
    bool is_part;                        /* only a part of the parameter, so the name ends in "@first:end" */
    const void *data;                    /* borrowed, only read; NULL: the elements are given later */
    uint64_t begin, end;                 /* offsets in bytes from the start of the data */
    uint8_t hash[CHECKPOINT_HASH_BYTES]; /* XXH3-128, canonical byte order */
};

struct checkpoint_pieces {
    struct checkpoint_piece *items; /* owned */
    uint32_t count;
};

/*
 * The number of elements of a shape; 1 without dimensions. False: a dimension is 0, there are more than
 * AMPD_ELEMENTS_MAX elements, or more than AMPD_DIMENSIONS_MAX dimensions.
 */
bool checkpoint_shape_elements(uint32_t dimensions, const uint64_t *shape, uint64_t *elements);

/*
 * Makes the pieces of tensors and user states, in no particular order. Tensors without an element here and empty user
 * states have none. On success pieces->items is the caller's (free). AMP_EINVAL (INVALID_TENSOR): a name or shape that
 * a file cannot hold; AMP_ENOMEM. After an error nothing is to be freed.
 */
int checkpoint_pieces_of(const struct ampd_checkpoint_tensor *tensors, uint32_t count,
                         const struct ampd_checkpoint_state *state, struct checkpoint_pieces *pieces,
                         struct amp_error *error);

/* Sorts the pieces into the order of the file (F32 before user states, each by name) and sets begin and end of each. */
void checkpoint_layout(struct checkpoint_pieces *pieces);

/* The manifest of a file: an XXH3-128 over names, types, shapes and hashes of the pieces, which are in file order. */
void checkpoint_manifest(const struct checkpoint_pieces *pieces, uint8_t manifest[CHECKPOINT_HASH_BYTES]);

/*
 * Makes all bytes before the data: length, JSON and padding. Their number does not depend on the hashes, so that they
 * can be written last. `tensors` is the array given to checkpoint_pieces_of. On success *header is the caller's (free).
 * AMP_EINVAL: a name is not UTF-8 or given twice, or the header is larger than CHECKPOINT_HEADER_MAX; AMP_ENOMEM.
 */
int checkpoint_header_write(const struct checkpoint_pieces *pieces, const struct ampd_checkpoint_tensor *tensors,
                            const struct ampd_checkpoint_state *state, uint8_t **header, size_t *size,
                            struct amp_error *error);

/*
 * Checks format and hash of a header's JSON object, and removes the entry "hash" from it. AMP_EDATALOSS
 * (CHECKPOINT_DAMAGED, or AMPD_CHECKPOINT_FOREIGN: not ampd's), AMP_EVERSION (CHECKPOINT_NEWER), AMP_ENOMEM.
 */
int checkpoint_header_check(json_t *object, struct amp_error *error);

/* Fills the members of *state that the metadata has. False: one is missing or has an impossible value. */
bool checkpoint_numbers_read(const json_t *metadata, struct ampd_checkpoint_state *state);

/* Writes a shape as the metadata has it for a parameter in parts, "2,3". Room for 20 digits and a comma each. */
#define CHECKPOINT_SHAPE_TEXT_MAX (AMPD_DIMENSIONS_MAX * 21 + 1)
void checkpoint_shape_text(uint32_t dimensions, const uint64_t *shape, char text[CHECKPOINT_SHAPE_TEXT_MAX]);

/*
 * Reads and checks the JSON of a header; data_size is the number of bytes after it in the file. Every tensor must be a
 * user state or belong to one of `targets` (all parameters of the model) and have its shape, and the tensors must fill
 * the data without gaps. On success pieces->items, in the order of the file, is the caller's (free), and *state the
 * caller's (ampd_checkpoint_state_clear), with user_states allocated but still empty. AMP_EDATALOSS, AMP_EVERSION,
 * AMP_ENOMEM: nothing is to be freed, and *state is all zero.
 */
int checkpoint_header_read(const char *json, size_t size, uint64_t data_size,
                           const struct ampd_checkpoint_target *targets, uint32_t targets_count,
                           struct checkpoint_pieces *pieces, struct ampd_checkpoint_state *state,
                           struct amp_error *error);

#endif
