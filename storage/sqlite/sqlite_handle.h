/* One handle of the SQLite store, and what its errors are in the words of store.h. */
#ifndef AMPD_SQLITE_HANDLE_H
#define AMPD_SQLITE_HANDLE_H

#include "storage/sqlite/sqlite_statements.h"
#include "storage/store_impl.h"

#include <sqlite3.h>

/*
 * Models that a writer keeps in mind; of two with one place the last one has it. A server has few that train at a time.
 */
#define STORE_KNOWN_MAX 64

/* What is true of a model while nothing but its verdicts is stored. */
struct store_known {
    char name[AMPD_NAME_MAX]; /* "": nobody */
    int64_t id;
    uint64_t epoch;
    bool has_step; /* the newest epoch has the row of `step`, the last that was stored */
    uint64_t step;
};

struct sqlite_store {
    struct ampd_store base;
    sqlite3 *db;
    char *path;
    bool reader;
    bool draft;                   /* the connection's synchronous setting: OFF */
    bool full;                    /* else: FULL, else NORMAL */
    bool failed;                  /* a write or fsync failed: what the disk holds is not known */
    char why[AMP_ERROR_TEXT_MAX]; /* of the first such failure */
    struct store_known known[STORE_KNOWN_MAX];
    sqlite3_stmt *statements[STMT_COUNT];
};

/* The handle of an interface pointer. */
struct sqlite_store *store_of(struct ampd_store *store);

/* AMP_EDATALOSS (STORE_DAMAGED), with what helps. */
int store_damaged(struct amp_error *error, const char *path, const char *why);

/* The same of a row that this program cannot have written; `what` it is. */
int store_damaged_row(struct sqlite_store *store, const char *what, struct amp_error *error);

/* Whether a call failed since the disk is full. `moves`: it moves the log into the database. */
bool store_disk_full(struct sqlite_store *store, int sqlite_rc, bool moves);

/* Turns what SQLite answered last into one of store.h's codes; marks a writer as failed where that says so. */
int store_failure(struct sqlite_store *store, int sqlite_rc, const char *what, struct amp_error *error);

#endif
