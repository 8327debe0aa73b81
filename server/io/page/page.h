/*
 * The page at the HTTP port, and the data that it shows. Requests only read. Here a request is a path with arguments,
 * and an answer is bytes; HTTP itself is done by server/io/http.
 *
 *   /                     the page: server/page/ and dygraphs, compiled into ampd
 *   /api/status           the server, its shards and models
 *   /api/model            one model: its workers and checkpoints
 *   /api/history          the steps of a model, thinned to a plot (thin.h), and the actions of operators
 *   /api/pace             how many steps a second the model does now, and did an hour ago
 *   /api/step             one step: what ExplainStep answers, and what other policies would have done
 *   /api/events           changes, as they happen: server-sent events
 *
 * page_access.c says who may ask. The resources of all requests together are bounded:
 *
 *   reads      IO_PAGE_READS_MAX at a time, each in slices of IO_PAGE_SLICE_ROWS, so that gRPC's reads get their turns
 *   texts      IO_PAGE_TEXTS_MAX, in memory until they have been sent; the same request within IO_PAGE_FRESH_MS gets
 *              the same text again. A refusal does not count: it is in the request's own memory
 *   streams    IO_PAGE_STREAMS_MAX, each with at most IO_PAGE_STREAM_BYTES not yet sent. One more is refused, and the
 *              page then polls every few seconds. Each ends after IO_PAGE_STREAM_MS, and the browser connects again
 *
 * All functions and callbacks are called on the loop.
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
/* Texts, and bytes of each: a history for 2,000 pixels takes 0.6 MB. */
#define IO_PAGE_TEXTS_MAX      16
#define IO_PAGE_TEXT_BYTES_MAX ((size_t)2 << 20)
#define IO_PAGE_FRESH_MS       1000
/* Most bytes of a refusal, a sentence and a reason; each connection may have one. */
#define IO_PAGE_REFUSAL_BYTES 1024
/* Browsers that can have a stream at the same time; Prometheus has connections of its own. */
#define IO_PAGE_STREAMS_MAX 32
/* Most bytes of each event that a stream gets in a second: `status`, `model` and `steps`. */
#define IO_PAGE_STATUS_BYTES ((size_t)96 << 10)
#define IO_PAGE_MODEL_BYTES  ((size_t)64 << 10)
#define IO_PAGE_STEPS_BYTES  ((size_t)32 << 10)
#define IO_PAGE_STREAM_BYTES (IO_PAGE_STATUS_BYTES + IO_PAGE_MODEL_BYTES + IO_PAGE_STEPS_BYTES + 1024)
#define IO_PAGE_STREAM_MS    600000
/* Time between two events on each stream; by them a browser also sees that the server is there. */
#define IO_PAGE_TICK_MS    1000
#define IO_PAGE_SLICE_ROWS 4096
/*
 * Most rows that one history reads, which takes a reader a quarter of a second. Of a longer history the newest rows are
 * read, and a zoom shows the others.
 */
#define IO_PAGE_ROWS_MAX 250000

/* A request. All of it is borrowed until io_page_begin returns. */
struct io_page_request {
    const char *path;                                        /* without the query */
    const char *host;                                        /* header Host; NULL: not given */
    const char *authorization;                               /* header Authorization; NULL: not given */
    const char *site;                                        /* header Sec-Fetch-Site; NULL: not given */
    const char *peer;                                        /* address of the client, as "127.0.0.1:40312" */
    const char *local;                                       /* that it has connected to, as "127.0.0.1:7421" */
    void *arg;                                               /* for argument_cb */
    const char *(*argument_cb)(void *arg, const char *name); /* value of an argument of the query; NULL: not given */
};

/* Whether a path belongs to the page or its data (/api/...). */
bool io_page_has(const char *path);

/*
 * Makes the page; NULL: out of memory. io_page_close ends all streams, and has to come before io_page_free. By the time
 * of io_page_free all requests must have ended; reads under way keep the memory until they are done.
 */
struct io_page *io_page_new(struct ampd_server *server);
void io_page_close(struct io_page *page);
void io_page_free(struct io_page *page);

/*
 * Begins a request, which the caller ends with io_page_end. NULL: out of memory. The answer may be there at once
 * (io_page_take). ready_cb is called, never within this function, when an answer or more of a stream is there that was
 * not there before; it must not call io_page_end.
 */
struct io_page_ask *io_page_begin(struct io_page *page, const struct io_page_request *request,
                                  void (*ready_cb)(void *arg), void *arg);
void io_page_end(struct io_page_ask *ask);

/* An answer. Its type and cache are texts of the program; `hold` and `copy` say how long the data is valid. */
struct io_page_answer {
    unsigned status;   /* HTTP status */
    const char *type;  /* header Content-Type */
    const char *cache; /* header Cache-Control */
    const void *data;
    size_t size; /* bytes of the data */
    void *hold;  /* not NULL: the data is valid until the caller calls io_page_release(hold), which it must do once */
    bool copy;   /* hold is NULL. true: the data is valid until io_page_end; false: as long as the process */
};

enum io_page_state {
    IO_PAGE_WAITS,  /* there is no answer yet; ready_cb will be called */
    IO_PAGE_READY,  /* *answer is filled in. io_page_take gives it once */
    IO_PAGE_STREAMS /* the answer is a stream: io_page_stream_read gives its bytes */
};
/* How far a request is; fills in *answer if it is IO_PAGE_READY. */
enum io_page_state io_page_take(struct io_page_ask *ask, struct io_page_answer *answer);
void io_page_release(void *hold);

/*
 * Takes up to `max` bytes of a stream, and returns how many. 0: there are none now, and ready_cb will be called when
 * there are; -1: the stream has ended.
 */
ptrdiff_t io_page_stream_read(struct io_page_ask *ask, char *bytes, size_t max);

/*
 * Sends the events of all streams, if they are due. Returns in how many milliseconds it has to be called again;
 * UINT64_MAX: there are no streams.
 */
uint64_t io_page_tick(struct io_page *page, uint64_t now_ms);

/* Headers for all answers of the page: names and values in turn, then NULL. */
extern const char *const io_page_headers[];

/* Writes the metrics ampd_page_*. page NULL: all are 0. */
void io_page_write_metrics(const struct io_page *page, struct amp_metric_text *text);

#endif
