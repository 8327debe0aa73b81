/* The header of a checkpoint file, and the pieces of data behind it: pure functions of memory. */
#ifndef AMPD_CHECKPOINT_FORMAT_H
#define AMPD_CHECKPOINT_FORMAT_H

#include "storage/checkpoint.h"

/* A tensor's name: a parameter's and "#m", or "user_state#" and a rank. */
#define CHECKPOINT_TENSOR_NAME_MAX (AMPD_NAME_MAX + 16)

/* Largest header read: 8,192 parameters with moments need 8 MiB with short names; the format itself allows 100 MB. */
#define CHECKPOINT_HEADER_MAX ((uint64_t)64 << 20)

/* The data starts at a multiple of this, so that a mapped file has aligned floats. */
#define CHECKPOINT_ALIGNMENT 64

#define CHECKPOINT_HASH_BYTES 16

/* One tensor of the file. To write: all but begin, end and hash are given. To read: data is where it goes. */
struct checkpoint_piece {
    char name[CHECKPOINT_TENSOR_NAME_MAX];
    bool is_f32; /* else U8 */
    uint32_t dimensions;
    uint64_t shape[AMPD_DIMENSIONS_MAX];
    void *data;                          /* borrowed; only read by a writer */
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
 * The pieces of targets (and of user states, when given), without order. A tensor to write is given as a target
 * whose memory is only read. On success the caller frees items with free(). AMP_EINVAL: a name or shape that a file
 * cannot hold; AMP_ENOMEM.
 */
int checkpoint_pieces_of(const struct ampd_checkpoint_target *targets, uint32_t count,
                         const struct ampd_checkpoint_state *state, struct checkpoint_pieces *pieces,
                         struct amp_error *error);

/* Sorts the pieces into the file's order and lays them out: fills begin and end. */
void checkpoint_layout(struct checkpoint_pieces *pieces);

/* XXH3-128 over names, types, shapes and hashes, in the file's order. */
void checkpoint_manifest(const struct checkpoint_pieces *pieces, uint8_t manifest[CHECKPOINT_HASH_BYTES]);

/*
 * Everything before the data: length, JSON and padding. On success *header is the caller's (free). AMP_ENOMEM;
 * AMP_EINVAL: a name that is not UTF-8 or given twice.
 */
int checkpoint_header_write(const struct checkpoint_pieces *pieces, const struct ampd_checkpoint_state *state,
                            uint8_t **header, size_t *size, struct amp_error *error);

/*
 * Reads the JSON of a header whose data has data_size bytes. Fills begin, end and hash of each piece (those of the targets)
 * and appends the pieces of user states, for which it allocates state->user_states. Every tensor of the file must be one
 * of them; all are checked to follow each other without holes; pieces are then in the file's order. AMP_EDATALOSS,
 * AMP_EVERSION, AMP_ENOMEM; *state is then empty.
 */
int checkpoint_header_read(const char *json, size_t size, uint64_t data_size, struct checkpoint_pieces *pieces,
                           struct ampd_checkpoint_state *state, struct amp_error *error);

#endif
