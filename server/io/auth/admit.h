/*
 * Ends calls under way whose callers may no longer make them: after the token file was read again (SIGHUP), and when a
 * token expires. All on the loop.
 */
#ifndef AMPD_IO_ADMIT_H
#define AMPD_IO_ADMIT_H

#include <stddef.h>
#include <uv.h>

struct ampd_server;

struct io_admit {
    uv_timer_t timer;      /* runs, each second, while there are tokens that will expire */
    size_t tokens_expired; /* how many tokens of the file had expired when the timer last ran */
};

/* Opens the timer, and starts it if a token of the file will expire. */
void io_admit_open(struct ampd_server *server);
/* Closes the timer's handle; the loop must run until that is done. */
void io_admit_close(struct ampd_server *server);

/*
 * To be called once the rules were read again (ampd_auth_reload): ends each open call that the new rules would not let
 * in. From then on calls of a token are ended within a second of its expiry.
 */
void io_admit_watch_tokens(struct ampd_server *server);

#endif
