/* What the files of the page share. page.c has the requests, texts and reads; page_feed.c the streams. */
#ifndef AMPD_IO_PAGE_IMPL_H
#define AMPD_IO_PAGE_IMPL_H

#include "base/list.h"
#include "server/io/base/threads.h"
#include "server/io/page/json.h"
#include "server/io/page/page.h"
#include "server/core/core.h"

#include <stdatomic.h>

#define IO_PAGE_OK          200u
#define IO_PAGE_BAD         400u
#define IO_PAGE_NO_TOKEN    401u
#define IO_PAGE_DENIED      403u
#define IO_PAGE_NOT_FOUND   404u
#define IO_PAGE_MISDIRECTED 421u
#define IO_PAGE_FAILED      500u
#define IO_PAGE_BUSY        503u

#define IO_PAGE_JSON "application/json; charset=utf-8"

/* A model's name, numbers, and what is between them. */
#define IO_PAGE_KEY_MAX 512
/* "Bearer " and the longest token, with the final zero. */
#define IO_PAGE_AUTHORIZATION_MAX 1040
/* Answers that are remembered for the next who asks the same. */
#define IO_PAGE_CACHE_MAX 8

/* A text that answers share. */
struct io_page_text {
    struct io_page *page;
    unsigned refs;
    struct amp_buf buf;
};

struct io_page_cached {
    char key[IO_PAGE_KEY_MAX];
    uint64_t at_ms;
    struct io_page_text *text; /* NULL: the place is free */
};

struct io_page {
    struct ampd_server *server;
    unsigned refs;         /* its owner, texts, feeds and the reads under way */
    struct amp_list asks;  /* io_page_ask, all */
    struct amp_list feeds; /* page_feed.c */
    unsigned streams, reads, texts;
    uint64_t next_tick_ms;
    uint64_t news; /* events of new rows: an answer of before them is not remembered behind them */
    struct io_page_cached cache[IO_PAGE_CACHE_MAX];
    uint64_t refused, cut; /* requests, streams */
    /* Of the disk of the data directory; the reader's thread writes, and the loop reads. */
    atomic_uint_least64_t disk_free, disk_size, disk_at_ms;
};

/* Who asked, as it was seen: a stream is asked again. */
struct io_page_caller {
    char authorization[IO_PAGE_AUTHORIZATION_MAX]; /* "": none */
    char peer[64];
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
    const void *data; /* for ever; NULL: `text`, or `queue` (a refusal) */
    size_t size;
    struct io_page_text *text;
    struct io_page_read *read; /* under way, or NULL */
    /* of a stream: */
    struct io_page_caller caller;
    const char *method;        /* the RPC of the same data, by its name: who may call it, may ask */
    struct io_page_feed *feed; /* its model's, or NULL */
    struct amp_buf queue;
    uint64_t since_ms;
    bool last; /* `gone` was said: it ends once that is read */
    bool ended;
};

/* ---- page.c ---- */

/* Frees it once its owner, its texts and its reads are done with it. */
void io_page_unref(struct io_page *page);

/* Answers with a text that was written; closes json. Its errors are answered as such. */
void io_page_answer_json(struct io_page_ask *ask, unsigned status, struct io_json *json);
void io_page_answer_error(struct io_page_ask *ask, const struct amp_error *error);
void io_page_answer_refusal(struct io_page_ask *ask, unsigned status, const char *reason, const char *text);

/* A model of this server, with its number; else the ask is answered. */
bool io_page_model(struct io_page_ask *ask, const char *name, uint32_t *index, struct ampd_model_info *info);

/* A number of the query, `otherwise` if it is not given; false: it is none, and the ask is answered. */
bool io_page_number(struct io_page_ask *ask, const struct io_page_request *request, const char *name,
                    uint64_t otherwise, uint64_t *value);

/* The answer of this key that is fresh: then the ask is answered with it. */
bool io_page_remembered(struct io_page_ask *ask, const char *key);

/* ---- the others ---- */

/* Whether it may be asked for at all, and by whom (page_access.c); else the ask is answered. */
bool io_page_admit(struct io_page_ask *ask, const struct io_page_request *request, bool data);
bool io_page_admit_again(struct io_page_ask *ask);

/* Whether Host names an address or localhost. */
bool io_page_host_is_ours(const char *host);

bool io_page_asset(struct io_page_ask *ask, const char *path);                       /* page_assets.c */
void io_page_status(struct io_page_ask *ask, const struct io_page_request *request); /* page_status.c */
void io_page_status_write(struct io_page *page, struct io_json *json);
/* One of its models, as a value of that key. */
void io_page_model_status_write(const struct ampd_server *server, uint32_t index, const struct ampd_model_info *info,
                                const char *key, struct io_json *json);
/* What workers tell of a step: "loss" and "metrics" ({name: value}), where they tell some, into an open object. */
void io_page_told_write(const struct ampd_metrics *metrics, struct io_json *json);
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

/* Whether the disk of the data directory is not known, or for some seconds. Any thread. */
bool io_page_disk_is_old(struct io_page *page);
/* Looks at it, if so. On the reader's thread. */
void io_page_disk_look(struct io_page *page);

#endif
