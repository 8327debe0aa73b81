/* The program from its start to its end. */
#ifndef AMPD_IO_START_H
#define AMPD_IO_START_H

struct ampd_server_options;

/* Runs the program until it is drained. Returns its exit code; what went wrong has been told on stderr in one line. */
int ampd_server_run(const struct ampd_server_options *options);

#endif
