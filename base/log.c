#include "base/log.h"

#include "base/assert.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const char *amp_log_level_name(enum amp_log_level level)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    return names[level];
}

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

bool amp_log_is_on(const struct amp_log *log, enum amp_log_level level)
{
    return log != NULL && log->write_cb != NULL && level >= __atomic_load_n(&log->level, __ATOMIC_RELAXED);
}

/* ---- a line ---- */

struct line {
    char text[AMP_LOG_LINE_MAX];
    size_t used;
};

static void append(struct line *line, const char *text, size_t size)
{
    memcpy(line->text + line->used, text, size);
    line->used += size;
    line->text[line->used] = 0;
}

_Static_assert(sizeof(long) == sizeof(long long) && sizeof(size_t) == sizeof(long), "one width for %lu, %llu and %zu");

/*
 * Writes the argument of one conversion, a text or an integer; `at` is after its %. Returns what follows it in the
 * format.
 */
static const char *convert(const char *at, va_list *args, char *out, size_t capacity)
{
    size_t wide = strspn(at, "lz");
    at += wide;
    if (*at == 's') {
        (void)snprintf(out, capacity, "%s", va_arg(*args, const char *));
    } else if (*at == 'd') {
        (void)snprintf(out, capacity, "%ld", wide > 0 ? va_arg(*args, long) : va_arg(*args, int));
    } else {
        AMP_ASSERT(*at == 'u'); /* that is all that lines have needed */
        (void)snprintf(out, capacity, "%lu", wide > 0 ? va_arg(*args, unsigned long) : va_arg(*args, unsigned));
    }
    return at + 1;
}

/* Makes the value whose format begins at `at`, without the quotes around it. Returns what follows it in the format. */
static const char *fill_value(const char *at, va_list *args, char value[AMP_LOG_LINE_MAX])
{
    char end = *at == '"' ? '"' : ' ';
    size_t used = 0;
    value[0] = 0;
    at += end == '"';
    while (*at != 0 && *at != end) {
        if (*at == '%')
            at = convert(at + 1, args, value + used, AMP_LOG_LINE_MAX - used);
        else
            (void)snprintf(value + used, AMP_LOG_LINE_MAX - used, "%c", *at++);
        used += strlen(value + used);
    }
    return at + (*at == '"');
}

/*
 * Appends a field of logfmt. A value that a reader could misunderstand (with a space, an equals sign or a character
 * that is escaped) gets quotes, and the escapes of JSON inside them. False: the value was cut, or nothing had room.
 */
static bool append_logfmt(struct line *line, const char *name, size_t name_size, const char *value, bool quoted)
{
    char escaped[AMP_LOG_LINE_MAX];
    size_t left = sizeof line->text - line->used, least = strlen(" ") + name_size + strlen("=\"\"");
    if (left <= least)
        return false;
    bool whole = amp_text_escape(value, "\"\\", escaped, left - least);
    quoted = quoted || strpbrk(value, " =") != NULL || strcmp(value, escaped) != 0;
    append(line, " ", 1);
    append(line, name, name_size);
    append(line, "=\"", quoted ? 2 : 1);
    append(line, escaped, strlen(escaped));
    append(line, "\"", quoted);
    return whole;
}

/* Appends a member of a JSON object, and leaves room for the closing brace. False: it was cut, or nothing had room. */
static bool append_json(struct line *line, const char *name, size_t name_size, const char *value, bool number)
{
    char escaped[AMP_LOG_LINE_MAX];
    size_t left = sizeof line->text - line->used, least = name_size + strlen(",\"\":\"\"}");
    if (left <= least)
        return false;
    bool whole = amp_text_escape(value, "\"\\", escaped, left - least);
    if (number && !whole) /* a part of a number is another number */
        return false;
    append(line, ",\"", 2);
    append(line, name, name_size);
    append(line, "\":\"", number ? 2 : 3);
    append(line, escaped, strlen(escaped));
    append(line, "\"", !number);
    return whole;
}

/* Whether the value's format is a single %d or %u. */
static bool is_number(const char *at)
{
    if (*at != '%')
        return false;
    at += 1 + strspn(at + 1, "lz");
    return (*at == 'd' || *at == 'u') && (at[1] == ' ' || at[1] == 0);
}

/*
 * Appends the fields of a format `key=value key="a value" ...`. A line that is too long ends inside a value, but
 * parses.
 */
static void append_fields(struct line *line, bool json, const char *format, va_list *args)
{
    for (bool whole = true; *format != 0 && whole;) {
        char value[AMP_LOG_LINE_MAX];
        const char *name = format + strspn(format, " ");
        size_t size = strcspn(name, "=");
        const char *from = name + size + (name[size] == '=');
        format = fill_value(from, args, value);
        whole = json ? append_json(line, name, size, value, is_number(from))
                     : append_logfmt(line, name, size, value, *from == '"');
    }
}

void amp_log(const struct amp_log *log, enum amp_log_level level, const char *component, const char *format, ...)
{
    if (!amp_log_is_on(log, level))
        return;
    struct line line;
    char ts[32] = "";
    if (log->now_us_cb != NULL)
        amp_log_time(log->now_us_cb(log->arg), ts);
    int used =
        snprintf(line.text, sizeof line.text,
                 log->json ? "{\"ts\":\"%s\",\"level\":\"%s\",\"component\":\"%s\"" : "ts=%s level=%s component=%s", ts,
                 amp_log_level_name(level), component);
    if (used < 0 || (size_t)used + strlen("}") >= sizeof line.text)
        return;
    line.used = (size_t)used;
    va_list args;
    va_start(args, format);
    append_fields(&line, log->json, format, &args);
    va_end(args);
    append(&line, "}", log->json);
    log->write_cb(log->arg, level, line.text);
}
