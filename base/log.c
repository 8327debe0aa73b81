#include "base/log.h"

#include <stdio.h>
#include <time.h>

static const char *const level_names[] = {"debug", "info", "warn", "error"};

void amp_log_time(int64_t us, char text[32])
{
    time_t seconds = (time_t)(us / 1000000);
    long fraction = (long)(us % 1000000);
    struct tm utc;
    if (fraction < 0) {
        fraction += 1000000;
        seconds -= 1;
    }
    if (gmtime_r(&seconds, &utc) == NULL || utc.tm_year > 8099) {
        (void)snprintf(text, 32, "?");
        return;
    }
    size_t used = strftime(text, 32, "%Y-%m-%dT%H:%M:%S", &utc);
    (void)snprintf(text + used, 32 - used, ".%06ldZ", fraction);
}

enum amp_log_level amp_log_set_level(struct amp_log *log, enum amp_log_level level)
{
    return __atomic_exchange_n(&log->level, level, __ATOMIC_RELAXED);
}

void amp_log(const struct amp_log *log, enum amp_log_level level, const char *component, const char *format, ...)
{
    if (log == NULL || log->write_cb == NULL || level < __atomic_load_n(&log->level, __ATOMIC_RELAXED))
        return;
    char line[AMP_LOG_LINE_MAX];
    char ts[32] = "";
    if (log->now_us_cb != NULL)
        amp_log_time(log->now_us_cb(log->arg), ts);
    int used = snprintf(line, sizeof line, "ts=%s level=%s component=%s ", ts, level_names[level], component);
    if (used < 0 || (size_t)used >= sizeof line)
        return;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line + used, sizeof line - (size_t)used, format, args);
    va_end(args);
    /* What a value brings along must not look like a line of its own. */
    for (char *at = line; *at != 0; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f)
            *at = '?';
    log->write_cb(log->arg, level, line);
}
