/* Calls under way that may not go on: who may call was read anew, or a token has had its time. */
#ifndef AMPD_IO_ADMIT_H
#define AMPD_IO_ADMIT_H

#include <stddef.h>
#include <uv.h>

struct ampd_server;

struct io_admit {
    uv_timer_t timer;
    size_t tokens_expired; /* of the token file, when that was last looked at */
};

/* Opens the timer, and begins to look. */
void io_admit_open(struct ampd_server *server);
void io_admit_close(struct ampd_server *server);

/* Who may call was read anew: ends the calls that would not be let in now, and those of tokens as their time comes. */
void io_admit_watch_tokens(struct ampd_server *server);

#endif
