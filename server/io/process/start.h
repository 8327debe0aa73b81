/* The server process from its start to its end. */
#ifndef AMPD_IO_START_H
#define AMPD_IO_START_H

struct ampd_server_options;

/*
 * Starts the server and runs its loop until it has been drained and everything is closed. Returns the exit code of the
 * process (AMPD_EXIT_...). Why a start failed is written to stderr, in one line. `options` must stay until then.
 */
int ampd_server_run(const struct ampd_server_options *options);

#endif
