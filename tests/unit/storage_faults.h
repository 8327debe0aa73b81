/*
 * Makes the disk fail: stands in front of the C library's fsync, write, pread, fallocate and flock calls, for this
 * program and for SQLite. Counts are of calls from now on; 0 means never.
 */
#ifndef AMPD_TESTS_STORAGE_FAULTS_H
#define AMPD_TESTS_STORAGE_FAULTS_H

struct storage_faults {
    unsigned fsyncs, writes, reads; /* calls seen */
    unsigned fail_fsync_at;         /* this one and all later ones fail with EIO */
    unsigned fail_write_at;         /* this one and all later ones fail with `write_errno` */
    int write_errno;
    unsigned fail_read_at; /* this one and all later ones fail with EIO */
    unsigned fail_locks;   /* so many calls of flock fail, */
    int lock_errno;        /* with this */
    int scarce_room;       /* fallocate makes half of the room, and fails with ENOSPC */
    int no_fallocate;      /* it fails with EOPNOTSUPP, as on NFS */
    int refuse_direct;     /* reads and writes past the page cache fail with EINVAL */
};

extern struct storage_faults storage_faults;

/* No faults, counts zero. */
void storage_faults_clear(void);

#endif
