/* Requests of the page for which the store is read. */
#ifndef AMPD_IO_PAGE_READ_H
#define AMPD_IO_PAGE_READ_H

#include "server/io/page/page_impl.h"

/*
 * Something that the store is read for, in slices on the reader's thread: run_cb says whether it wants another one;
 * done_cb then writes the answer, on the loop: `ask` is NULL if nobody waits for it any more. The first member of each
 * kind, which free_cb frees.
 */
struct io_page_read {
    struct io_task task;
    struct io_page *page;
    struct io_page_ask *ask;
    struct ampd_model *held; /* `spec` is its; NULL: no model's */
    const struct ampd_model_spec *spec;
    uint32_t model;
    char key[IO_PAGE_KEY_MAX]; /* under which the answer is remembered; "": it is not */
    bool more;
    struct amp_error error; /* code 0: none */
    struct io_json json;    /* the answer */
    void (*run_cb)(struct io_page_read *read);    /* NULL: the store is not read */
    void (*finish_cb)(struct io_page_read *read); /* on the loop, before the answer; may be NULL */
    void (*free_cb)(struct io_page_read *read);   /* what the kind owns; may be NULL */
};

/*
 * Memory for a read of `size` bytes, zeroed but for what all have; NULL: too many are under way, or out of memory, and
 * the ask is answered.
 */
struct io_page_read *io_page_read_new(struct io_page_ask *ask, size_t size);
/* Of a model. */
struct io_page_read *io_page_read_of(struct io_page_ask *ask, size_t size, uint32_t model,
                                     const struct ampd_model_info *info);
void io_page_read_begin(struct io_page_read *read);

#endif
