/*
 * The file system of the checkpoints, looked at before it is full: whether the next checkpoint would fill it beyond
 * --checkpoint-disk-share.
 */
#ifndef AMPD_IO_DISK_SHARE_H
#define AMPD_IO_DISK_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct ampd_server;

struct io_disk_share {
    uv_timer_t timer;
    bool looking; /* a look is under way on the files' thread */
};

/* What a file system holds, and the checkpoint that comes next. */
struct io_disk_room {
    uint64_t total_bytes, free_bytes; /* free: to a user who is not root, as df counts it */
    uint64_t next_bytes;
};

/* The share in use, percent rounded up, once `next_bytes` are written: 100 and more where they have no room. */
uint32_t io_disk_share_after(const struct io_disk_room *room);

/* Opens the timer, and begins to look. On the loop. */
void io_disk_share_open(struct ampd_server *server);
void io_disk_share_close(struct ampd_server *server);

#endif
