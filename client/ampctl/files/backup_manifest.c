/* The files of a backup, and its manifest. */
#include "client/ampctl/files/backup.h"

#include "base/hex.h"
#include "client/ampctl/parse.h"
#include "storage/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define MANIFEST "manifest.json"

/* Of the manifest: the 1,000 models of a server, each with its specification and the states of 256 ranks. */
#define MANIFEST_MAX ((size_t)64 << 20)

/* What is read of a file at a time. */
#define PIECE ((size_t)1 << 20)

#define HASH_TEXT (2 * sizeof(XXH128_canonical_t) + 1)

/* How a manifest ends, behind what its hash is of. */
#define TAIL_FORMAT ",\n  \"hash\": \"%s\"\n}\n"
#define TAIL_SIZE   (sizeof TAIL_FORMAT - 3 + HASH_TEXT - 1) /* without %s and both final zeros */

/* ---- arguments and paths ---- */

error_t ampctl_backup_argument(int key, char *arg, struct argp_state *state, struct ampctl_backup_arguments *to)
{
    switch (key) {
    case ARGP_KEY_ARG:
        if (state->arg_num > 1)
            argp_error(state, "a folder and a model are enough; \"%.40s\" is too much", arg);
        if (state->arg_num == 1) {
            ampctl_name(state, to->model, arg);
            return 0;
        }
        size_t size = strlen(arg);
        while (size > 1 && arg[size - 1] == '/')
            size--;
        if (size == 0 || size >= sizeof to->folder)
            argp_error(state, "the name of the folder is empty, or longer than %zu bytes", sizeof to->folder - 1);
        memcpy(to->folder, arg, size);
        to->folder[size] = 0;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "name the folder of the backup");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int ampctl_backup_failed(const struct ampctl *ctl, const char *path, const char *text)
{
    (void)ampctl_print(stderr, "ampctl: %s: %s: %s", ctl->verb, path, text);
    return AMPCTL_EXIT_FAILED;
}

void ampctl_backup_path(char path[AMPCTL_BACKUP_PATH_MAX], const char *folder, const char *model, const char *file)
{
    (void)snprintf(path, AMPCTL_BACKUP_PATH_MAX, "%s/models/%s%s%s", folder, model, file[0] != 0 ? "/" : "", file);
}

bool ampctl_backup_name_ok(const char *model)
{
    const struct ampd_checkpoint_path where = {.data_dir = "", .model = model, .shards = 1};
    char file[AMPCTL_BACKUP_PATH_MAX];
    return ampd_checkpoint_file(&where, 0, file, sizeof file, NULL) == 0;
}

/* ---- files ---- */

/* A regular file to read, and its size. -1 after a sentence. */
static int open_file(const struct ampctl *ctl, const char *path, uint64_t *size)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO is refused below, not waited for */
    bool plain = fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
    if (plain) {
        *size = (uint64_t)status.st_size;
        return fd;
    }
    (void)ampctl_backup_failed(ctl, path, fd < 0 ? strerror(errno) : "it is not a file");
    if (fd >= 0)
        (void)close(fd);
    return -1;
}

/* Up to `size` bytes. How many came before the file's end, or -1. */
static ssize_t read_piece(int fd, char *data, size_t size)
{
    size_t got = 0;
    while (got < size) {
        ssize_t n = read(fd, data + got, size - got);
        if (n == 0 || (n < 0 && errno != EINTR))
            return n == 0 ? (ssize_t)got : -1;
        got += n > 0 ? (size_t)n : 0;
    }
    return (ssize_t)got;
}

static void hash_text(XXH128_hash_t hash, char text[HASH_TEXT])
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, hash);
    amp_hex_write(canonical.digest, sizeof canonical.digest, text);
}

static json_t *hash_of(int fd, char *piece, XXH3_state_t *state)
{
    uint64_t size = 0;
    char text[HASH_TEXT];
    ssize_t got;
    (void)XXH3_128bits_reset(state); /* fails only on NULL */
    while ((got = read_piece(fd, piece, PIECE)) > 0) {
        (void)XXH3_128bits_update(state, piece, (size_t)got);
        size += (uint64_t)got;
    }
    hash_text(XXH3_128bits_digest(state), text);
    return got < 0 ? NULL : json_pack("{s:I, s:s}", "size", (json_int_t)size, "hash", text);
}

json_t *ampctl_backup_hash(const struct ampctl *ctl, const char *path)
{
    uint64_t size;
    int fd = open_file(ctl, path, &size);
    if (fd < 0)
        return NULL;
    char *piece = malloc(PIECE);
    XXH3_state_t *state = XXH3_createState();
    errno = ENOMEM;
    json_t *hash = piece != NULL && state != NULL ? hash_of(fd, piece, state) : NULL;
    if (hash == NULL)
        (void)ampctl_backup_failed(ctl, path, strerror(errno));
    (void)XXH3_freeState(state);
    free(piece);
    (void)close(fd);
    return hash;
}

int ampctl_backup_write(const struct ampctl *ctl, const char *path, const void *data, size_t size)
{
    FILE *out = fopen(path, "wxe"); /* of glibc: x is O_EXCL, e is O_CLOEXEC */
    if (out == NULL)
        return ampctl_backup_failed(ctl, path, strerror(errno));
    bool written = fwrite(data, 1, size, out) == size && fflush(out) == 0 && fsync(fileno(out)) == 0;
    int code = written ? 0 : ampctl_backup_failed(ctl, path, strerror(errno));
    (void)fclose(out);
    return code;
}

int ampctl_backup_read(const struct ampctl *ctl, const char *path, size_t max, char **data, size_t *size)
{
    uint64_t bytes;
    int fd = open_file(ctl, path, &bytes);
    if (fd < 0)
        return AMPCTL_EXIT_FAILED;
    *data = bytes <= max ? malloc((size_t)bytes + 1) : NULL;
    ssize_t got = *data != NULL ? read_piece(fd, *data, (size_t)bytes) : 0;
    (void)close(fd);
    if (*data != NULL && got == (ssize_t)bytes) {
        *size = (size_t)bytes;
        (*data)[*size] = 0;
        return 0;
    }
    free(*data);
    return ampctl_backup_failed(ctl, path, bytes > max ? "it is larger than such a file can be" : "it cannot be read");
}

/* ---- the manifest ---- */

/* The text without its last brace, and the tail with its hash. */
static int write_manifest(const struct ampctl *ctl, const char *path, const char *text)
{
    size_t body = strlen(text) - strlen("\n}");
    char hash[HASH_TEXT], tail[TAIL_SIZE + 1];
    if (body + TAIL_SIZE > MANIFEST_MAX)
        return ampctl_backup_failed(ctl, path, "it would be larger than a manifest can be; back up models one by one");
    hash_text(XXH3_128bits(text, body), hash);
    (void)snprintf(tail, sizeof tail, TAIL_FORMAT, hash);
    char *all = malloc(body + TAIL_SIZE);
    if (all == NULL)
        return ampctl_backup_failed(ctl, path, "there is no memory for it");
    memcpy(all, text, body);
    memcpy(all + body, tail, TAIL_SIZE);
    int code = ampctl_backup_write(ctl, path, all, body + TAIL_SIZE);
    free(all);
    return code;
}

int ampctl_backup_manifest_write(const struct ampctl *ctl, const char *folder, const json_t *manifest)
{
    char path[AMPCTL_BACKUP_PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/" MANIFEST, folder);
    char *text = json_dumps(manifest, JSON_INDENT(2) | JSON_ENSURE_ASCII);
    if (text == NULL)
        return ampctl_backup_failed(ctl, path, "there is no memory for it");
    int code = write_manifest(ctl, path, text);
    free(text);
    return code;
}

static json_t *parse_manifest(const struct ampctl *ctl, const char *path, const char *text, size_t size)
{
    char hash[HASH_TEXT], tail[TAIL_SIZE + 1];
    bool whole = size > TAIL_SIZE;
    if (whole) {
        hash_text(XXH3_128bits(text, size - TAIL_SIZE), hash);
        (void)snprintf(tail, sizeof tail, TAIL_FORMAT, hash);
        whole = memcmp(text + size - TAIL_SIZE, tail, TAIL_SIZE) == 0;
    }
    json_t *manifest = whole ? json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (!json_is_object(manifest)) {
        (void)ampctl_backup_failed(ctl, path, "it is damaged or cut off; take another backup");
        json_decref(manifest);
        return NULL;
    }
    json_int_t format = json_integer_value(json_object_get(manifest, "format"));
    if (format == AMPCTL_BACKUP_FORMAT)
        return manifest;
    (void)ampctl_print(stderr,
                       "ampctl: %s: %s: the backup has format %" JSON_INTEGER_FORMAT
                       ", and this ampctl reads %d; restore it with ampctl %s, which has made it",
                       ctl->verb, path, format, AMPCTL_BACKUP_FORMAT,
                       json_is_string(json_object_get(manifest, "ampctl"))
                           ? json_string_value(json_object_get(manifest, "ampctl"))
                           : "of the version");
    json_decref(manifest);
    return NULL;
}

json_t *ampctl_backup_manifest_read(const struct ampctl *ctl, const char *folder)
{
    char path[AMPCTL_BACKUP_PATH_MAX];
    char *text;
    size_t size;
    (void)snprintf(path, sizeof path, "%s/" MANIFEST, folder);
    if (access(path, F_OK) != 0 && errno == ENOENT) {
        (void)ampctl_backup_failed(ctl, folder, "it has no " MANIFEST ": it is not a backup, or an incomplete one");
        return NULL;
    }
    if (ampctl_backup_read(ctl, path, MANIFEST_MAX, &text, &size) != 0)
        return NULL;
    json_t *manifest = parse_manifest(ctl, path, text, size);
    free(text);
    return manifest;
}
