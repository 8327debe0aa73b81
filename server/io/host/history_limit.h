/*
 * Keeps the history of each model within --history-rows and --history-age: once a second the oldest rows beyond the
 * limit are removed, on the writer's thread. On the loop's thread.
 */
#ifndef AMPD_IO_HISTORY_LIMIT_H
#define AMPD_IO_HISTORY_LIMIT_H

#include <stdbool.h>
#include <uv.h>

struct ampd_server;

struct io_history_limit {
    uv_timer_t timer;
    bool busy;   /* a round through all models is under way */
    bool logged; /* it was logged that rows beyond the limit stay; false after a round that could remove them all */
    bool stay;   /* in the present round rows beyond the limit could not be removed */
    unsigned readers; /* calls of io_history_limit_pause that were not resumed yet; no rows are removed meanwhile */
};

/* Opens the timer, which begins the rounds; closes it. */
void io_history_limit_open(struct ampd_server *server);
void io_history_limit_close(struct ampd_server *server);

/*
 * To be called before a whole history is read in pages, and after it; the pairs may overlap. Removing the beginning of
 * a history between two pages would leave a gap behind the first page. After a pause no portion of rows is begun, but
 * one that is under way is still removed.
 */
void io_history_limit_pause(struct ampd_server *server);
void io_history_limit_resume(struct ampd_server *server);

#endif
