#include "server/config/options.h"

#include "base/size.h"
#include "server/io/cluster/cluster_address.h"
#include "server/io/http/http.h"
#include "server/io/process/memory_limit.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#define TIME_REMEDY "a time of 1ms to ten years, a number with ms, s, m, h or d"

#define LISTEN_DEFAULT "127.0.0.1:7420"

/* The text of a number that a macro names. */
#define TEXT_OF(number)          TEXT_OF_EXPANDED(number)
#define TEXT_OF_EXPANDED(number) #number

enum {
#define OPTION(id, name, letter, arg, kind, at, fallback, group, doc) OPTION_##id,
#include "server/config/options.def"
#undef OPTION
    OPTIONS_COUNT
};

_Static_assert(OPTIONS_COUNT <= AMPD_OPTIONS_MAX, "AMPD_OPTIONS_MAX holds");

/* The first argp key of options without a letter: above all letters. */
#define FIRST_KEY 256

const struct argp_option ampd_options[] = {
#define OPTION(id, name, letter, arg, kind, at, fallback, group, doc)                                                  \
    {name, (letter) != 0 ? (letter) : FIRST_KEY + OPTION_##id, arg, 0, doc, group},
#include "server/config/options.def"
#undef OPTION
    {0},
};

/* "1500ms", "90s", "5m", "2h" and "90d": at least 1 ms, at most ten years. */
static bool parse_time(const char *text, int64_t *ms)
{
    static const struct {
        const char *name;
        int64_t ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"m", 60 * 1000}, {"h", 60 * 60 * 1000}, {"d", 24 * 60 * 60 * 1000}};
    const int64_t most_ms = INT64_C(10) * 365 * 24 * 60 * 60 * 1000;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0 || text[0] < '0' || text[0] > '9' || value < 1)
        return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].name) != 0)
            continue;
        *ms = value <= most_ms / units[i].ms ? value * units[i].ms : 0;
        return *ms > 0;
    }
    return false;
}

static bool parse_number(const char *text, uint64_t *number)
{
    char *end;
    errno = 0;
    *number = strtoull(text, &end, 10);
    return errno == 0 && text[0] >= '0' && text[0] <= '9' && *end == 0 && *number <= (uint64_t)1 << 62;
}

static bool parse_level(const char *text, enum amp_log_level *level)
{
    for (int i = AMP_LOG_DEBUG; i <= AMP_LOG_ERROR; i++) {
        if (strcmp(text, amp_log_level_name((enum amp_log_level)i)) == 0) {
            *level = (enum amp_log_level)i;
            return true;
        }
    }
    return false;
}

/* Whether an address ends in a port, or is a path that a socket can have; listening looks at the rest. */
static bool is_address(const char *address)
{
    const char *colon = strrchr(address, ':');
    size_t digits = colon != NULL ? strspn(colon + 1, "0123456789") : 0;
    if (strncmp(address, "unix:", 5) == 0)
        return address[5] != 0 && strlen(address + 5) < sizeof((struct sockaddr_un *)NULL)->sun_path;
    return colon != NULL && colon != address && digits > 0 && digits <= 5 && colon[1 + digits] == 0 &&
           strtol(colon + 1, NULL, 10) <= 65535;
}

/* Parses one of two words. */
static bool parse_choice(const char *text, const char *yes, const char *no, bool *is)
{
    *is = strcmp(text, yes) == 0;
    return *is || strcmp(text, no) == 0;
}

/* ---- what the options mean ---- */

enum kind {
    KIND_TEXT,
    KIND_ADDRESS,
    KIND_MAYBE_ADDRESS,
    KIND_TRUE,
    KIND_SHARING,
    KIND_TIME,
    KIND_AGE,
    KIND_MEMORY,
    KIND_THREADS,
    KIND_NUMBER,
    KIND_PERCENT,
    KIND_FORMAT,
    KIND_LEVEL,
    KIND_SHARD,
    KIND_SHARDS
};

static const struct meaning {
    enum kind kind;
    size_t at; /* in struct ampd_arguments */
    const char *fallback;
} meanings[] = {
#define OPTION(id, name, letter, arg, kind, at, fallback, group, doc)                                                  \
    {KIND_##kind, offsetof(struct ampd_arguments, at), fallback},
#include "server/config/options.def"
#undef OPTION
};

static const struct meaning *meaning_of(const struct argp_option *option)
{
    return &meanings[option - ampd_options];
}

const struct argp_option *ampd_option_find(const char *name)
{
    for (const struct argp_option *option = ampd_options; option->name != NULL; option++)
        if (strcmp(option->name, name) == 0)
            return option;
    return NULL;
}

bool ampd_option_is_flag_only(const struct argp_option *option)
{
    return option == &ampd_options[OPTION_CHECK_CONFIG];
}

bool ampd_option_is_for_file(const struct argp_option *option)
{
    return !ampd_option_is_flag_only(option) && option != &ampd_options[OPTION_CONFIG];
}

bool ampd_option_reloads(const struct argp_option *option)
{
    static const int reloads[] = {OPTION_LOG_LEVEL, OPTION_CHECKPOINT_DISK_SHARE, OPTION_DRAIN_TIME,
                                  OPTION_HISTORY_ROWS, OPTION_HISTORY_AGE};
    for (size_t i = 0; i < sizeof reloads / sizeof *reloads; i++)
        if (option == &ampd_options[reloads[i]])
            return true;
    return false;
}

const char *ampd_option_default(const struct argp_option *option)
{
    const char *text = meaning_of(option)->fallback;
    return text != NULL ? text : "";
}

void ampd_arguments_init(struct ampd_arguments *arguments)
{
    *arguments = (struct ampd_arguments){
        .server = {.listen = LISTEN_DEFAULT, .checkpoint_disk_share = AMPD_CHECKPOINT_DISK_SHARE},
        .level = AMP_LOG_INFO};
    arguments->server.auth = &arguments->auth;
    arguments->server.etcd = &arguments->etcd;
}

/* A whole number of `least` to `most`. */
static bool parse_count(const char *text, unsigned least, unsigned most, uint32_t *count)
{
    uint64_t number;
    bool ok = parse_number(text, &number) && number >= least && number <= most;
    *count = ok ? (uint32_t)number : least;
    return ok;
}

/* A size, or a percentage of the memory that this process may use: 0 (no bound) where the system does not say. */
static bool parse_memory(const char *text, uint64_t *bytes)
{
    uint64_t percent;
    char *end;
    if (amp_size_parse(text, bytes))
        return *bytes >= IO_MEMORY_LEAST;
    errno = 0;
    percent = strtoull(text, &end, 10);
    if (errno != 0 || text[0] < '0' || text[0] > '9' || strcmp(end, "%") != 0 || percent < 1 || percent > 100)
        return false;
    *bytes = io_memory_limit() / 100 * percent;
    return *bytes == 0 || *bytes >= IO_MEMORY_LEAST;
}

/* Sets a value from its text, whose kind says what it can be. NULL: it is right; else a sentence on what to give. */
static const char *set_value(enum kind kind, const char *text, void *at)
{
    switch (kind) {
    case KIND_MAYBE_ADDRESS: /* an empty text means none, too */
        *(const char **)at = text;
        if (text[0] == 0 || strcmp(text, IO_HTTP_NONE) == 0)
            return NULL;
        return is_address(text) && strncmp(text, "unix:", 5) != 0
                   ? NULL
                   : "give HOST:PORT with a port of 0 to 65535, or " IO_HTTP_NONE;
    case KIND_ADDRESS:
        *(const char **)at = text;
        return is_address(text) ? NULL : "give HOST:PORT with a port of 0 to 65535, or unix:PATH of at most 107 bytes";
    case KIND_TEXT:
        *(const char **)at = text;
        return text[0] != 0 ? NULL : "give a value, or leave the option out";
    case KIND_TRUE:
        return parse_choice(text, "true", "false", at) ? NULL : "give true or false";
    case KIND_SHARING:
        return parse_choice(text, "off", "on", at) ? NULL : "give on or off";
    case KIND_TIME:
        return parse_time(text, at) ? NULL : "give " TIME_REMEDY;
    case KIND_AGE: /* 0 stands for no limit */
        *(int64_t *)at = 0;
        return strcmp(text, "0") == 0 || parse_time(text, at) ? NULL : "give 0 for all, or " TIME_REMEDY;
    case KIND_MEMORY:
        return parse_memory(text, at) ? NULL
                                      : "give 2M or more, which the smallest model needs, in bytes or with K, M or G; "
                                        "or a percentage of this machine's memory, as in 50%";
    case KIND_THREADS:
        return parse_count(text, 1, AMPD_COMPUTE_THREADS_MAX, at) ? NULL
                                                                  : "give 1 to " TEXT_OF(AMPD_COMPUTE_THREADS_MAX);
    case KIND_NUMBER:
        return parse_number(text, at) ? NULL : "give a number of 0 to 2^62";
    case KIND_PERCENT:
        return parse_count(text, 1, 100, at) ? NULL : "give a percentage from 1 to 100";
    case KIND_FORMAT:
        return parse_choice(text, "json", "text", at) ? NULL : "give text or json";
    case KIND_LEVEL:
        return parse_level(text, at) ? NULL : "give debug, info, warn or error";
    case KIND_SHARD:
        return parse_count(text, 0, IO_CLUSTER_SHARDS_MAX - 1, at) ? NULL : "give the index of a shard, 0 to 63";
    default:
        return parse_count(text, 1, IO_CLUSTER_SHARDS_MAX, at) ? NULL : "give 1 to " TEXT_OF(IO_CLUSTER_SHARDS_MAX);
    }
}

void ampd_option_set(struct ampd_arguments *arguments, const struct argp_option *option, const char *text)
{
    const struct meaning *meaning = meaning_of(option);
    void *at = (char *)arguments + meaning->at;
    const char *remedy = set_value(meaning->kind, text, at);
    if (remedy != NULL && arguments->wrong[0] == 0)
        (void)snprintf(arguments->wrong, sizeof arguments->wrong, "--%s %.40s: %s", option->name, text, remedy);
    arguments->has_shard = arguments->has_shard || option == &ampd_options[OPTION_SHARD];
    arguments->server.refills = arguments->server.refills || option == &ampd_options[OPTION_EPOCH_ABOVE];
}
