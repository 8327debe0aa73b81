/*
 * The page at the HTTP port, and the data behind it: GET alone, nothing is changed. HTTP itself is server/io/http; here
 * a request is a path and its arguments, and an answer bytes.
 *
 *   /                     the page: server/page/, and dygraphs, as they were when ampd was built
 *   /api/status           the server, its shards and models
 *   /api/model            one model: its workers, checkpoints
 *   /api/history          its steps, thinned to a plot (thin.h), and what operators did
 *   /api/pace             how fast its steps come, and came an hour ago
 *   /api/step             one step: what ExplainStep says, and what other policies would have done
 *   /api/events           what changes, as it does: server-sent events
 *
 * Who may ask: page_access.c. What it may take:
 *
 *   reads      IO_PAGE_READS_MAX at a time, each in slices of IO_PAGE_SLICE_ROWS, so that gRPC's reads get their turns
 *   texts      IO_PAGE_TEXTS_MAX, in memory until their readers have them; a repeated question gets the text
 *              of the last IO_PAGE_FRESH_MS. A refusal is none of them: it is the connection's own
 *   streams    IO_PAGE_STREAMS_MAX, each with IO_PAGE_STREAM_BYTES that wait; a further one is refused, and the page
 *              then asks every few seconds. Each ends after IO_PAGE_STREAM_MS, and connects again
 *
 * All of it on the loop.
 */
#ifndef AMPD_IO_PAGE_H
#define AMPD_IO_PAGE_H

#include "base/metric.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ampd_server;
struct io_page;
struct io_page_ask;

#define IO_PAGE_READS_MAX 8
/* A history for 2,000 pixels is 0.6 MB. */
#define IO_PAGE_TEXTS_MAX      16
#define IO_PAGE_TEXT_BYTES_MAX ((size_t)2 << 20)
#define IO_PAGE_FRESH_MS       1000
/* A sentence and a word; each connection may have one. */
#define IO_PAGE_REFUSAL_BYTES 1024
/* People who look at once; Prometheus has connections of its own. */
#define IO_PAGE_STREAMS_MAX 32
/* The longest texts that a second can bring: a status, a model, and steps. */
#define IO_PAGE_STATUS_BYTES ((size_t)96 << 10)
#define IO_PAGE_MODEL_BYTES  ((size_t)64 << 10)
#define IO_PAGE_STEPS_BYTES  ((size_t)32 << 10)
#define IO_PAGE_STREAM_BYTES (IO_PAGE_STATUS_BYTES + IO_PAGE_MODEL_BYTES + IO_PAGE_STEPS_BYTES + 1024)
#define IO_PAGE_STREAM_MS    600000
/* How often something is said on each: also the sign of life. */
#define IO_PAGE_TICK_MS    1000
#define IO_PAGE_SLICE_ROWS 4096
/* Of one history; of a longer one the newest rows, and a zoom shows the others. A quarter of a second for a reader. */
#define IO_PAGE_ROWS_MAX 250000

/* What is asked. Everything is borrowed until io_page_begin returns. */
struct io_page_request {
    const char *path;
    const char *host;          /* the header; NULL: none */
    const char *authorization; /* likewise */
    const char *site;          /* Sec-Fetch-Site */
    const char *peer;          /* "127.0.0.1:40312" */
    void *arg;
    const char *(*argument_cb)(void *arg, const char *name); /* of the query; NULL: not given */
};

/* Whether a path is the page's. */
bool io_page_has(const char *path);

/* NULL: out of memory. To be closed (its reads under way then end by themselves) before it is freed. */
struct io_page *io_page_new(struct ampd_server *server);
void io_page_close(struct io_page *page);
void io_page_free(struct io_page *page);

/*
 * Begins a request. ready_cb is called, never in here, each time something is to be fetched that was not there before:
 * the answer, or more of a stream. NULL: out of memory. The ask is the caller's until io_page_end.
 */
struct io_page_ask *io_page_begin(struct io_page *page, const struct io_page_request *request,
                                  void (*ready_cb)(void *arg), void *arg);
void io_page_end(struct io_page_ask *ask);

/* An answer: its bytes live until io_page_release(hold); where hold is NULL for ever, or until io_page_end (`copy`). */
struct io_page_answer {
    unsigned status;
    const char *type;
    const char *cache;
    const void *data;
    size_t size;
    void *hold;
    bool copy;
};

enum io_page_state {
    IO_PAGE_WAITS,  /* ready_cb tells */
    IO_PAGE_READY,  /* *answer is filled; once: it is the caller's */
    IO_PAGE_STREAMS /* io_page_stream_read, until it says that it has ended */
};
enum io_page_state io_page_take(struct io_page_ask *ask, struct io_page_answer *answer);
void io_page_release(void *hold);

/* Up to `max` bytes of a stream: how many; 0: none now (ready_cb tells); -1: it has ended. */
ptrdiff_t io_page_stream_read(struct io_page_ask *ask, char *bytes, size_t max);

/* Does what is due; how long until something is, UINT64_MAX: nothing will be. */
uint64_t io_page_tick(struct io_page *page, uint64_t now_ms);

/* Headers of every answer of the page, name and value in turn, up to a NULL. */
extern const char *const io_page_headers[];

void io_page_write_metrics(const struct io_page *page, struct amp_metric_text *text);

#endif
