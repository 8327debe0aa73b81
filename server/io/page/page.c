/*
 * Requests to the page. Each path of the data has a function, which answers at once or begins a read of the store. A
 * text made within the last IO_PAGE_FRESH_MS is given again for the same request, so that ten browsers that show one
 * model cost about as much as one.
 */
#include "base/assert.h"
#include "server/io/base/pools.h"
#include "server/io/base/server.h"
#include "server/io/page/page_read.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * The page may load only what this server serves, and no script or style that is in its HTML. So even if a name got
 * into the page as HTML in spite of all care, nothing would run it.
 */
const char *const io_page_headers[] = {
    "Content-Security-Policy",
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options",
    "nosniff",
    "X-Frame-Options",
    "DENY",
    "Referrer-Policy",
    "no-referrer",
    "Cross-Origin-Resource-Policy",
    "same-origin",
    "Cross-Origin-Opener-Policy",
    "same-origin",
    NULL};

/* ---- texts ---- */

static struct io_page_text *text_new(struct io_page *page, struct io_json *json)
{
    struct io_page_text *text = json->error == 0 && page->texts < IO_PAGE_TEXTS_MAX ? calloc(1, sizeof *text) : NULL;
    if (text != NULL) {
        *text = (struct io_page_text){.page = page, .refs = 1, .buf = json->buf};
        page->texts++;
        page->refs++;
        amp_buf_init(&json->buf, 0); /* the text owns the memory now */
    }
    io_json_close(json);
    return text;
}

void io_page_unref(struct io_page *page)
{
    if (--page->refs == 0)
        free(page);
}

static void text_unref(struct io_page_text *text)
{
    if (text == NULL || --text->refs > 0)
        return;
    struct io_page *page = text->page;
    page->texts--;
    amp_buf_close(&text->buf);
    free(text);
    io_page_unref(page);
}

void io_page_release(void *hold)
{
    text_unref(hold);
}

static void remember(struct io_page *page, const char *key, struct io_page_text *text)
{
    struct io_page_cached *oldest = &page->cache[0];
    for (size_t i = 0; i < IO_PAGE_CACHE_MAX; i++) {
        struct io_page_cached *cached = &page->cache[i];
        bool same = cached->text != NULL && strcmp(cached->key, key) == 0;
        if (same || cached->text == NULL || (oldest->text != NULL && cached->at_ms < oldest->at_ms))
            oldest = cached;
        if (same)
            break;
    }
    text_unref(oldest->text);
    text->refs++;
    oldest->text = text;
    oldest->at_ms = uv_now(&page->server->loop);
    (void)snprintf(oldest->key, sizeof oldest->key, "%s", key);
}

/* Drops texts that are no longer fresh from the cache; with `all` the others, too. */
static void forget_old(struct io_page *page, uint64_t now_ms, bool all)
{
    for (size_t i = 0; i < IO_PAGE_CACHE_MAX; i++) {
        struct io_page_cached *cached = &page->cache[i];
        if (cached->text == NULL || (!all && now_ms - cached->at_ms < IO_PAGE_FRESH_MS))
            continue;
        text_unref(cached->text);
        cached->text = NULL;
    }
}

/* ---- answers ---- */

static void answer(struct io_page_ask *ask, unsigned status, const char *type, struct io_page_text *text)
{
    static const char busy[] =
        "{\"error\":\"no memory for the answer, or too many slow readers hold theirs: ask again later\"}\n";
    ask->state = IO_PAGE_READY;
    ask->status = text != NULL ? status : IO_PAGE_BUSY;
    ask->type = type;
    ask->cache = "no-store";
    ask->text = text;
    if (text != NULL)
        return;
    ask->data = busy;
    ask->size = sizeof busy - 1;
    ask->page->refused++;
}

void io_page_answer_json(struct io_page_ask *ask, unsigned status, struct io_json *json)
{
    answer(ask, status, IO_PAGE_JSON, text_new(ask->page, json));
}

static void write_refusal(struct io_json *json, const char *reason, const char *text)
{
    io_json_init(json, IO_PAGE_REFUSAL_BYTES);
    io_json_open(json, NULL, '{');
    io_json_text(json, "error", text);
    io_json_text(json, "reason", reason);
    io_json_shut(json, '}');
    io_json_raw(json, "\n");
}

/* The refusal is in the request's own memory, so that refused requests use up none of the IO_PAGE_TEXTS_MAX texts. */
void io_page_answer_refusal(struct io_page_ask *ask, unsigned status, const char *reason, const char *text)
{
    struct io_json json;
    write_refusal(&json, reason, text);
    if (json.error == AMP_EEXHAUSTED) { /* the text has a name of unusual characters, each of which is escaped */
        io_json_close(&json);
        write_refusal(&json, reason, reason);
    }
    answer(ask, status, IO_PAGE_JSON, NULL);
    if (json.error == 0) {
        ask->status = status;
        ask->data = NULL;
        amp_buf_close(&ask->queue);
        ask->queue = json.buf; /* the request owns the memory now; it is not a stream */
        amp_buf_init(&json.buf, 0);
    }
    io_json_close(&json);
}

static unsigned status_of(int code)
{
    switch (code) {
    case AMP_EINVAL:
        return IO_PAGE_BAD;
    case AMP_EUNAUTHENTICATED:
        return IO_PAGE_NO_TOKEN;
    case AMP_EDENIED:
        return IO_PAGE_DENIED;
    case AMP_ENOTFOUND:
    case AMP_ERANGE:
        return IO_PAGE_NOT_FOUND;
    case AMP_ENOMEM:
    case AMP_EEXHAUSTED:
    case AMP_EUNAVAILABLE:
        return IO_PAGE_BUSY;
    default:
        return IO_PAGE_FAILED;
    }
}

void io_page_answer_error(struct io_page_ask *ask, const struct amp_error *error)
{
    io_page_answer_refusal(ask, status_of(error->code), error->reason, error->text);
}

bool io_page_remembered(struct io_page_ask *ask, const char *key)
{
    struct io_page *page = ask->page;
    forget_old(page, uv_now(&page->server->loop), false);
    for (size_t i = 0; i < IO_PAGE_CACHE_MAX; i++) {
        struct io_page_text *text = page->cache[i].text;
        if (text == NULL || strcmp(page->cache[i].key, key) != 0)
            continue;
        text->refs++;
        answer(ask, IO_PAGE_OK, IO_PAGE_JSON, text);
        return true;
    }
    return false;
}

bool io_page_model(struct io_page_ask *ask, const char *name, uint32_t *index, struct ampd_model_info *info)
{
    const struct ampd_server *server = ask->page->server;
    int64_t found = name != NULL ? ampd_core_find(server->core, name) : -1;
    if (found < 0) {
        char text[AMP_ERROR_TEXT_MAX] = "give a model: ?model=NAME";
        if (name != NULL)
            (void)snprintf(text, sizeof text,
                           "there is no model %s on this server; /api/status lists those that there are", name);
        io_page_answer_refusal(ask, name != NULL ? IO_PAGE_NOT_FOUND : IO_PAGE_BAD, "MODEL_NOT_FOUND", text);
        return false;
    }
    *index = (uint32_t)found;
    ampd_core_model(server->core, *index, info);
    return true;
}

bool io_page_number(struct io_page_ask *ask, const struct io_page_request *request, const char *name,
                    uint64_t otherwise, uint64_t *value)
{
    const char *text = request->argument_cb(request->arg, name);
    *value = otherwise;
    if (text == NULL)
        return true;
    errno = 0;
    *value = strtoull(text, NULL, 10);
    if (text[0] != 0 && strspn(text, "0123456789") == strlen(text) && errno == 0 && *value <= INT64_MAX)
        return true;
    char sentence[AMP_ERROR_TEXT_MAX];
    (void)snprintf(sentence, sizeof sentence, "%s: %s is not a number that is possible here; give digits only", name,
                   text);
    io_page_answer_refusal(ask, IO_PAGE_BAD, "INVALID_ARGUMENT", sentence);
    return false;
}

/* ---- reads ---- */

static void read_free(struct io_page_read *read)
{
    struct io_page *page = read->page;
    if (read->free_cb != NULL)
        read->free_cb(read);
    io_json_close(&read->json);
    ampd_core_let_go(read->held);
    if (read->ask != NULL)
        read->ask->read = NULL;
    page->reads--;
    free(read);
    io_page_unref(page);
}

static void read_run(struct io_task *task)
{
    struct io_page_read *read = AMP_CONTAINER(task, struct io_page_read, task);
    read->more = false;
    if (read->error.code == 0)
        read->run_cb(read);
}

static void read_answer(struct io_page_read *read)
{
    struct io_page_ask *ask = read->ask;
    struct io_page *page = read->page;
    if (read->finish_cb != NULL && read->error.code == 0)
        read->finish_cb(read);
    if (read->error.code != 0) {
        io_page_answer_error(ask, &read->error);
        return;
    }
    io_page_answer_json(ask, IO_PAGE_OK, &read->json);
    if (ask->text != NULL && read->key[0] != 0)
        remember(page, read->key, ask->text);
}

static void read_done(struct io_task *task)
{
    struct io_page_read *read = AMP_CONTAINER(task, struct io_page_read, task);
    struct io_page_ask *ask = read->ask;
    if (ask != NULL && read->more && read->error.code == 0) {
        io_threads_submit(read->page->server->pools.readers, &read->task);
        return;
    }
    if (ask != NULL)
        read_answer(read);
    read_free(read);
    if (ask != NULL)
        ask->ready_cb(ask->arg);
}

struct io_page_read *io_page_read_of(struct io_page_ask *ask, size_t size, uint32_t model,
                                     const struct ampd_model_info *info)
{
    struct io_page *page = ask->page;
    struct io_page_read *read = page->reads < IO_PAGE_READS_MAX ? calloc(1, size) : NULL;
    if (read == NULL) {
        io_page_answer_refusal(ask, IO_PAGE_BUSY, "BUSY", "too many requests for the history at once: try again");
        return NULL;
    }
    *read = (struct io_page_read){.task = {.run_cb = read_run, .done_cb = read_done},
                                  .page = page,
                                  .ask = ask,
                                  .held = ampd_core_hold(page->server->core, model),
                                  .spec = info->spec,
                                  .model = model};
    io_json_init(&read->json, IO_PAGE_TEXT_BYTES_MAX);
    page->reads++;
    page->refs++;
    return read;
}

void io_page_read_begin(struct io_page_read *read)
{
    read->ask->read = read;
    read->ask->state = IO_PAGE_WAITS;
    io_threads_submit(read->page->server->pools.readers, &read->task);
}

/* ---- requests ---- */

static const struct {
    const char *path;
    const char *method;
    void (*ask)(struct io_page_ask *ask, const struct io_page_request *request);
} paths[] = {
    {"/api/status", "GetStatus", io_page_status},
    {"/api/model", "GetStatus", io_page_about_model},
    {"/api/history", "ListScaleHistory", io_page_history},
    {"/api/pace", "ListScaleHistory", io_page_pace},
    {"/api/step", "ExplainStep", io_page_step},
    {"/api/events", "WatchSteps", io_page_events},
};

#define API "/api/"

bool io_page_has(const char *path)
{
    return strncmp(path, API, sizeof API - 1) == 0 || io_page_asset(NULL, path);
}

static void ask_path(struct io_page_ask *ask, const struct io_page_request *request)
{
    bool data = strncmp(request->path, API, sizeof API - 1) == 0;
    size_t i = 0;
    while (i < sizeof paths / sizeof *paths && strcmp(paths[i].path, request->path) != 0)
        i++;
    ask->method = paths[i < sizeof paths / sizeof *paths ? i : 0].method;
    if (!io_page_admit(ask, request, data))
        return;
    if (!data)
        (void)io_page_asset(ask, request->path);
    else if (i == sizeof paths / sizeof *paths)
        io_page_answer_refusal(ask, IO_PAGE_NOT_FOUND, "NOT_FOUND",
                               "there is no such path; there are /api/status, model, history, pace, step and events");
    else if (ask->page->server->core == NULL)
        io_page_answer_refusal(ask, IO_PAGE_BUSY, "STARTING",
                               "this server is starting, or waits for a place in its cluster");
    else
        paths[i].ask(ask, request);
}

struct io_page_ask *io_page_begin(struct io_page *page, const struct io_page_request *request,
                                  void (*ready_cb)(void *arg), void *arg)
{
    struct io_page_ask *ask = calloc(1, sizeof *ask);
    if (ask == NULL)
        return NULL;
    ask->page = page;
    ask->ready_cb = ready_cb;
    ask->arg = arg;
    ask->since_ms = uv_now(&page->server->loop);
    amp_buf_init(&ask->queue, IO_PAGE_STREAM_BYTES);
    amp_list_push(&page->asks, &ask->node);
    ask_path(ask, request);
    return ask;
}

enum io_page_state io_page_take(struct io_page_ask *ask, struct io_page_answer *given)
{
    if (ask->state != IO_PAGE_READY)
        return ask->state;
    *given = (struct io_page_answer){ask->status, ask->type, ask->cache, ask->data, ask->size, ask->text, false};
    if (ask->text == NULL && ask->data == NULL) {
        given->data = ask->queue.data;
        given->size = ask->queue.size;
        given->copy = true;
    } else if (ask->text != NULL) {
        given->data = ask->text->buf.data;
        given->size = ask->text->buf.size;
        ask->text = NULL;
    }
    return IO_PAGE_READY;
}

void io_page_end(struct io_page_ask *ask)
{
    if (ask->state == IO_PAGE_STREAMS)
        io_page_stream_end(ask);
    if (ask->read != NULL) {
        struct io_page_read *read = ask->read;
        read->ask = NULL;
        if (io_threads_take_back(ask->page->server->pools.readers, &read->task))
            read_free(read);
    }
    text_unref(ask->text);
    amp_list_remove(&ask->node);
    amp_buf_close(&ask->queue);
    free(ask);
}

/* ---- life ---- */

struct io_page *io_page_new(struct ampd_server *server)
{
    struct io_page *page = calloc(1, sizeof *page);
    if (page == NULL)
        return NULL;
    page->server = server;
    page->refs = 1;
    amp_list_init(&page->asks);
    amp_list_init(&page->feeds);
    return page;
}

uint64_t io_page_tick(struct io_page *page, uint64_t now_ms)
{
    if (page->streams == 0)
        return UINT64_MAX;
    if (now_ms >= page->next_tick_ms) {
        page->next_tick_ms = now_ms + IO_PAGE_TICK_MS;
        io_page_feed_tick(page, now_ms);
    }
    return page->next_tick_ms - now_ms;
}

void io_page_close(struct io_page *page)
{
    forget_old(page, 0, true);
    io_page_feed_close(page);
}

void io_page_free(struct io_page *page)
{
    AMP_ASSERT(amp_list_empty(&page->asks));
    io_page_unref(page);
}

void io_page_write_metrics(const struct io_page *page, struct amp_metric_text *text)
{
    static const struct amp_metric streams = {"ampd_page_streams", AMP_METRIC_GAUGE,
                                              "Event streams of the page that are open"};
    static const struct amp_metric refused = {"ampd_page_refused_total", AMP_METRIC_COUNTER,
                                              "Requests of the page that were refused"};
    static const struct amp_metric cut = {
        "ampd_page_streams_cut_total", AMP_METRIC_COUNTER,
        "Event streams of the page that the server ended: ten minutes old, not read, or no longer allowed"};
    amp_metric_one(text, &streams, page != NULL ? (double)page->streams : 0);
    amp_metric_one(text, &refused, page != NULL ? (double)page->refused : 0);
    amp_metric_one(text, &cut, page != NULL ? (double)page->cut : 0);
}
