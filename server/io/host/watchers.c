#include "server/io/host/watchers.h"

#include "base/assert.h"
#include "server/io/base/server.h"

void io_watchers_init(struct io_watchers *watchers)
{
    amp_list_init(&watchers->list);
}

void io_watchers_prepare(struct io_watcher *watcher, const struct io_watcher_ops *ops)
{
    amp_list_init(&watcher->node);
    watcher->ops = ops;
}

void io_watchers_add(struct ampd_server *server, struct io_watcher *watcher, uint32_t model)
{
    AMP_ASSERT(model < ampd_core_models_count(server->core) && amp_list_empty(&watcher->node)); /* added once */
    watcher->model = model;
    amp_list_push(&server->watchers->list, &watcher->node);
}

void io_watchers_remove(struct io_watcher *watcher)
{
    amp_list_remove(&watcher->node);
}

void io_watchers_row(struct ampd_server *server, uint32_t model)
{
    AMP_LIST_EACH(it, safe, &server->watchers->list)
    {
        struct io_watcher *watcher = AMP_CONTAINER(it, struct io_watcher, node);
        if (watcher->model == model)
            watcher->ops->row_cb(watcher);
    }
}

void io_watchers_draining(struct ampd_server *server)
{
    AMP_LIST_EACH(it, safe, &server->watchers->list)
    {
        struct io_watcher *watcher = AMP_CONTAINER(it, struct io_watcher, node);
        watcher->ops->draining_cb(watcher);
    }
}

void io_watchers_deleted(struct ampd_server *server, uint32_t model)
{
    AMP_LIST_EACH(it, safe, &server->watchers->list)
    {
        struct io_watcher *watcher = AMP_CONTAINER(it, struct io_watcher, node);
        if (watcher->model == model)
            watcher->ops->deleted_cb(watcher);
    }
}
