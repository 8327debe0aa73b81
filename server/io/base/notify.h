/*
 * Notifies systemd (Type=notify), or another service manager with its protocol, of the state of the process: a datagram
 * of lines "KEY=value" to the socket that NOTIFY_SOCKET names (sd_notify(3) documents the protocol, so no library is
 * needed). Never blocks, and failures are ignored; without NOTIFY_SOCKET nothing is sent. Any thread.
 */
#ifndef AMPD_IO_NOTIFY_H
#define AMPD_IO_NOTIFY_H

#include <stdint.h>

/*
 * The start, or a reload, is over: calls are served, or the process stands by. `status` is a line as in
 * io_notify_status; NULL: it stays as it is.
 */
void io_notify_ready(const char *status);

/* A reload has begun: files are being read again. io_notify_ready ends it. */
void io_notify_reloading(void);

/*
 * A signal, as the manager sends it to end the process, has come. The end takes no longer than this: the manager kills
 * the process only then.
 */
void io_notify_stopping(uint64_t within_ms);

/* Sets the line of status that `systemctl status` shows. */
void io_notify_status(const char *text);

#endif
