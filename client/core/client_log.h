/*
 * Lines for the client's log on what the worker's state machine does while the user waits, and how often a line may
 * come. A line that is too early for its kind is dropped.
 */
#ifndef AMPCLIENT_CORE_LOG_H
#define AMPCLIENT_CORE_LOG_H

#include <stdbool.h>
#include <stdint.h>

struct ampclient_core;

/* Least time between two lines of one kind (of LINE_WAITING: 30 s). */
#define AMPCLIENT_LOG_AGAIN_MS 5000

/*
 * Whether a line may come now: every_ms have passed since *said_ms, when the last line of its kind came (0: none has).
 * If so, sets *said_ms to now_ms.
 */
bool ampclient_log_due(uint64_t *said_ms, uint64_t now_ms, uint64_t every_ms);

/* Kinds of lines in the log; each kind has its own rate. */
enum ampclient_core_line { LINE_TROUBLE, LINE_LOST, LINE_GOES_ON, LINE_WAITING, LINE_JOINED, LINES_COUNT };

/* A call has failed and is made again (core->failures, core->last_error); says so from the second failure on. */
void ampclient_core_log_failed(struct ampclient_core *core);
/* A call has ended well; says so if a line about failures came before. */
void ampclient_core_log_goes_on(struct ampclient_core *core);
/* The rank is lost and the core joins again; `why` is a clause, such as "its lease has ended". */
void ampclient_core_log_lost(struct ampclient_core *core, const char *why);
/* A Join has ended well; `again`: it was not the handle's first. */
void ampclient_core_log_joined(struct ampclient_core *core, bool again);
/* A KeepAlive was answered; says what a request waits for that has waited 10 s for a step or a verdict. */
void ampclient_core_log_waits(struct ampclient_core *core);

#endif
