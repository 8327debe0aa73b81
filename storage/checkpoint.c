/* Writing and reading of checkpoint files: the disk's side. The format is checkpoint_format.c's. */
#include "storage/checkpoint.h"

#include "storage/checkpoint_files.h"
#include "storage/checkpoint_format.h"
#include "storage/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* One read or write: large enough for full speed, small enough to notice a cancel within milliseconds. */
#define CHUNK_BYTES ((size_t)4 << 20)

/* ---- writing ---- */

static int write_all(int fd, const void *data, uint64_t size, const atomic_bool *cancel, const char *path,
                     struct amp_error *error)
{
    const uint8_t *at = data;
    while (size > 0) {
        if (cancel != NULL && atomic_load(cancel))
            return amp_error_set(error, AMP_ECANCELLED, NULL, "writing %s was stopped", path);
        ssize_t put = write(fd, at, size < CHUNK_BYTES ? (size_t)size : CHUNK_BYTES);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return checkpoint_system_error(error, "cannot write", path);
        at += put;
        size -= (uint64_t)put;
    }
    return 0;
}

/* What goes into a file: its header, ready made, and the pieces behind it. */
struct content {
    struct checkpoint_pieces pieces;
    uint8_t *header;
    size_t header_size;
    uint64_t size; /* of the whole file */
};

static int write_content(int fd, const struct content *content, const atomic_bool *cancel, const char *path,
                         struct amp_error *error)
{
    int rc = write_all(fd, content->header, content->header_size, cancel, path, error);
    for (uint32_t i = 0; rc == 0 && i < content->pieces.count; i++) {
        const struct checkpoint_piece *piece = &content->pieces.items[i];
        rc = write_all(fd, piece->data, piece->end - piece->begin, cancel, path, error);
    }
    if (rc == 0 && fsync(fd) != 0)
        rc = checkpoint_system_error(error, "cannot fsync", path);
    return rc;
}

/* Writes beside, then renames. Leaves no partial file, under either name. */
static int write_file(const char *path, const struct content *content, const atomic_bool *cancel,
                      struct amp_error *error)
{
    char temporary[CHECKPOINT_PATH_MAX];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s" CHECKPOINT_TEMPORARY, path) >= sizeof temporary)
        return amp_error_set(error, AMP_EINVAL, NULL, "the data directory's path is too long");
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return checkpoint_system_error(error, "cannot create", temporary);
    int rc = write_content(fd, content, cancel, temporary, error);
    if (close(fd) != 0 && rc == 0)
        rc = checkpoint_system_error(error, "cannot close", temporary);
    if (rc == 0 && rename(temporary, path) != 0)
        rc = checkpoint_system_error(error, "cannot rename", temporary);
    if (rc != 0)
        (void)unlink(temporary); /* the error that counts is the first; a sweep finds what is left */
    return rc;
}

static void hash_pieces(struct checkpoint_pieces *pieces)
{
    for (uint32_t i = 0; i < pieces->count; i++) {
        struct checkpoint_piece *piece = &pieces->items[i];
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits(piece->data, piece->end - piece->begin));
        memcpy(piece->hash, canonical.digest, sizeof piece->hash);
    }
}

/* Pieces of what is to be written, without order. The memory behind them is only read. */
static int pieces_to_write(const struct ampd_checkpoint_tensor *tensors, uint32_t count,
                           const struct ampd_checkpoint_state *state, struct checkpoint_pieces *pieces,
                           struct amp_error *error)
{
    _Static_assert(sizeof *tensors == sizeof(struct ampd_checkpoint_target) &&
                       offsetof(struct ampd_checkpoint_tensor, v) == offsetof(struct ampd_checkpoint_target, v),
                   "a tensor is a target whose memory is only read");
    struct ampd_checkpoint_target *targets = malloc((count > 0 ? count : 1) * sizeof *targets);
    if (targets == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for a checkpoint's header");
    memcpy(targets, tensors, count * sizeof *targets);
    int rc = checkpoint_pieces_of(targets, count, state, pieces, error);
    free(targets);
    return rc;
}

/* All of a file but the tensors' bytes; closed by content_close after success. */
static int content_open(struct content *content, const struct ampd_checkpoint_tensor *tensors, uint32_t count,
                        const struct ampd_checkpoint_state *state, struct amp_error *error)
{
    int rc = pieces_to_write(tensors, count, state, &content->pieces, error);
    if (rc != 0)
        return rc;
    checkpoint_layout(&content->pieces);
    hash_pieces(&content->pieces);
    rc = checkpoint_header_write(&content->pieces, state, &content->header, &content->header_size, error);
    if (rc != 0) {
        free(content->pieces.items);
        return rc;
    }
    const struct checkpoint_pieces *pieces = &content->pieces;
    content->size = content->header_size + (pieces->count > 0 ? pieces->items[pieces->count - 1].end : 0);
    return 0;
}

static void content_close(struct content *content)
{
    free(content->header);
    free(content->pieces.items);
}

int ampd_checkpoint_write(const struct ampd_checkpoint_place *place, const struct ampd_checkpoint_tensor *tensors,
                          uint32_t tensors_count, const struct ampd_checkpoint_state *state, const atomic_bool *cancel,
                          struct ampd_checkpoint_record *record, struct amp_error *error)
{
    memset(record, 0, sizeof *record);
    char path[CHECKPOINT_PATH_MAX];
    int rc = checkpoint_path_make(place, state->step, path, record->file, sizeof record->file, error);
    if (rc != 0)
        return rc;
    struct content content;
    rc = content_open(&content, tensors, tensors_count, state, error);
    if (rc != 0)
        return rc;
    rc = checkpoint_directories_make(place->data_dir, record->file, error);
    if (rc == 0)
        rc = write_file(path, &content, cancel, error);
    if (rc == 0)
        rc = checkpoint_directory_sync(path, error);
    checkpoint_manifest(&content.pieces, record->manifest);
    record->step = state->step;
    record->version = state->version;
    record->size_bytes = content.size;
    content_close(&content);
    return rc;
}

/* ---- reading ---- */

static int damaged(struct amp_error *error, const char *what)
{
    return amp_error_set(error, AMP_EDATALOSS, "CHECKPOINT_DAMAGED", "%s", what);
}

static int read_all(int fd, void *data, uint64_t size, uint64_t offset, struct amp_error *error)
{
    uint8_t *at = data;
    while (size > 0) {
        ssize_t got = pread(fd, at, size < CHUNK_BYTES ? (size_t)size : CHUNK_BYTES, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return amp_error_set(error, AMP_EIO, NULL, "cannot read: %s", strerror(errno));
        if (got == 0)
            return damaged(error, "the file is cut off");
        at += got;
        offset += (uint64_t)got;
        size -= (uint64_t)got;
    }
    return 0;
}

/* Reads the length and the JSON behind it; *json is the caller's (free). */
static int read_header(int fd, uint64_t file_size, char **json, uint64_t *size, struct amp_error *error)
{
    if (file_size < 8)
        return damaged(error, "the file is shorter than a header");
    int rc = read_all(fd, size, sizeof *size, 0, error); /* little-endian */
    if (rc != 0)
        return rc;
    if (*size < 2 || *size > file_size - 8 || *size > CHECKPOINT_HEADER_MAX)
        return damaged(error, "the header's length makes no sense");
    *json = malloc(*size);
    if (*json == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory reading a checkpoint");
    rc = read_all(fd, *json, *size, 8, error);
    if (rc != 0)
        free(*json);
    return rc;
}

static int read_pieces(int fd, uint64_t data_at, const struct checkpoint_pieces *pieces, struct amp_error *error)
{
    for (uint32_t i = 0; i < pieces->count; i++) {
        const struct checkpoint_piece *piece = &pieces->items[i];
        uint64_t size = piece->end - piece->begin;
        int rc = read_all(fd, piece->data, size, data_at + piece->begin, error);
        if (rc != 0)
            return rc;
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits(piece->data, size));
        if (memcmp(canonical.digest, piece->hash, sizeof piece->hash) != 0)
            return amp_error_set(error, AMP_EDATALOSS, "CHECKPOINT_DAMAGED", "the hash of tensor \"%s\" does not match",
                                 piece->name);
    }
    return 0;
}

static int read_file(int fd, const uint8_t *manifest, struct checkpoint_pieces *pieces,
                     struct ampd_checkpoint_state *state, struct amp_error *error)
{
    struct stat info;
    char *json;
    uint64_t header_size;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return damaged(error, "not a regular file");
    uint64_t file_size = (uint64_t)info.st_size;
    int rc = read_header(fd, file_size, &json, &header_size, error);
    if (rc != 0)
        return rc;
    rc = checkpoint_header_read(json, header_size, file_size - 8 - header_size, pieces, state, error);
    free(json);
    if (rc != 0)
        return rc;
    uint8_t found[CHECKPOINT_HASH_BYTES];
    checkpoint_manifest(pieces, found);
    if (manifest != NULL && memcmp(manifest, found, sizeof found) != 0)
        return damaged(error, "the file is not the one that the catalogue names");
    return read_pieces(fd, 8 + header_size, pieces, error);
}

int ampd_checkpoint_read(const char *data_dir, const char *file, const uint8_t manifest[16],
                         const struct ampd_checkpoint_target *targets, uint32_t targets_count,
                         struct ampd_checkpoint_state *state, struct amp_error *error)
{
    memset(state, 0, sizeof *state);
    char path[CHECKPOINT_PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s", data_dir, file) >= sizeof path)
        return amp_error_set(error, AMP_EINVAL, NULL, "the data directory's path is too long");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return amp_error_set(error, errno == ENOENT ? AMP_ENOTFOUND : AMP_EIO, "CHECKPOINT_UNREADABLE",
                             "cannot open %s: %s", path, strerror(errno));
    struct checkpoint_pieces pieces;
    int rc = checkpoint_pieces_of(targets, targets_count, NULL, &pieces, error);
    if (rc == 0) {
        rc = read_file(fd, manifest, &pieces, state, error);
        free(pieces.items);
    }
    (void)close(fd); /* only read */
    if (rc != 0) {
        ampd_checkpoint_state_clear(state);
        amp_error_wrap(error, "checkpoint %s", file);
    }
    return rc;
}
