/*
 * /api/events[?model=NAME]: a stream of server-sent events. The first event is `hello` with `after`, `epoch` and
 * `created_ms`: later `steps` events have the steps after step `after`, in that epoch, of the model that was created at
 * that time. A client whose history has another epoch or created_ms has to read it again. Each second every stream gets
 * `status`. A stream of a model also gets `model` (workers and checkpoints), `steps` if there are new ones, in the form
 * of /api/history, `reset` when the history has changed (after a rollback, or a restart of the model), and at the end
 * of the model `gone`.
 *
 * Each event is made once, for all streams: `status` for every one, the others for the streams of a model (its feed).
 * New steps are read from the store, as for WatchSteps, and thinned, so that a model with a thousand steps a second
 * takes no more than one with ten. The event is copied into each stream's queue. If a slow client's queue has no room,
 * an event that comes again in the next second is left out; for others the stream is ended, and the browser connects
 * again.
 */
#include "base/assert.h"
#include "server/io/base/pools.h"
#include "server/io/base/server.h"
#include "server/io/host/watchers.h"
#include "server/io/page/page_impl.h"
#include "server/io/page/thin.h"
#include "storage/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Buckets of one `steps` event, which is about a second of a plot. */
#define FEED_PIXELS 40

/* The events of one model, for all streams that show it. */
struct io_page_feed {
    struct amp_list node; /* in page->feeds */
    struct io_page *page;
    struct io_task task;
    struct ampd_model *held;            /* the model, held for its spec */
    const struct ampd_model_spec *spec; /* names the model: if its index has another spec, it has been deleted */
    int64_t created_us;                 /* UTC time at which the model was created */
    uint32_t model;                     /* its index in the core */
    unsigned refs;                      /* streams, and the read under way */
    struct io_watcher watcher;
    bool stored;                  /* since the last read began, a row was stored, of a step or of an operator's act */
    bool reading;                 /* a read is under way: the reader's thread has thin, rows, error and last_us */
    uint64_t epoch;               /* of the model, when the events began or were last reset */
    struct ampd_history_key last; /* the last row that the streams have got */
    int64_t last_us;              /* UTC time of that row; 0: not known */
    struct io_thin thin;          /* what is read */
    uint32_t rows;                /* how many rows were read, at most IO_PAGE_SLICE_ROWS */
    struct amp_error error;       /* of the read; code 0: none */
};

/* ---- feeds ---- */

static void feed_unref(struct io_page_feed *feed)
{
    if (feed == NULL || --feed->refs > 0)
        return;
    struct io_page *page = feed->page;
    amp_list_remove(&feed->node);
    io_watchers_remove(&feed->watcher);
    ampd_core_let_go(feed->held);
    free(feed);
    io_page_unref(page);
}

/*
 * Has the events begin at the present state; /api/history has what was before. The last decided step is sent again, as
 * its row may not have been in the store when the history was read. If no step was decided yet, acts are sent, too.
 */
static void start_anew(struct io_page_feed *feed, const struct ampd_model_info *info)
{
    uint64_t decided = info->decided_step;
    feed->epoch = info->epoch;
    feed->last = (struct ampd_history_key){info->epoch, decided - (decided > 0), decided > 0 ? UINT32_MAX : 0};
    feed->last_us = 0;
}

static void on_row(struct io_watcher *watcher)
{
    AMP_CONTAINER(watcher, struct io_page_feed, watcher)->stored = true;
}

/* The next tick notices these. */
static void on_end(struct io_watcher *watcher)
{
}

static const struct io_watcher_ops watcher_ops = {.row_cb = on_row, .draining_cb = on_end, .deleted_cb = on_end};

static struct io_page_feed *feed_of(struct io_page *page, uint32_t model, const struct ampd_model_info *info)
{
    AMP_LIST_EACH(it, safe, &page->feeds)
    {
        struct io_page_feed *feed = AMP_CONTAINER(it, struct io_page_feed, node);
        if (feed->model == model && feed->spec == info->spec)
            return feed;
    }
    struct io_page_feed *feed = calloc(1, sizeof *feed);
    if (feed == NULL)
        return NULL;
    feed->page = page;
    feed->model = model;
    feed->spec = info->spec;
    feed->created_us = info->created_us;
    feed->held = ampd_core_hold(page->server->core, model);
    start_anew(feed, info);
    amp_list_push(&page->feeds, &feed->node);
    io_watchers_prepare(&feed->watcher, &watcher_ops);
    io_watchers_add(page->server, &feed->watcher, model);
    page->refs++;
    return feed;
}

/* ---- streams ---- */

static void end_stream(struct io_page_ask *ask)
{
    ask->ended = true;
    ask->page->cut++;
    ask->ready_cb(ask->arg);
}

/* Queues an event for one stream. False: its queue has no room. */
static bool give(struct io_page_ask *ask, const char *event, const struct io_json *json)
{
    char head[40];
    int size = snprintf(head, sizeof head, "event: %s\ndata: ", event);
    if (json->error != 0)
        return true; /* the event could not be written for want of memory: it is left out */
    if (ask->ended || ask->last || amp_buf_reserve(&ask->queue, (size_t)size + json->buf.size + 2) != 0)
        return false;
    (void)amp_buf_append(&ask->queue, head, (size_t)size); /* there is room now */
    (void)amp_buf_append(&ask->queue, json->buf.data, json->buf.size);
    (void)amp_buf_append(&ask->queue, "\n\n", 2);
    ask->ready_cb(ask->arg);
    return true;
}

/* Queues an event for all streams of a feed, and ends those whose queue has no room. */
static void send_all(const struct io_page_feed *feed, const char *event, const struct io_json *json)
{
    AMP_LIST_EACH(it, safe, &feed->page->asks)
    {
        struct io_page_ask *ask = AMP_CONTAINER(it, struct io_page_ask, node);
        if (ask->state == IO_PAGE_STREAMS && ask->feed == feed && !ask->ended && !ask->last && !give(ask, event, json))
            end_stream(ask);
    }
}

static void send_empty(const struct io_page_feed *feed, const char *event)
{
    struct io_json json;
    io_json_init(&json, 64);
    io_json_raw(&json, "{}");
    send_all(feed, event, &json);
    io_json_close(&json);
}

/*
 * Queues the last event about a model. Streams that have not read it by the next tick are ended, to free their places.
 */
static void send_gone(const struct io_page_feed *feed)
{
    send_empty(feed, "gone");
    AMP_LIST_EACH(it, safe, &feed->page->asks)
    {
        struct io_page_ask *ask = AMP_CONTAINER(it, struct io_page_ask, node);
        if (ask->state != IO_PAGE_STREAMS || ask->feed != feed || ask->ended)
            continue;
        if (ask->last)
            end_stream(ask);
        ask->last = true;
    }
}

/* ---- new steps ---- */

static int take_point(void *arg, const struct ampd_history_point *point)
{
    struct io_page_feed *feed = arg;
    feed->rows++;
    feed->last_us = point->at_us;
    io_thin_add(&feed->thin, point);
    return 0;
}

static void feed_run(struct io_task *task)
{
    struct io_page_feed *feed = AMP_CONTAINER(task, struct io_page_feed, task);
    struct ampd_history_key from = feed->last;
    from.sequence += from.sequence < UINT32_MAX;
    feed->rows = 0;
    (void)ampd_store_page_points(feed->page->server->data.reader, feed->spec->name, &from, 0, feed->thin.to,
                                 IO_PAGE_SLICE_ROWS, feed, &feed->error, take_point);
}

static void feed_done(struct io_task *task)
{
    struct io_page_feed *feed = AMP_CONTAINER(task, struct io_page_feed, task);
    struct io_json json;
    feed->reading = false;
    feed->stored = feed->stored || feed->error.code != 0 || feed->rows == IO_PAGE_SLICE_ROWS;
    if (feed->error.code == 0 && feed->rows > 0) {
        feed->last = feed->thin.last;
        feed->thin.to = feed->last.step; /* the next read has the steps after it */
        feed->page->news++;
        io_json_init(&json, IO_PAGE_STEPS_BYTES);
        io_json_open(&json, NULL, '{');
        io_thin_write(&feed->thin, &json);
        io_json_truth(&json, "acts", feed->thin.acts_count > 0);
        io_json_shut(&json, '}');
        send_all(feed, "steps", &json);
        io_json_close(&json);
    }
    io_thin_close(&feed->thin);
    feed_unref(feed);
}

/* Begins a read if there may be new rows. False: the model has been deleted. */
static bool read_on(struct io_page_feed *feed)
{
    struct ampd_model_info info;
    ampd_core_model(feed->page->server->core, feed->model, &info);
    if (info.deleted || info.spec != feed->spec)
        return false;
    if (feed->reading)
        return true;
    if (info.epoch != feed->epoch) {
        start_anew(feed, &info);
        feed->page->news++;
        send_empty(feed, "reset");
        return true;
    }
    /* A row is in the store a little later than in the core; what is not found now is found by the next read. */
    if (info.decided_step < feed->last.step || (!feed->stored && info.decided_step == feed->last.step) ||
        io_thin_init(&feed->thin, feed->last.step, info.decided_step, FEED_PIXELS) != 0)
        return true;
    feed->thin.before_us = feed->last_us;
    feed->error.code = 0;
    feed->reading = true;
    feed->stored = false;
    feed->refs++;
    feed->task = (struct io_task){.run_cb = feed_run, .done_cb = feed_done};
    io_threads_submit(feed->page->server->pools.readers, &feed->task);
    return true;
}

static void tell_of_model(struct io_page_feed *feed)
{
    struct io_json json;
    io_page_model_write(feed->page, feed->model, &json);
    AMP_LIST_EACH(it, safe, &feed->page->asks)
    {
        struct io_page_ask *ask = AMP_CONTAINER(it, struct io_page_ask, node);
        if (ask->state == IO_PAGE_STREAMS && ask->feed == feed)
            (void)give(ask, "model", &json); /* if there is no room, the next second has a newer one */
    }
    io_json_close(&json);
}

/* ---- the tick ---- */

/* Ends streams whose clients may no longer see the data, or that have lasted for IO_PAGE_STREAM_MS. */
static void end_old(struct io_page *page, uint64_t now_ms)
{
    AMP_LIST_EACH(it, safe, &page->asks)
    {
        struct io_page_ask *ask = AMP_CONTAINER(it, struct io_page_ask, node);
        if (ask->state == IO_PAGE_STREAMS && !ask->ended &&
            (now_ms - ask->since_ms >= IO_PAGE_STREAM_MS || !io_page_admit_again(ask)))
            end_stream(ask);
    }
}

static void tell_status(struct io_page *page)
{
    struct io_json json;
    io_page_status_write(page, &json);
    AMP_LIST_EACH(it, safe, &page->asks)
    {
        struct io_page_ask *ask = AMP_CONTAINER(it, struct io_page_ask, node);
        if (ask->state == IO_PAGE_STREAMS && ask->queue.size == 0)
            (void)give(ask, "status", &json);
    }
    io_json_close(&json);
}

void io_page_feed_tick(struct io_page *page, uint64_t now_ms)
{
    end_old(page, now_ms);
    tell_status(page);
    AMP_LIST_EACH(it, safe, &page->feeds)
    {
        struct io_page_feed *feed = AMP_CONTAINER(it, struct io_page_feed, node);
        if (!read_on(feed)) {
            send_gone(feed);
            continue;
        }
        tell_of_model(feed);
    }
}

/* ---- one stream ---- */

static void begin(struct io_page_ask *ask, struct io_page_feed *feed)
{
    struct io_json json;
    struct io_page *page = ask->page;
    ask->state = IO_PAGE_STREAMS;
    ask->status = IO_PAGE_OK;
    ask->feed = feed;
    if (feed != NULL)
        feed->refs++;
    if (page->streams++ == 0)
        page->next_tick_ms = uv_now(&page->server->loop) + IO_PAGE_TICK_MS;
    io_json_init(&json, 64); /* without memory the first status is the first event */
    io_json_open(&json, NULL, '{');
    io_json_count(&json, "after", feed != NULL ? feed->last.step : 0);
    io_json_count(&json, "epoch", feed != NULL ? feed->epoch : 0);
    io_json_count(&json, "created_ms", feed != NULL ? (uint64_t)feed->created_us / 1000 : 0);
    io_json_shut(&json, '}');
    (void)give(ask, "hello", &json);
    io_json_close(&json);
    io_page_status_write(page, &json);
    (void)give(ask, "status", &json);
    io_json_close(&json);
    if (feed == NULL)
        return;
    io_page_model_write(page, feed->model, &json);
    (void)give(ask, "model", &json);
    io_json_close(&json);
}

void io_page_events(struct io_page_ask *ask, const struct io_page_request *request)
{
    struct io_page *page = ask->page;
    const char *name = request->argument_cb(request->arg, "model");
    struct ampd_model_info info;
    struct io_page_feed *feed = NULL;
    uint32_t model;
    if (name != NULL && !io_page_model(ask, name, &model, &info))
        return;
    if (page->streams >= IO_PAGE_STREAMS_MAX) {
        io_page_answer_refusal(ask, IO_PAGE_BUSY, "TOO_MANY_STREAMS",
                               "too many event streams are open; the page polls instead");
        return;
    }
    if (name != NULL && (feed = feed_of(page, model, &info)) == NULL) {
        io_page_answer_refusal(ask, IO_PAGE_BUSY, "EXHAUSTED", "out of memory for events: ask again later");
        return;
    }
    begin(ask, feed);
}

ptrdiff_t io_page_stream_read(struct io_page_ask *ask, char *bytes, size_t max)
{
    if (ask->ended)
        return -1;
    size_t size = ask->queue.size < max ? ask->queue.size : max;
    if (size == 0 && ask->last) {
        ask->ended = true;
        return -1;
    }
    if (size == 0) {
        amp_buf_close(&ask->queue); /* so a stream that waits takes no memory */
        return 0;
    }
    memcpy(bytes, ask->queue.data, size);
    amp_buf_consume(&ask->queue, size);
    return (ptrdiff_t)size;
}

void io_page_stream_end(struct io_page_ask *ask)
{
    ask->page->streams--;
    ask->state = IO_PAGE_WAITS; /* nothing more is sent */
    feed_unref(ask->feed);
    ask->feed = NULL;
}

void io_page_feed_close(struct io_page *page)
{
    AMP_LIST_EACH(it, safe, &page->asks)
    {
        struct io_page_ask *ask = AMP_CONTAINER(it, struct io_page_ask, node);
        if (ask->state == IO_PAGE_STREAMS && !ask->ended)
            end_stream(ask);
    }
}
