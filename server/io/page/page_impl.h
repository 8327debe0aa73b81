/*
 * What the files of the page share. page.c has the requests, texts and reads; page_feed.c the streams. All on the loop,
 * but for what is said below.
 */
#ifndef AMPD_IO_PAGE_IMPL_H
#define AMPD_IO_PAGE_IMPL_H

#include "base/list.h"
#include "server/io/base/threads.h"
#include "server/io/page/json.h"
#include "server/io/page/page.h"
#include "server/core/core.h"

#define IO_PAGE_OK          200u
#define IO_PAGE_BAD         400u
#define IO_PAGE_NO_TOKEN    401u
#define IO_PAGE_DENIED      403u
#define IO_PAGE_NOT_FOUND   404u
#define IO_PAGE_MISDIRECTED 421u
#define IO_PAGE_FAILED      500u
#define IO_PAGE_BUSY        503u

#define IO_PAGE_JSON "application/json; charset=utf-8"

/* Bytes of a cache key: a model's name, numbers, and what stands between them. */
#define IO_PAGE_KEY_MAX 512
/* "Bearer " and the longest token, with the final zero. */
#define IO_PAGE_AUTHORIZATION_MAX 1040
/* Answers that are kept for the same request, for IO_PAGE_FRESH_MS. */
#define IO_PAGE_CACHE_MAX 8

/* A text that several answers may share. */
struct io_page_text {
    struct io_page *page;
    unsigned refs; /* answers that have it, and the cache; at 0 it is freed */
    struct amp_buf buf;
};

struct io_page_cached {
    char key[IO_PAGE_KEY_MAX];
    uint64_t at_ms;            /* when the text was made; the loop's clock */
    struct io_page_text *text; /* NULL: the place is free */
};

struct io_page {
    struct ampd_server *server;
    unsigned refs;                  /* the owner, each text, feed and read; at 0 the memory is freed */
    struct amp_list asks;           /* struct io_page_ask: all requests under way, with the streams */
    struct amp_list feeds;          /* struct io_page_feed (page_feed.c) */
    unsigned streams, reads, texts; /* how many there are now */
    uint64_t next_tick_ms;          /* when the streams get their next events; the loop's clock */
    uint64_t news; /* rises with new rows for streams; in a history's cache key, so that no older answer is given */
    struct io_page_cached cache[IO_PAGE_CACHE_MAX];
    uint64_t refused, cut; /* requests that were refused, and streams that this server has ended */
};

/* Who made a request. It is kept, since a stream's caller is checked again each second. */
struct io_page_caller {
    char authorization[IO_PAGE_AUTHORIZATION_MAX]; /* "": the header was not given */
    char peer[64];
    bool local; /* the connection comes from this machine */
};

struct io_page_read;

/* A request under way. */
struct io_page_ask {
    struct amp_list node;
    struct io_page *page;
    void (*ready_cb)(void *arg);
    void *arg;
    enum io_page_state state;
    unsigned status;
    const char *type, *cache;
    const void *data; /* the program's own bytes; NULL: the answer is `text`, or else (a refusal) `queue` */
    size_t size;      /* bytes of `data` */
    struct io_page_text *text;
    struct io_page_read *read; /* the read under way for this request, or NULL */
    struct io_page_caller caller;
    const char *method; /* name of the RPC with the same data: whoever may call it may make this request */
    /* The fields below are a stream's. */
    struct io_page_feed *feed; /* events of the stream's model; NULL: it has no model */
    struct amp_buf queue;      /* bytes that were not read yet; also the text of a refusal */
    uint64_t since_ms;         /* when the request began; the loop's clock */
    bool last;                 /* the event `gone` is queued: the stream ends when the queue has been read */
    bool ended;                /* the stream takes no more events, and its next read returns -1 */
};

/* ---- page.c ---- */

/* Drops a reference to the page; with the last one it is freed. */
void io_page_unref(struct io_page *page);

/* Answers with the text in json, which is closed; if there is no room or memory for it, with IO_PAGE_BUSY. */
void io_page_answer_json(struct io_page_ask *ask, unsigned status, struct io_json *json);
/* Answers with a reason and a sentence: those of an error with its status, or those given. */
void io_page_answer_error(struct io_page_ask *ask, const struct amp_error *error);
void io_page_answer_refusal(struct io_page_ask *ask, unsigned status, const char *reason, const char *text);

/* Finds a model by its name (NULL: not given). False: there is none, and the request has been refused. */
bool io_page_model(struct io_page_ask *ask, const char *name, uint32_t *index, struct ampd_model_info *info);

/* Reads a number of the query; `otherwise` if it is not given. False: not a number; the request has been refused. */
bool io_page_number(struct io_page_ask *ask, const struct io_page_request *request, const char *name,
                    uint64_t otherwise, uint64_t *value);

/* Answers from the cache, if it has a fresh text of this key. False: it has none. */
bool io_page_remembered(struct io_page_ask *ask, const char *key);

/* ---- the others ---- */

/* Whether the request may be made, `data` for data (page_access.c). False: it has been refused. */
bool io_page_admit(struct io_page_ask *ask, const struct io_page_request *request, bool data);
/* Whether the caller of a stream may still ask for its data. */
bool io_page_admit_again(struct io_page_ask *ask);

/* Whether the value of Host is an address or localhost, with or without a port. */
bool io_page_host_is_ours(const char *host);

/* Answers with a file of the page; ask NULL: does nothing. False: the path is not one of them. */
bool io_page_asset(struct io_page_ask *ask, const char *path);                       /* page_assets.c */
void io_page_status(struct io_page_ask *ask, const struct io_page_request *request); /* page_status.c */
void io_page_status_write(struct io_page *page, struct io_json *json);
/* Writes the status of one model as an object named `key`. */
void io_page_model_status_write(const struct ampd_server *server, uint32_t index, const struct ampd_model_info *info,
                                const char *key, struct io_json *json);
/* Writes what workers gave for a step: "loss" and "metrics" ({name: value}); "NaN" or "Infinity" where not finite. */
void io_page_metrics_write(const struct ampd_metrics *metrics, struct io_json *json);
void io_page_about_model(struct io_page_ask *ask, const struct io_page_request *request); /* page_model.c */
void io_page_model_write(struct io_page *page, uint32_t model, struct io_json *json);
void io_page_history(struct io_page_ask *ask, const struct io_page_request *request); /* page_history.c */
void io_page_pace(struct io_page_ask *ask, const struct io_page_request *request);    /* page_pace.c */
void io_page_step(struct io_page_ask *ask, const struct io_page_request *request);    /* page_step.c */

/* page_feed.c */
void io_page_events(struct io_page_ask *ask, const struct io_page_request *request);
void io_page_stream_end(struct io_page_ask *ask);
void io_page_feed_tick(struct io_page *page, uint64_t now_ms);
void io_page_feed_close(struct io_page *page);

#endif
