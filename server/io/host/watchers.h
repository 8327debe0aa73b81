/*
 * Those who want to know when a row of a model is stored, the server drains, or the model is deleted: calls, and what
 * the page shows. They are in folders that this one may not include, so they register callbacks. On the loop's thread.
 */
#ifndef AMPD_IO_WATCHERS_H
#define AMPD_IO_WATCHERS_H

#include "base/list.h"

#include <stdint.h>

struct ampd_server;
struct io_watcher;

struct io_watchers {
    struct amp_list list; /* of struct io_watcher, each embedded in its owner */
};

struct io_watcher_ops {
    void (*row_cb)(struct io_watcher *watcher);      /* a row of its model was stored */
    void (*draining_cb)(struct io_watcher *watcher); /* the server drains: a stream of history is to end */
    void (*deleted_cb)(struct io_watcher *watcher);  /* its model was deleted: the call is to end */
};

/* Embedded in what watches a model. A callback may remove its own watcher, and no other one. */
struct io_watcher {
    struct amp_list node;
    const struct io_watcher_ops *ops;
    uint32_t model; /* its index in the core */
};

/* Sets up an empty list. */
void io_watchers_init(struct io_watchers *watchers);

/*
 * A watcher is prepared, then added once, and removed. io_watchers_remove is allowed at any time after
 * io_watchers_prepare, whether the watcher was added or not. `ops` must outlive it.
 */
void io_watchers_prepare(struct io_watcher *watcher, const struct io_watcher_ops *ops);
void io_watchers_add(struct ampd_server *server, struct io_watcher *watcher, uint32_t model);
void io_watchers_remove(struct io_watcher *watcher);

/* Calls row_cb of all watchers of a model: a row of it was stored. */
void io_watchers_row(struct ampd_server *server, uint32_t model);

/* Calls draining_cb of all watchers: the server drains. */
void io_watchers_draining(struct ampd_server *server);

/* Calls deleted_cb of all watchers of a model, which is deleted. */
void io_watchers_deleted(struct ampd_server *server, uint32_t model);

#endif
