/*
 * What keeps the server from storing, for those who ask how it stands. Told by the threads that wait, read by the loop.
 */
#ifndef AMPD_IO_STORAGE_ALERT_H
#define AMPD_IO_STORAGE_ALERT_H

#include <stdbool.h>
#include <stddef.h>

struct io_storage_alert;

/* Who waits. Each has one alert at a time. */
enum io_storage_alert_of {
    IO_STORAGE_ALERT_STORE,
    IO_STORAGE_ALERT_JOURNAL,
    IO_STORAGE_ALERT_CHECKPOINT,
    IO_STORAGE_ALERT_SHARE, /* the last: nobody waits yet, but the disk of the checkpoints is nearly full */
    IO_STORAGE_ALERT_COUNT
};

/* NULL: out of memory. Freed by io_storage_alert_free, when no thread uses it any more; NULL is allowed. */
struct io_storage_alert *io_storage_alert_new(void);
void io_storage_alert_free(struct io_storage_alert *alert);

/* Sets (or with "" ends) an alert: what is wrong, in one sentence. Any thread. */
void io_storage_alert_set(struct io_storage_alert *alert, enum io_storage_alert_of whose, const char *text);

/* The first alert there is, cut to `size` bytes with the final zero; "": none. Any thread. */
void io_storage_alert_text(struct io_storage_alert *alert, char *text, size_t size);

/* Whether there is an alert of this one. Any thread. */
bool io_storage_alert_is_on(struct io_storage_alert *alert, enum io_storage_alert_of whose);

#endif
