/*
 * What systemd (Type=notify) and whoever speaks its protocol hear of the process: a datagram of lines "KEY=value" to
 * the socket that NOTIFY_SOCKET names (sd_notify(3), whose text is the interface; no library is needed for it).
 */
#ifndef AMPD_IO_NOTIFY_H
#define AMPD_IO_NOTIFY_H

/*
 * The start, or a reload, is over: calls are served, or the process stands by. `status` as in io_notify_status; NULL:
 * as it is.
 */
void io_notify_ready(const char *status);

/* Files are being read anew; io_notify_ready ends it. */
void io_notify_reloading(void);

/* The process ends. */
void io_notify_stopping(void);

/* One line for people, as `systemctl status` shows it. */
void io_notify_status(const char *text);

#endif
