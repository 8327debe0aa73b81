/*
 * Follows all keys with one prefix: their state at the beginning, then each change, over whatever connections it takes.
 *
 * What a stream of etcd's tells could stop without a word; so the state is read again now and then, too. The reader is
 * told of both in the same way, in the order of etcd's revisions:
 *
 *   [reset, ] then put or remove for each key, then settled
 */
#ifndef AMPD_IO_ETCD_WATCH_H
#define AMPD_IO_ETCD_WATCH_H

#include "server/io/etcd/etcd.h"

struct io_etcd_watch;
struct ampd_etcd_key_value;

struct io_etcd_watch_events {
    /* All keys that there are follow. */
    void (*reset_cb)(void *arg);
    /* A key as it is now. Valid during the callback. */
    void (*put_cb)(void *arg, const struct ampd_etcd_key_value *kv);
    /* This key is gone. */
    void (*remove_cb)(void *arg, const uint8_t *key, size_t size);
    /* That is the state of this revision. The watch may be closed in it. */
    void (*settled_cb)(void *arg, int64_t revision);
    /* The state cannot be read; it is tried again. Said once, until it can. */
    void (*failed_cb)(void *arg, const struct amp_error *error);
};

/*
 * Follows the keys that begin with `prefix`, and reads them all every `poll_ms`. `events` must outlive it. On success
 * *out is the caller's (io_etcd_watch_close). AMP_ENOMEM.
 */
int io_etcd_watch_new(struct io_etcd *etcd, const char *prefix, int64_t poll_ms,
                      const struct io_etcd_watch_events *events, void *arg, struct io_etcd_watch **out);

/* Reads them now: something says that the state is another one. */
void io_etcd_watch_look(struct io_etcd_watch *watch);

/* Why the state cannot be read, in a sentence, since failed_cb has said so; "": it could be the last time. */
const char *io_etcd_watch_failing(const struct io_etcd_watch *watch);

/* Frees it once what is under way has ended; no callback comes any more. The etcd must be closed after it. */
void io_etcd_watch_close(struct io_etcd_watch *watch);

#endif
