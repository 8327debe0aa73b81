/* Memory that many connections took goes back to the system once they are gone. */
#ifndef AMPD_IO_TRIM_H
#define AMPD_IO_TRIM_H

#include <stdint.h>
#include <uv.h>

struct ampd_server;

struct io_trim {
    uv_timer_t timer;
    uint64_t connections; /* how many there had been when memory was last given back */
};

/* Opens the timer, and begins to look. */
void io_trim_open(struct ampd_server *server);
void io_trim_close(struct ampd_server *server);

#endif
