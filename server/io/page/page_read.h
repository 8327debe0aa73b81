/*
 * Requests of the page that read the store. A read is made by the function of its path, filled in, begun, and then runs
 * by itself: run_cb on the reader's thread, all else on the loop.
 */
#ifndef AMPD_IO_PAGE_READ_H
#define AMPD_IO_PAGE_READ_H

#include "server/io/page/page_impl.h"

/*
 * A read of the store, in slices, for one request; the first member of the struct of each kind. run_cb reads one slice
 * and sets `more` if it needs another. After the last slice the answer in `json`, or `error`, goes to the request.
 */
struct io_page_read {
    struct io_task task;
    struct io_page *page;
    struct io_page_ask *ask;                      /* the request; NULL: it has ended, and nobody waits for the answer */
    struct ampd_model *held;                      /* the model, held for its spec (ampd_core_hold) */
    const struct ampd_model_spec *spec;           /* the held model's */
    uint32_t model;                               /* index of the model in the core when the read began */
    char key[IO_PAGE_KEY_MAX];                    /* names this request in the cache of answers; "": it is not cached */
    bool more;                                    /* run_cb wants another slice; false before each slice */
    struct amp_error error;                       /* code 0: none; else the request gets it in place of `json` */
    struct io_json json;                          /* the answer */
    void (*run_cb)(struct io_page_read *read);    /* on the reader's thread */
    void (*finish_cb)(struct io_page_read *read); /* on the loop, before the answer, if there is no error; or NULL */
    void (*free_cb)(struct io_page_read *read);   /* frees what the kind owns; or NULL */
};

/*
 * Makes a read of `size` bytes of a model's rows, zeroed but for task, page, ask, json, held, spec and model. NULL: too
 * many are under way, or out of memory, and the request has been refused. The caller has to begin the read, which then
 * frees itself.
 */
struct io_page_read *io_page_read_of(struct io_page_ask *ask, size_t size, uint32_t model,
                                     const struct ampd_model_info *info);
/* Queues the first slice; the request waits from here on. */
void io_page_read_begin(struct io_page_read *read);

#endif
