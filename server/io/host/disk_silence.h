/*
 * Watches whether the disks answer, and raises an alert (storage_alert.h) if one is silent for long. On the loop's
 * thread.
 */
#ifndef AMPD_IO_DISK_SILENCE_H
#define AMPD_IO_DISK_SILENCE_H

#include <uv.h>

struct ampd_server;

struct io_disk_silence {
    uv_timer_t timer;
};

/* Opens the timer, which looks once a second while the server runs or drains; closes it. */
void io_disk_silence_open(struct ampd_server *server);
void io_disk_silence_close(struct ampd_server *server);

#endif
