/*
 * The log: one line an event, logfmt, with a fixed set of first keys (ts, level, component, msg). The sink and the
 * clock are given by the program, so that base/ has neither.
 */
#ifndef AMP_BASE_LOG_H
#define AMP_BASE_LOG_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

enum amp_log_level { AMP_LOG_DEBUG, AMP_LOG_INFO, AMP_LOG_WARN, AMP_LOG_ERROR };

/* Longest line, with the final zero; a longer one is cut inside the value that does not fit, and ends with it. */
#define AMP_LOG_LINE_MAX 1024

/* Where lines go: `write_cb` gets a whole line without a newline; `now_us_cb` gives UTC microseconds since 1970. */
struct amp_log {
    enum amp_log_level level; /* lines below it are dropped; while others log: amp_log_set_level */
    bool json;                /* lines are objects of JSON, all on one level; else logfmt */
    void (*write_cb)(void *arg, enum amp_log_level level, const char *line);
    int64_t (*now_us_cb)(void *arg);
    void *arg;
};

/*
 * Writes one line, logfmt or JSON. `format` makes what follows component and level: `msg="..." key=value ...`, whose
 * values have the conversions %s, %d and %u (with l, ll or z) and no quotes of their own. An argument may hold
 * anything: quotes, backslashes and control characters are written with the escapes of JSON, and in logfmt quotes are
 * put around a value that needs them, so that a reader gets it back. In JSON a value that is one number is a number,
 * all others are texts. Does nothing if log is NULL or the level is below the log's. As thread-safe as the write
 * callback.
 */
void amp_log(const struct amp_log *log, enum amp_log_level level, const char *component, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Whether lines of this level are written. Any thread. */
bool amp_log_is_on(const struct amp_log *log, enum amp_log_level level);

/* "debug", "info", "warn", "error". Any thread. */
const char *amp_log_level_name(enum amp_log_level level);

/* Changes the level while other threads may log. Returns the level before. Any thread. */
enum amp_log_level amp_log_set_level(struct amp_log *log, enum amp_log_level level);

/* "2026-01-02T03:04:05.678901Z" of microseconds since 1970 into text[32]. */
void amp_log_time(int64_t us, char text[32]);

#endif
