/*
 * Follows all keys with one prefix: reports their state at the beginning, then each change. It changes connections as
 * needed. A stream of etcd may stop reporting without an error, so the whole state is also read again at intervals.
 *
 * Both are reported in the order of etcd's revisions, by these callbacks on the loop's thread:
 *
 *   the whole state   reset_cb, put_cb for each key, settled_cb
 *   changes           put_cb or remove_cb for each changed key, settled_cb
 */
#ifndef AMPD_IO_ETCD_WATCH_H
#define AMPD_IO_ETCD_WATCH_H

#include "server/io/etcd/etcd.h"

struct io_etcd_watch;
struct ampd_etcd_key_value;

struct io_etcd_watch_events {
    /* The whole state follows: forget all keys. */
    void (*reset_cb)(void *arg);
    /* The present value of a key, new or changed. It is valid during the callback. */
    void (*put_cb)(void *arg, const struct ampd_etcd_key_value *kv);
    /* A key was deleted. The bytes are valid during the callback. */
    void (*remove_cb)(void *arg, const uint8_t *key, size_t size);
    /* The keys reported so far are the state at this revision. The watch may be closed in this callback. */
    void (*settled_cb)(void *arg, int64_t revision);
    /* The state cannot be read, which is tried again. Not repeated until a read has succeeded. */
    void (*failed_cb)(void *arg, const struct amp_error *error);
};

/*
 * Begins to follow the keys that begin with `prefix` (1 to 255 ASCII characters), and to read all of them every
 * `poll_ms`. `events` must outlive it. On success *out is the caller's (io_etcd_watch_close). AMP_ENOMEM.
 */
int io_etcd_watch_new(struct io_etcd *etcd, const char *prefix, int64_t poll_ms,
                      const struct io_etcd_watch_events *events, void *arg, struct io_etcd_watch **out);

/* Reads all keys now, because there is reason to think that the known state is outdated. */
void io_etcd_watch_look(struct io_etcd_watch *watch);

/* Why the last read has failed, in a sentence; "": it has succeeded, or none has ended yet. */
const char *io_etcd_watch_failing(const struct io_etcd_watch *watch);

/*
 * Ends the watch; no callback comes any more. It is freed when a read that is under way has ended. The client
 * (io_etcd_close) must be closed after it.
 */
void io_etcd_watch_close(struct io_etcd_watch *watch);

#endif
