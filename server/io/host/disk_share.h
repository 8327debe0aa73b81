/*
 * Watches how full the file system of the checkpoints is, which the page shows, and raises an alert (storage_alert.h)
 * if the next checkpoint would fill it beyond --checkpoint-disk-share. On the loop's thread.
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
    bool looking;                     /* the files' thread is asking the file system */
    uint64_t total_bytes, free_bytes; /* at the last look, as in struct io_disk_room; 0: not known yet */
};

/* The sizes of a file system, and of the checkpoint that comes next. */
struct io_disk_room {
    uint64_t total_bytes, free_bytes; /* without the reserve for root, as df counts them */
    uint64_t next_bytes;              /* of the next checkpoint; 0: none is expected */
};

/*
 * The share of the file system in use once next_bytes are written, in percent rounded up, at most 1000: above 100 where
 * they do not fit. Pure.
 */
uint32_t io_disk_share_after(const struct io_disk_room *room);

/* Opens the timer, and closes it. */
void io_disk_share_open(struct ampd_server *server);
void io_disk_share_close(struct ampd_server *server);

/* Looks at once, and from then on every few seconds while the server runs. */
void io_disk_share_start(struct ampd_server *server);

#endif
