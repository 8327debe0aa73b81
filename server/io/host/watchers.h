/* Who wants to hear that rows of a model were stored: streams of the folders above, which this one does not know. */
#ifndef AMPD_IO_WATCHERS_H
#define AMPD_IO_WATCHERS_H

#include "base/list.h"

#include <stdint.h>

struct ampd_server;
struct io_watcher;

struct io_watchers {
    struct amp_list list; /* io_watcher */
};

struct io_watcher_ops {
    void (*row_cb)(struct io_watcher *watcher);      /* a row was stored */
    void (*draining_cb)(struct io_watcher *watcher); /* the server ends */
    void (*deleted_cb)(struct io_watcher *watcher);  /* the model is deleted */
};

/* A member of who watches. Each callback may take its own watcher away, and no other one. */
struct io_watcher {
    struct amp_list node;
    const struct io_watcher_ops *ops;
    uint32_t model; /* index */
};

void io_watchers_init(struct io_watchers *watchers);

/* Not on a list yet: io_watchers_remove is allowed from here on. */
void io_watchers_prepare(struct io_watcher *watcher, const struct io_watcher_ops *ops);
void io_watchers_add(struct ampd_server *server, struct io_watcher *watcher, uint32_t model);
void io_watchers_remove(struct io_watcher *watcher);

/* A row of a model was stored. */
void io_watchers_row(struct ampd_server *server, uint32_t model);

/* The server drains. */
void io_watchers_draining(struct ampd_server *server);

/* The model is deleted. */
void io_watchers_deleted(struct ampd_server *server, uint32_t model);

#endif
