/* Lines for the client's log on what the worker's machine does meanwhile, and how often a line may come. */
#ifndef AMPCLIENT_CORE_LOG_H
#define AMPCLIENT_CORE_LOG_H

#include <stdbool.h>
#include <stdint.h>

struct ampclient_core;

/* Lines of one kind come at most so often. */
#define AMPCLIENT_LOG_AGAIN_MS 5000

/* Whether a line may come now; *said_ms is when the last one of its kind did, 0: none. Notes that it does. */
bool ampclient_log_due(uint64_t *said_ms, uint64_t now_ms, uint64_t every_ms);

/* Kinds of lines in the log: each has a rate of its own. */
enum ampclient_core_line { LINE_TROUBLE, LINE_LOST, LINE_GOES_ON, LINE_WAITING, LINE_JOINED, LINES_COUNT };

/* After the fact that the line is about; `why` is a clause. */
void ampclient_core_log_failed(struct ampclient_core *core);  /* a call failed, and is tried again */
void ampclient_core_log_goes_on(struct ampclient_core *core); /* one ended well */
void ampclient_core_log_lost(struct ampclient_core *core, const char *why);
void ampclient_core_log_joined(struct ampclient_core *core, bool again);
void ampclient_core_log_waits(struct ampclient_core *core); /* time has passed */

#endif
