/*
 * The handle of the SQLite store, and the translation of SQLite's errors into those of store.h. A handle is used by one
 * thread at a time; readers and the writer are handles, and SQLite connections, of their own.
 */
#ifndef AMPD_SQLITE_HANDLE_H
#define AMPD_SQLITE_HANDLE_H

#include "storage/sqlite/sqlite_statements.h"
#include "storage/store_impl.h"

#include <sqlite3.h>

/*
 * Entries of a writer's cache of models (sqlite_known.h). Two models with the same entry displace each other; a server
 * has few models that train at the same time.
 */
#define STORE_KNOWN_MAX 64

/* An entry of the cache: facts about a model that hold as long as nothing but rows of verdicts is stored. */
struct store_known {
    char name[AMPD_NAME_MAX]; /* of the model; "": the entry is empty */
    int64_t id;               /* models.id */
    uint64_t epoch;           /* the model's newest epoch */
    bool has_step;            /* `step` is set: the step of that epoch whose row was stored last */
    uint64_t step;
};

struct sqlite_store {
    struct ampd_store base;
    sqlite3 *db;
    char *path;                                /* of ampd.db; owned */
    bool reader;                               /* a connection that only reads */
    bool draft;                                /* ampd_store_sqlite_open_draft: synchronous is always OFF */
    bool full;                                 /* present setting of synchronous: FULL, else NORMAL */
    bool failed;                               /* a write or fsync failed: the handle refuses all writes from then on */
    char why[AMP_ERROR_TEXT_MAX];              /* text of the first such failure */
    struct store_known known[STORE_KNOWN_MAX]; /* the cache; of a writer */
    sqlite3_stmt *statements[STMT_COUNT];      /* prepared at their first use, else NULL */
};

/* The SQLite handle that an interface pointer is the first member of. */
struct sqlite_store *store_of(struct ampd_store *store);

/* Reports a damaged file with the remedy; returns AMP_EDATALOSS (STORE_DAMAGED). */
int store_damaged(struct amp_error *error, const char *path, const char *why);

/*
 * Reports a row that this program cannot have written; `what` names its kind, as "step". Returns AMP_EDATALOSS
 * (STORE_DAMAGED).
 */
int store_damaged_row(struct sqlite_store *store, const char *what, struct amp_error *error);

/*
 * Whether a call to SQLite failed because the disk is full. `moves`: the call moves the write-ahead log into the
 * database file, else it writes the log.
 */
bool store_disk_full(struct sqlite_store *store, int sqlite_rc, bool moves);

/*
 * Turns a failure of SQLite into an error of store.h, with `what` in its text, and returns the code. If a writer's code
 * is AMP_EIO or AMP_EDATALOSS the handle is marked as failed.
 */
int store_failure(struct sqlite_store *store, int sqlite_rc, const char *what, struct amp_error *error);

#endif
