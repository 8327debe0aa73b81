/*
 * The SQLite store: its file, its connections, and the table of its calls. One writer connection in WAL mode, and
 * read-only connections for readers.
 */
#include "base/assert.h"
#include "storage/plain_file.h"
#include "storage/sqlite/sqlite_log.h"
#include "storage/sqlite/sqlite_ops.h"
#include "storage/sqlite/sqlite_schema.h"
#include "storage/sqlite/sqlite_transaction.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* How long a statement waits while another process has locked the file, for example the sqlite3 shell. */
#define BUSY_TIMEOUT_MS 5000

/*
 * Bytes. The write-ahead log is truncated to this after a checkpoint of it, so that one long read does not leave it
 * large.
 */
#define WAL_SIZE_LIMIT "67108864"

static void sqlite_close(struct ampd_store *base)
{
    struct sqlite_store *store = store_of(base);
    for (int i = 0; i < STMT_COUNT; i++)
        (void)sqlite3_finalize(store->statements[i]); /* repeats errors that were answered */
    int rc = sqlite3_close(store->db);
    AMP_ASSERT(rc == SQLITE_OK); /* no statement is left */
    free(store->path);
    free(store);
}

/* A handle with an open connection. On failure *out is NULL. */
static int connect(const struct ampd_store_ops *ops, const char *path, bool reader, struct sqlite_store **out,
                   struct amp_error *error)
{
    *out = NULL;
    struct sqlite_store *store = calloc(1, sizeof *store);
    char *copy = strdup(path);
    if (store == NULL || copy == NULL) {
        free(store);
        free(copy);
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory opening the store");
    }
    *store = (struct sqlite_store){.base.ops = ops, .path = copy, .reader = reader};
    int flags = (reader ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE) | SQLITE_OPEN_NOMUTEX;
    int rc = sqlite3_open_v2(path, &store->db, flags, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_extended_result_codes(store->db, 1);
    if (rc == SQLITE_OK)
        rc = sqlite3_busy_timeout(store->db, BUSY_TIMEOUT_MS);
    if (rc != SQLITE_OK) {
        int result = store_failure(store, rc, "opening the store", error);
        sqlite_close(&store->base);
        return result;
    }
    *out = store;
    return 0;
}

static int sqlite_open_reader(struct ampd_store *base, struct ampd_store **reader, struct amp_error *error)
{
    struct sqlite_store *store;
    int rc = connect(base->ops, store_of(base)->path, true, &store, error);
    if (rc == 0)
        *reader = &store->base;
    return rc;
}

/*
 * Sets WAL mode and the other pragmas of a writer. secure_delete is on in Debian's build and would overwrite freed
 * pages with zeros. Without temp_store a statement that needs much room would look for it in the directory for
 * temporary files, which may be small or missing, and whose lack of room would be taken for a full disk of the store.
 */
static int configure(struct sqlite_store *store, struct amp_error *error)
{
    sqlite3_stmt *statement = NULL;
    int rc = sqlite3_exec(store->db,
                          "PRAGMA secure_delete=OFF; PRAGMA foreign_keys=ON; PRAGMA trusted_schema=OFF;"
                          "PRAGMA temp_store=MEMORY; PRAGMA journal_size_limit=" WAL_SIZE_LIMIT,
                          NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v2(store->db, "PRAGMA journal_mode=WAL", -1, &statement, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(statement);
    const unsigned char *mode = rc == SQLITE_ROW ? sqlite3_column_text(statement, 0) : NULL;
    bool is_wal = mode != NULL && strcmp((const char *)mode, "wal") == 0;
    (void)sqlite3_finalize(statement); /* repeats the error of the step */
    if (rc != SQLITE_ROW)
        return store_failure(store, rc, "opening the store", error);
    if (!is_wal)
        return amp_error_set(error, AMP_EIO, "STORE_FAILED", "%s: the file system has no shared memory for the log",
                             store->path);
    return store_transactions_init(store, error);
}

static int cannot_open(struct amp_error *error, const char *path)
{
    bool full = errno == ENOSPC || errno == EDQUOT, denied = errno == EACCES || errno == EPERM;
    bool is_read_only = errno == EROFS;
    bool given_wrong = errno == ELOOP || errno == ENXIO || denied || is_read_only;
    return amp_error_set(error,
                         full          ? AMP_EEXHAUSTED
                         : given_wrong ? AMP_EINVAL
                                       : AMP_EIO,
                         full ? "NO_SPACE" : "STORE_FAILED", "cannot open %s: %s%s", path, ampd_plain_strerror(errno),
                         is_read_only ? "; mount its disk for writing"
                         : denied     ? "; see that it belongs to ampd's user"
                                      : "");
}

/*
 * Creates the file with mode 0600, before SQLite would do it with the umask's. SQLite opens the files beside it by
 * name, so these must not be symbolic links either; of one that it may not open it does not say which.
 */
static int create_file(const char *path, struct amp_error *error)
{
    static const char *const beside[] = {"-wal", "-shm", "-journal"};
    char name[4096 + 16];
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        (void)snprintf(name, sizeof name, "%s%s", path, beside[i]);
        if (ampd_plain_check(name) != 0 || (access(name, R_OK | W_OK) != 0 && errno != ENOENT))
            return cannot_open(error, name);
    }
    int fd = ampd_plain_open(path, O_RDWR | O_CREAT);
    if (fd < 0)
        return cannot_open(error, path);
    (void)close(fd); /* nothing was written */
    return 0;
}

/*
 * Refuses a file that was emptied, or that is missing beside its log. SQLite takes an empty file for a new database,
 * and would even remove the log. If there is a log, or beside an empty file the directory of models, which is created
 * after the schema is stored, the file has lost its content.
 */
static int check_emptied(const char *path, bool has_models, struct amp_error *error)
{
    char log[4096 + 16];
    struct stat about;
    bool is_missing = stat(path, &about) != 0;
    if (is_missing ? errno != ENOENT : about.st_size != 0)
        return 0;
    (void)snprintf(log, sizeof log, "%s-wal", path);
    bool has_log = lstat(log, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0; /* others: create_file */
    return has_log || has_models ? store_damaged(error, path, is_missing ? "it is missing" : "it is empty") : 0;
}

static const struct ampd_store_ops sqlite_ops = {
    .open_reader = sqlite_open_reader,
    .close = sqlite_close,
#define AMPD_STORE_CALL(name, parameters, arguments) .name = store_sqlite_##name,
#define AMPD_STORE_OP(name, parameters)              .name = store_sqlite_##name,
#include "storage/store_calls.def"
#undef AMPD_STORE_CALL
#undef AMPD_STORE_OP
};

static int open_store(const char *data_dir, bool draft, struct ampd_store **out, struct amp_error *error)
{
    *out = NULL;
    char path[4096];
    int size = snprintf(path, sizeof path, "%s/ampd.db", data_dir);
    if (size < 0 || (size_t)size >= sizeof path)
        return amp_error_set(error, AMP_EINVAL, NULL, "the data directory's path is too long");
    struct sqlite_store *store;
    char models[4096 + 16];
    (void)snprintf(models, sizeof models, "%s/models", data_dir);
    bool has_models = access(path, F_OK) == 0 && access(models, F_OK) == 0;
    int rc = check_emptied(path, has_models, error);
    if (rc == 0)
        rc = store_check_log(path, error);
    if (rc == 0)
        rc = create_file(path, error);
    if (rc == 0)
        rc = connect(&sqlite_ops, path, false, &store, error);
    if (rc != 0)
        return rc;
    store->draft = draft;
    rc = configure(store, error);
    if (rc == 0)
        rc = store_migrate(store, has_models, error);
    if (rc != 0) {
        sqlite_close(&store->base);
        return rc;
    }
    *out = &store->base;
    return 0;
}

int ampd_store_sqlite_open(const char *data_dir, struct ampd_store **out, struct amp_error *error)
{
    return open_store(data_dir, false, out, error);
}

int ampd_store_sqlite_open_draft(const char *data_dir, struct ampd_store **out, struct amp_error *error)
{
    return open_store(data_dir, true, out, error);
}
