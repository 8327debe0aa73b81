/*
 * Alerts about what keeps the server from storing. The threads that wait for room set theirs, the loop sets SILENT and
 * SHARE, and it shows all of them to clients that ask for the server's status. Those before SILENT wait for room, and
 * make ampd_storage_trouble 1; for SHARE nothing waits yet. Any thread, except new and free.
 */
#ifndef AMPD_IO_STORAGE_ALERT_H
#define AMPD_IO_STORAGE_ALERT_H

#include <stdbool.h>
#include <stddef.h>

struct io_storage_alert;

/* The sources of alerts, each with one alert at a time; an earlier source goes first in io_storage_alert_text. */
enum io_storage_alert_of {
    IO_STORAGE_ALERT_STORE,
    IO_STORAGE_ALERT_JOURNAL,
    IO_STORAGE_ALERT_CHECKPOINT,
    IO_STORAGE_ALERT_REMOVAL, /* the files of a deleted model cannot be removed: no room */
    IO_STORAGE_ALERT_SILENT,  /* a disk neither answers nor fails (disk_silence.h) */
    IO_STORAGE_ALERT_SHARE, /* last: nothing waits yet, but the disk of the checkpoints is nearly full (disk_share.h) */
    IO_STORAGE_ALERT_COUNT
};

/* Makes the alerts, all ended. NULL: out of memory. Freed when no thread uses them any more; NULL is allowed. */
struct io_storage_alert *io_storage_alert_new(void);
void io_storage_alert_free(struct io_storage_alert *alert);

/* Sets an alert to a text, one sentence that is copied, or ends it with "". */
void io_storage_alert_set(struct io_storage_alert *alert, enum io_storage_alert_of whose, const char *text);

/* Copies the text of the first alert that something waits for, cut to `size` bytes with the final zero; "": none. */
void io_storage_alert_text(struct io_storage_alert *alert, char *text, size_t size);

/* Copies the text of SHARE in the same way. It may be set for weeks, so all other troubles go first. */
void io_storage_alert_share_text(struct io_storage_alert *alert, char *text, size_t size);

/*
 * Whether a failed write is tried again, with an alert: there is no room, no memory, or no right to write. Others end
 * the process.
 */
bool io_storage_is_retried(int code);

/* Whether the alert of this source is set. */
bool io_storage_alert_is_on(struct io_storage_alert *alert, enum io_storage_alert_of whose);

#endif
