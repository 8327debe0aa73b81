/* Histories that are to be no longer than --history-rows, and no older than --history-age: their beginnings go. */
#ifndef AMPD_IO_HISTORY_LIMIT_H
#define AMPD_IO_HISTORY_LIMIT_H

#include <stdbool.h>
#include <uv.h>

struct ampd_server;

struct io_history_limit {
    uv_timer_t timer;
    bool busy;        /* a round through the models is under way */
    bool told;        /* the log was told that rows beyond the limit stay; false after a round that removed them all */
    bool stay;        /* in the present round rows beyond the limit could not be removed */
    unsigned readers; /* who reads whole histories, page by page; none begins a round meanwhile */
};

/* Opens the timer. On the loop. */
void io_history_limit_open(struct ampd_server *server);
void io_history_limit_close(struct ampd_server *server);

/*
 * A whole history is about to be read in pages, or was. One whose beginning goes between the first two of them has a
 * gap behind its first page; at most the portion that is under way goes yet. On the loop.
 */
void io_history_limit_pause(struct ampd_server *server);
void io_history_limit_resume(struct ampd_server *server);

#endif
