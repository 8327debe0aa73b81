/*
 * Writes checkpoint files. Names and shapes give the place of every tensor in the file before any element is known, so
 * that elements are written to their place as they are given. Hashes are computed on the way, and the header, whose
 * size does not depend on them, is written last. No byte is read twice, and no tensor is kept in memory.
 */
#include "base/assert.h"
#include "base/failpoint.h"
#include "storage/bulk_writer.h"
#include "storage/checkpoint_writer.h"
#include "storage/checkpoint_files.h"
#include "storage/checkpoint_format.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define NO_PIECE UINT32_MAX

/* Bytes that are hashed and copied at a time: few enough to stay in the processor's cache between the two. */
#define CHUNK_BYTES ((uint64_t)256 << 10)

struct ampd_checkpoint_writer {
    struct bulk_writer *out;
    struct stat status;   /* of the temporary file when it was created; zero before */
    bool synced, renamed; /* the steps that are done after that */
    struct checkpoint_pieces pieces;
    const struct ampd_checkpoint_state *state;
    struct ampd_checkpoint_tensor *tensors; /* owned copy, for names and shapes */
    uint32_t tensors_count;
    uint32_t (*of)[CHECKPOINT_KINDS]; /* [tensors_count] index of the tensor's piece of each kind, or NO_PIECE; owned */
    uint64_t header_size;             /* bytes */
    uint32_t tensor;                  /* the tensor of the last put */
    uint64_t next;                    /* its next element, counted in the parameter */
    uint64_t taken[CHECKPOINT_KINDS]; /* bytes that a put has taken before it failed; its repetition goes on there */
    XXH3_state_t *hashes[CHECKPOINT_KINDS]; /* of the tensor's elements so far */
    uint64_t tail;                          /* bytes of user states and header that are taken */
    char path[CHECKPOINT_PATH_MAX], temporary[CHECKPOINT_PATH_MAX];
    char data_dir[CHECKPOINT_PATH_MAX], file[sizeof((struct ampd_checkpoint_record *)NULL)->file];
};

static int out_of_memory(struct amp_error *error)
{
    return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory writing a checkpoint");
}

/* ---- begin ---- */

/* Fills writer->of. Called after checkpoint_layout, which sorts the pieces. */
static int index_pieces(struct ampd_checkpoint_writer *writer)
{
    writer->of = malloc((writer->tensors_count + (size_t)1) * sizeof *writer->of);
    if (writer->of == NULL)
        return AMP_ENOMEM;
    for (uint32_t i = 0; i < writer->tensors_count; i++)
        for (unsigned k = 0; k < CHECKPOINT_KINDS; k++)
            writer->of[i][k] = NO_PIECE;
    for (uint32_t p = 0; p < writer->pieces.count; p++) {
        const struct checkpoint_piece *piece = &writer->pieces.items[p];
        if (piece->kind != CHECKPOINT_USER_STATE)
            writer->of[piece->owner][piece->kind] = p;
    }
    return 0;
}

static int lay_out(struct ampd_checkpoint_writer *writer, const struct ampd_checkpoint_tensor *tensors, uint32_t count,
                   struct amp_error *error)
{
    writer->tensors = malloc((count + (size_t)1) * sizeof *writer->tensors);
    if (writer->tensors == NULL)
        return out_of_memory(error);
    if (count > 0)
        memcpy(writer->tensors, tensors, count * sizeof *tensors);
    writer->tensors_count = count;
    int rc = checkpoint_pieces_of(tensors, count, writer->state, &writer->pieces, error);
    if (rc != 0) {
        writer->pieces = (struct checkpoint_pieces){0};
        return rc;
    }
    checkpoint_layout(&writer->pieces);
    uint8_t *header;
    rc = checkpoint_header_write(&writer->pieces, tensors, writer->state, &header, &writer->header_size, error);
    if (rc != 0)
        return rc;
    free(header);
    for (unsigned k = 0; k < CHECKPOINT_KINDS; k++)
        if ((writer->hashes[k] = XXH3_createState()) == NULL)
            return out_of_memory(error);
    return index_pieces(writer) == 0 ? 0 : out_of_memory(error);
}

static uint64_t file_size(const struct ampd_checkpoint_writer *writer)
{
    const struct checkpoint_pieces *pieces = &writer->pieces;
    return writer->header_size + (pieces->count > 0 ? pieces->items[pieces->count - 1].end : 0);
}

/*
 * How often the file is tried to be created: another shard that shares data_dir may remove the empty directory of the
 * step between its creation and that of the file.
 */
#define OPEN_TRIES 8

static bool step_is_gone(const struct ampd_checkpoint_writer *writer)
{
    char dir[CHECKPOINT_PATH_MAX];
    (void)snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(writer->path, '/') - writer->path), writer->path);
    return access(dir, F_OK) != 0 && errno == ENOENT;
}

static int open_file(struct ampd_checkpoint_writer *writer, const struct ampd_checkpoint_path *where,
                     struct amp_error *error)
{
    int rc = checkpoint_path_make(where, writer->state->step, writer->path, writer->file, sizeof writer->file, error);
    if (rc != 0)
        return rc;
    /* Shorter than the path, which fits. */
    (void)snprintf(writer->data_dir, sizeof writer->data_dir, "%s", where->data_dir);
    if ((size_t)snprintf(writer->temporary, sizeof writer->temporary, "%s" CHECKPOINT_TEMPORARY, writer->path) >=
        sizeof writer->temporary)
        return amp_error_set(error, AMP_EINVAL, NULL, "the data directory's path is too long");
    for (unsigned tries = 0; tries < OPEN_TRIES; tries++) {
        rc = checkpoint_directories_make(writer->data_dir, writer->file, false, error);
        if (rc == 0)
            rc = bulk_writer_open(writer->temporary, file_size(writer), &writer->out, error);
        if (rc == 0 || !step_is_gone(writer))
            break;
    }
    if (rc == 0 && bulk_writer_status(writer->out, &writer->status) != 0)
        rc = checkpoint_system_error(error, "cannot get the status of", writer->temporary);
    return rc;
}

int ampd_checkpoint_begin(const struct ampd_checkpoint_path *where, const struct ampd_checkpoint_tensor *tensors,
                          uint32_t tensors_count, const struct ampd_checkpoint_state *state,
                          struct ampd_checkpoint_writer **writer, struct amp_error *error)
{
    *writer = NULL;
    struct ampd_checkpoint_writer *made = calloc(1, sizeof *made);
    if (made == NULL)
        return out_of_memory(error);
    made->state = state;
    made->tensor = NO_PIECE;
    int rc = lay_out(made, tensors, tensors_count, error);
    if (rc == 0)
        rc = open_file(made, where, error);
    if (rc != 0)
        ampd_checkpoint_abandon(made);
    else
        *writer = made;
    return rc;
}

/* ---- elements ---- */

static void finish_hash(const XXH3_state_t *state, struct checkpoint_piece *piece)
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
    memcpy(piece->hash, canonical.digest, sizeof piece->hash);
}

/* Hashes and puts those bytes of one kind that an earlier try of the same call has not taken. */
static int put_kind(struct ampd_checkpoint_writer *writer, unsigned kind, const float *from, uint64_t bytes,
                    uint64_t offset, struct amp_error *error)
{
    uint64_t *taken = &writer->taken[kind];
    int rc = 0;
    while (rc == 0 && *taken < bytes) {
        uint64_t now, part = bytes - *taken < CHUNK_BYTES ? bytes - *taken : CHUNK_BYTES;
        const uint8_t *at = (const uint8_t *)from + *taken;
        rc = bulk_writer_put(writer->out, at, part, offset + *taken, &now, error);
        (void)XXH3_128bits_update(writer->hashes[kind], at, now);
        *taken += now;
    }
    return rc;
}

int ampd_checkpoint_put(struct ampd_checkpoint_writer *writer, uint32_t tensor, uint64_t first, uint64_t count,
                        const float *master, const float *m, const float *v, struct amp_error *error)
{
    const float *from[CHECKPOINT_KINDS] = {master, m, v};
    AMP_ASSERT(tensor < writer->tensors_count);
    const uint32_t *of = writer->of[tensor];
    AMP_ASSERT(of[CHECKPOINT_MASTER] != NO_PIECE);
    const struct checkpoint_piece *whole = &writer->pieces.items[of[CHECKPOINT_MASTER]];
    bool begins = first == whole->first;
    AMP_ASSERT(begins || (tensor == writer->tensor && first == writer->next));
    AMP_ASSERT(count <= whole->first + whole->elements - first);
    for (unsigned k = 0; k < CHECKPOINT_KINDS; k++) {
        AMP_ASSERT((from[k] == NULL) == (of[k] == NO_PIECE));
        if (from[k] == NULL)
            continue;
        const struct checkpoint_piece *piece = &writer->pieces.items[of[k]];
        if (begins && writer->taken[k] == 0)
            (void)XXH3_128bits_reset(writer->hashes[k]); /* fails only on NULL */
        uint64_t offset = writer->header_size + piece->begin + (first - piece->first) * sizeof(float);
        int rc = put_kind(writer, k, from[k], count * sizeof(float), offset, error);
        if (rc != 0)
            return rc;
    }
    writer->tensor = tensor;
    writer->next = first + count;
    for (unsigned k = 0; k < CHECKPOINT_KINDS; k++) {
        writer->taken[k] = 0;
        if (from[k] != NULL && writer->next == whole->first + whole->elements)
            finish_hash(writer->hashes[k], &writer->pieces.items[of[k]]);
    }
    return 0;
}

/* ---- end ---- */

/*
 * Puts a piece of the tail (user states, then the header), before which `before` bytes of the tail come. Bytes that an
 * earlier try has put are left out.
 */
static int put_tail(struct ampd_checkpoint_writer *writer, uint64_t before, const void *data, uint64_t size,
                    uint64_t offset, struct amp_error *error)
{
    uint64_t taken, done = writer->tail - before;
    if (done >= size)
        return 0;
    int rc = bulk_writer_put(writer->out, (const uint8_t *)data + done, size - done, offset + done, &taken, error);
    writer->tail += taken;
    return rc;
}

static int write_tail(struct ampd_checkpoint_writer *writer, struct amp_error *error)
{
    uint64_t before = 0;
    for (uint32_t p = 0; p < writer->pieces.count; p++) {
        struct checkpoint_piece *piece = &writer->pieces.items[p];
        if (piece->kind != CHECKPOINT_USER_STATE)
            continue;
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits(piece->data, piece->elements));
        memcpy(piece->hash, canonical.digest, sizeof piece->hash);
        int rc = put_tail(writer, before, piece->data, piece->elements, writer->header_size + piece->begin, error);
        if (rc != 0)
            return rc;
        before += piece->elements;
    }
    uint8_t *header;
    size_t size;
    int rc = checkpoint_header_write(&writer->pieces, writer->tensors, writer->state, &header, &size, error);
    if (rc != 0)
        return rc;
    AMP_ASSERT(size == writer->header_size);
    rc = put_tail(writer, before, header, size, 0, error);
    free(header);
    return rc == 0 ? bulk_writer_flush(writer->out, error) : rc;
}

/* Checks that the file is still where this writer has put it: another process may have put its own there. */
static int check_there(const struct ampd_checkpoint_writer *writer, struct amp_error *error)
{
    const char *path = writer->renamed ? writer->path : writer->temporary;
    struct stat there;
    if (stat(path, &there) != 0)
        return checkpoint_not_opened(error, "cannot find", path);
    if (there.st_dev == writer->status.st_dev && there.st_ino == writer->status.st_ino)
        return 0;
    return amp_error_set(error, AMP_EIO, "STORE_FAILED", "%s was replaced by another process", path);
}

static int sync_file(struct ampd_checkpoint_writer *writer, struct amp_error *error)
{
    AMP_FAILPOINT("checkpoint.unsynced");
    if (bulk_writer_sync(writer->out) != 0)
        return checkpoint_final_error(error, "cannot fsync", writer->temporary);
    AMP_FAILPOINT("checkpoint.synced");
    writer->synced = true;
    return 0;
}

/*
 * Renames the file, and syncs its entry and those of all directories above it. The file of this shard's next process is
 * never renamed: this one is open until it has its name, so that no other has its inode's number.
 */
static int take_name(struct ampd_checkpoint_writer *writer, struct amp_error *error)
{
    int rc = writer->renamed ? 0 : check_there(writer, error);
    if (rc != 0)
        return rc;
    if (!writer->renamed && rename(writer->temporary, writer->path) != 0)
        return checkpoint_not_opened(error, "cannot rename", writer->temporary);
    writer->renamed = true;
    AMP_FAILPOINT("checkpoint.renamed");
    rc = checkpoint_directory_sync(writer->path, error);
    if (rc == 0)
        rc = checkpoint_directories_make(writer->data_dir, writer->file, true, error);
    AMP_FAILPOINT("checkpoint.named");
    return rc;
}

static void release(struct ampd_checkpoint_writer *writer)
{
    for (unsigned k = 0; k < CHECKPOINT_KINDS; k++)
        (void)XXH3_freeState(writer->hashes[k]); /* takes NULL; always XXH_OK */
    free(writer->of);
    free(writer->tensors);
    free(writer->pieces.items);
    free(writer);
}

int ampd_checkpoint_end(struct ampd_checkpoint_writer *writer, struct ampd_checkpoint_record *record,
                        struct amp_error *error)
{
    const struct checkpoint_pieces *pieces = &writer->pieces;
    memset(record, 0, sizeof *record);
    int rc = writer->synced ? 0 : write_tail(writer, error);
    if (rc == 0 && !writer->synced)
        rc = sync_file(writer, error);
    if (rc == 0)
        rc = take_name(writer, error);
    if (rc != 0)
        return rc;
    struct bulk_writer *out = writer->out;
    writer->out = NULL;
    if (bulk_writer_close(out) != 0)
        return checkpoint_final_error(error, "cannot close", writer->path);
    checkpoint_manifest(pieces, record->manifest);
    memcpy(record->file, writer->file, sizeof record->file);
    record->step = writer->state->step;
    record->version = writer->state->version;
    record->scale = writer->state->carry.scaler.scale;
    record->size_bytes = file_size(writer);
    release(writer);
    return 0;
}

void ampd_checkpoint_abandon(struct ampd_checkpoint_writer *writer)
{
    if (writer == NULL)
        return;
    bool own = check_there(writer, NULL) == 0;
    (void)bulk_writer_close(writer->out); /* its bytes count for nothing */
    if (own)
        (void)unlink(writer->renamed ? writer->path : writer->temporary); /* a sweep finds what is left */
    release(writer);
}
