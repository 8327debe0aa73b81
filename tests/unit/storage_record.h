/*
 * Writes down what a program asks the disk for, and makes the disks that a power loss could leave of it.
 *
 * Stands in front of the C library's calls, for storage's own files and for SQLite's: what SQLite's VFS asks for is
 * what reaches the system. Only what is below one folder is written down; the -shm files, which SQLite makes anew, are
 * not.
 *
 * The disk forgets what it was not told to keep: bytes and sizes of a file until it is synced, names until their
 * directory is. No order is kept between two things that are not synced.
 */
#ifndef AMPD_TESTS_STORAGE_RECORD_H
#define AMPD_TESTS_STORAGE_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORD_NEVER  UINT32_MAX
#define RECORD_SECTOR 512u

enum record_kind {
    RECORD_WRITE,  /* bytes of a file */
    RECORD_SIZE,   /* its size: cut, or filled up with zeros */
    RECORD_SYNC,   /* a file, or the names in a directory */
    RECORD_ENTER,  /* a name for a file or directory */
    RECORD_LEAVE,  /* a name goes */
    RECORD_RENAME, /* a name becomes another one of the same directory */
};

struct record_op {
    enum record_kind kind;
    uint32_t file; /* whose bytes or size; ENTER, RENAME: who gets the name; SYNC: what is synced */
    uint32_t dir;  /* ENTER, LEAVE, RENAME */
    bool is_dir;   /* ENTER: a directory */
    char *name, *to_name;
    uint64_t offset, size;
    uint8_t *data;
    uint32_t synced_at; /* the call that made it durable, or RECORD_NEVER */
    uint32_t lost_at;   /* WRITE: calls before the sync of it that failed: no later one writes it; or RECORD_NEVER */
};

/* What a power loss takes. */
enum record_loss {
    RECORD_LOSE_NOTHING,  /* everything had reached the disk in time */
    RECORD_LOSE_UNSYNCED, /* nothing had that was not synced */
    RECORD_LOSE_ONE,      /* that call alone had not */
    RECORD_LOSE_SECTOR,   /* that sector of its bytes had not */
    RECORD_LOSE_FROM,     /* its bytes had up to that sector */
    RECORD_LOSE_RANDOM,   /* each call that was not synced has had, or not, or half */
};

struct record_crash {
    uint32_t prefix; /* calls before the power was lost */
    enum record_loss loss;
    uint32_t call;   /* ONE, SECTOR, FROM: which, not synced by then */
    uint32_t sector; /* SECTOR, FROM */
    uint64_t seed;   /* RANDOM */
};

/*
 * Writes down what happens below `root`, which is there and empty, by whatever thread. One thread calls all of these.
 */
void storage_record_begin(const char *root);

/*
 * Goes on after the first `prefix` calls as if the process had been killed then and started again: they are kept, with
 * what was durable of them by then; all later ones are forgotten. `root` holds the disk of that moment
 * (RECORD_LOSE_NOTHING).
 */
void storage_record_resume(const char *root, uint32_t prefix);

/* The n-th sync from now on fails with EIO; the system then takes the bytes for written that it has not written. */
void storage_record_fail_sync(uint32_t n);

/* True if there was such a sync. */
bool storage_record_failed(void);

/*
 * Stops; what was written down stays. Until storage_record_begin no sync reaches the disk: what is tested is thrown
 * away.
 */
void storage_record_stop(void);

/* Frees all; syncs are syncs again. */
void storage_record_end(void);

/* Calls so far, and the i-th of them. */
uint32_t storage_record_count(void);
const struct record_op *storage_record_op(uint32_t i);

/* True if the call was made, and was not durable, when the power was lost after `prefix` calls. */
bool storage_record_open(uint32_t i, uint32_t prefix);

/* Hash of the disk that a crash leaves. */
uint64_t storage_record_hash(const struct record_crash *crash);

/* Makes that disk below `target`, which is there and empty. */
void storage_record_make(const struct record_crash *crash, const char *target);

#endif
