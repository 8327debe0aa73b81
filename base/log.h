/*
 * The log: one line for each event, in logfmt or JSON, which begins with the keys ts, level, component and msg. The
 * program provides the sink and the clock, so that base/ does no I/O and reads no clock.
 */
#ifndef AMP_BASE_LOG_H
#define AMP_BASE_LOG_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

enum amp_log_level { AMP_LOG_DEBUG, AMP_LOG_INFO, AMP_LOG_WARN, AMP_LOG_ERROR };

/* Bytes of a line with the final zero. A longer line ends after the first value that does not fit, which is cut. */
#define AMP_LOG_LINE_MAX 1024

/* A log: its level and format, and the callbacks of the program. */
struct amp_log {
    enum amp_log_level level; /* lines of a lower level are dropped; amp_log_set_level changes it while threads log */
    bool json;                /* each line is a flat JSON object; else it is logfmt */
    void (*write_cb)(void *arg, enum amp_log_level level, const char *line); /* gets a line without newline */
    int64_t (*now_us_cb)(void *arg); /* gives UTC microseconds since 1970; NULL: lines have no time */
    void *arg;                       /* passed to both callbacks */
};

/*
 * Writes one line. `format` is the part after ts, level and component: `msg="..." key=value ...`. Its values may have
 * the conversions %s, %d and %u (with l, ll or z), and no quotes inside. The arguments may be any text: quotes,
 * backslashes and control characters are written with the escapes of JSON, and in logfmt a value that needs quotes gets
 * them, so that a reader recovers it exactly. In JSON a value that is one %d or %u is a number, all others are strings.
 * Does nothing if log is NULL or `level` is below the log's. Any thread, if write_cb may be called from any thread.
 */
void amp_log(const struct amp_log *log, enum amp_log_level level, const char *component, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Whether lines of this level are written. Any thread. */
bool amp_log_is_on(const struct amp_log *log, enum amp_log_level level);

/* "debug", "info", "warn", "error". Any thread. */
const char *amp_log_level_name(enum amp_log_level level);

/* Changes the level, also while other threads log, and returns the one before. Any thread. */
enum amp_log_level amp_log_set_level(struct amp_log *log, enum amp_log_level level);

/* Writes a time, UTC microseconds since 1970, as "2026-01-02T03:04:05.678901Z"; "?" for a year after 9999. */
void amp_log_time(int64_t us, char text[32]);

#endif
