/*
 * Makes the n-th allocation or the n-th call to the disk fail, once or from there on. Stands in front of the allocator
 * (the linker's --wrap: ours, and through them nghttp2's and jansson's; SQLite's by its own hook) and of the C
 * library's calls that change files, for this program and for SQLite. libuv's and OpenSSL's memory is left alone.
 *
 * A test arms it in its own process. A server that was built with it takes its orders from a file that the test shares
 * with it (AMPD_FAULTS_FILE, tests/faults/ampd_faults.py has the same layout).
 */
#ifndef AMPD_TESTS_FAULTS_H
#define AMPD_TESTS_FAULTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Which calls count. Bits, so that several can be counted together. */
enum {
    FAULTS_OURS = 1,
    FAULTS_SQLITE = 2,
    FAULTS_OPEN = 4,
    FAULTS_WRITE = 8, /* write, pwrite */
    FAULTS_SYNC = 16, /* fsync, fdatasync */
    FAULTS_RENAME = 32,
    FAULTS_TRUNCATE = 64, /* ftruncate, fallocate */
    FAULTS_UNLINK = 128,  /* unlink, rmdir */
    FAULTS_MKDIR = 256,
    FAULTS_READ = 512, /* read, pread */
    FAULTS_CLOSE = 1024,
    FAULTS_MEMORY = FAULTS_OURS | FAULTS_SQLITE,
    FAULTS_DISK =
        FAULTS_OPEN | FAULTS_WRITE | FAULTS_SYNC | FAULTS_RENAME | FAULTS_TRUNCATE | FAULTS_UNLINK | FAULTS_MKDIR,
};

/* The orders and what became of them. Offsets are fixed: ampd_faults.py reads and writes them. */
struct faults {
    atomic_uint what;             /* classes that count now; 0: none */
    atomic_int cause;             /* errno of a failing call to the disk */
    atomic_uint forever;          /* all later ones fail too */
    atomic_uint half;             /* a failing write has written the first half of its bytes */
    atomic_int_least64_t left;    /* calls that still succeed */
    atomic_uint_least64_t seen;   /* since it was armed: calls that counted, */
    atomic_uint_least64_t failed; /* and calls that failed */
    char dir[256];                /* only files whose path begins so fail; "": all regular files */
    char last[32];                /* the call that failed last */
    atomic_uint real_sync;        /* syncs are done; else they only succeed: no test here cuts the power */
    atomic_uint speed;            /* what nanosleep is divided by; 0: 1 */
};

extern struct faults *faults;

/* From now on the n-th (from 1) call of these classes fails. */
void faults_arm(unsigned what, uint64_t n, bool forever, int cause);

/* No call fails any more; how many did. */
uint64_t faults_disarm(void);

/* Hooks SQLite's and jansson's allocators. Before their first use. */
void faults_install(void);

#endif
