#include "server/config/config.h"

#include "base/usage.h"
#include "server/config/config_file.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Most bytes of all faults: if every option is wrong in each of three sources, and the file's syntax. One fault's. */
#define FAULTS_MAX ((size_t)1 << 18)
#define FAULT_MAX  5000

/* Adds a fault: a sentence, and where it is ("": the sentence says so). */
static void fault(struct ampd_config *config, const char *where, const char *text)
{
    char line[FAULT_MAX];
    (void)snprintf(line, sizeof line, "%.*s%s%s\n", FAULT_MAX / 2, where, where[0] != 0 ? ": " : "", text);
    (void)amp_buf_append(&config->faults, line, strlen(line)); /* one that does not fit is still counted */
    config->faults_count++;
}

/* Adds a fault that does not come from the options. */
static void out_of_memory(struct ampd_config *config, const char *where)
{
    config->memory_out = true;
    fault(config, where, "out of memory");
}

void ampd_config_env_name(const struct argp_option *option, char name[AMPD_CONFIG_ENV_MAX])
{
    (void)snprintf(name, AMPD_CONFIG_ENV_MAX, "AMPD_%s", option->name);
    for (char *at = name; *at != 0; at++)
        *at = *at == '-' ? '_' : (char)toupper((unsigned char)*at);
}

/*
 * Sets an option from one of the sources. If its value is wrong, that is a fault at `where`; for the command line the
 * sentence itself names the option as it was given.
 */
static void set(struct ampd_config *config, size_t option, const char *where, const char *text,
                struct ampd_arguments *arguments)
{
    struct ampd_config_value *value = &config->values[option];
    struct ampd_arguments trial;
    bool flag = strncmp(where, "--", 2) == 0;
    ampd_arguments_init(&trial);
    ampd_option_set(&trial, &ampd_options[option], text);
    free(value->where);
    value->where = strdup(where); /* of a wrong value, too: on_value finds by it that the file gives the option again */
    if (trial.wrong[0] != 0) {
        fault(config, flag ? "" : where, trial.wrong);
        return;
    }
    free(value->text);
    value->text = strdup(text);
    if (value->text == NULL || value->where == NULL)
        out_of_memory(config, where);
    else
        ampd_option_set(arguments, &ampd_options[option], value->text);
}

/* ---- the command line ---- */

struct flags {
    struct ampd_config *config;
    char unexpected[128];
};

static size_t option_of(int key)
{
    size_t option = 0;
    while (ampd_options[option].name != NULL && ampd_options[option].key != key)
        option++;
    return option;
}

/* argp's parser: keeps the values, which are set after those of the other sources, over which they have precedence. */
static error_t take_flag(int key, char *arg, struct argp_state *state)
{
    struct flags *flags = state->input;
    size_t option = option_of(key);
    if (key == ARGP_KEY_INIT)
        state->err_stream = NULL; /* getopt writes one line about a fault; argp would write another */
    if (key == ARGP_KEY_ARG)
        (void)snprintf(flags->unexpected, sizeof flags->unexpected, "unexpected argument %.100s", arg);
    if (key == ARGP_KEY_INIT || key == ARGP_KEY_ARG)
        return 0;
    if (ampd_options[option].name == NULL)
        return ARGP_ERR_UNKNOWN;
    free(flags->config->flags[option]);
    flags->config->flags[option] = strdup(arg != NULL ? arg : "true");
    return flags->config->flags[option] != NULL ? 0 : ENOMEM;
}

static int read_flags(struct ampd_config *config, int argc, char **argv)
{
    static const struct argp parser = {
        .options = ampd_options,
        .parser = take_flag,
        .doc = "A parameter server for mixed-precision training, with one authoritative loss scale."};
    const struct argp_option *const tables[] = {ampd_options, NULL};
    struct flags flags = {.config = config};
    char wrong[128];
    if (!amp_usage_options_known(argc, argv, tables, true, wrong, sizeof wrong)) {
        fault(config, "", wrong);
        return AMP_EINVAL;
    }
    int rc = argp_parse(&parser, argc, argv, 0, NULL, &flags);
    if (rc == ENOMEM)
        rc = AMP_ENOMEM;
    if (flags.unexpected[0] != 0)
        fault(config, "", flags.unexpected);
    return rc;
}

/* ---- the file ---- */

struct file_reader {
    struct ampd_config *config;
    struct ampd_arguments *arguments;
};

/* Bytes of a path of the longest kind, and a line number. */
#define WHERE_MAX 4200

static void where_of(const struct ampd_config *config, unsigned line, char where[WHERE_MAX])
{
    (void)snprintf(where, WHERE_MAX, "%s:%u", config->path, line);
}

static void report_line(struct ampd_config *config, unsigned line, const char *text)
{
    char where[WHERE_MAX];
    where_of(config, line, where);
    fault(config, where, text);
}

static void describe_unknown(const char *name, char *text, size_t size)
{
    const char *names[AMPD_OPTIONS_MAX];
    size_t count = 0;
    for (; ampd_options[count].name != NULL; count++)
        names[count] = ampd_options[count].name;
    const char *near = amp_usage_near(name, names, count);
    if (near != NULL)
        (void)snprintf(text, size, "ampd has no option %.64s; did you mean %s?", name, near);
    else
        (void)snprintf(text, size, "ampd has no option %.64s", name);
}

static void on_value(void *arg, unsigned line, const char *name, const char *value)
{
    const struct file_reader *reader = arg;
    const struct argp_option *option = ampd_option_find(name);
    const char *before = option != NULL ? reader->config->values[option - ampd_options].where : NULL;
    char text[192] = "", where[WHERE_MAX];
    if (option == NULL)
        describe_unknown(name, text, sizeof text);
    else if (!ampd_option_is_for_file(option))
        (void)snprintf(text, sizeof text, "%.64s can be given only on the command line", name);
    else if (before != NULL) /* in this file, since no other source is read before it */
        (void)snprintf(text, sizeof text, "%.64s is already given in line %.16s; keep one of them", name,
                       strrchr(before, ':') + 1);
    if (text[0] != 0) {
        report_line(reader->config, line, text);
        return;
    }
    where_of(reader->config, line, where);
    set(reader->config, (size_t)(option - ampd_options), where, value, reader->arguments);
}

static void on_fault(void *arg, unsigned line, const char *text)
{
    report_line(((const struct file_reader *)arg)->config, line, text);
}

static void read_file(struct ampd_config *config, struct ampd_arguments *arguments)
{
    static const struct ampd_config_file_ops ops = {on_value, on_fault};
    struct file_reader reader = {config, arguments};
    struct stat status;
    /* Opening a pipe or a terminal must not block the start, or the loop at SIGHUP. */
    int fd = open(config->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
    char *text = malloc(AMPD_CONFIG_FILE_MAX + 1), wrong[128];
    if (text == NULL) {
        out_of_memory(config, config->path);
    } else if (file == NULL) {
        (void)snprintf(wrong, sizeof wrong, "the configuration file cannot be opened: %.64s; correct its path",
                       strerror(errno));
        fault(config, config->path, wrong);
    } else if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        fault(config, config->path, "not a file");
    } else {
        size_t size = fread(text, 1, AMPD_CONFIG_FILE_MAX + 1, file);
        if (ferror(file) != 0)
            fault(config, config->path, "cannot be read");
        else
            ampd_config_file_read(text, size, &ops, &reader);
    }
    if (file != NULL)
        (void)fclose(file); /* it was only read */
    else if (fd >= 0)
        (void)close(fd);
    free(text);
}

/* ---- all sources ---- */

static void read_environment(struct ampd_config *config, struct ampd_arguments *arguments)
{
    for (size_t i = 0; ampd_options[i].name != NULL; i++) {
        char name[AMPD_CONFIG_ENV_MAX];
        ampd_config_env_name(&ampd_options[i], name);
        const char *text = ampd_option_is_flag_only(&ampd_options[i]) ? NULL : getenv(name);
        if (text != NULL && text[0] != 0) /* empty is the same as not set, for unit files and containers */
            set(config, i, name, text, arguments);
    }
}

/* Finds the path of the file, which the command line or the environment gives. 0 or AMP_ENOMEM. */
static int find_file(struct ampd_config *config)
{
    size_t option = (size_t)(ampd_option_find("config") - ampd_options);
    char name[AMPD_CONFIG_ENV_MAX];
    ampd_config_env_name(&ampd_options[option], name);
    const char *path = config->flags[option] != NULL ? config->flags[option] : getenv(name);
    if (path == NULL || (path[0] == 0 && config->flags[option] == NULL))
        return 0;
    config->path = strdup(path);
    return config->path != NULL ? 0 : AMP_ENOMEM;
}

/* Reads all sources, from the lowest precedence to the highest; config->flags is filled in by then. */
static void read_all(struct ampd_config *config, struct ampd_arguments *arguments)
{
    ampd_arguments_init(arguments);
    if (config->path != NULL)
        read_file(config, arguments);
    read_environment(config, arguments);
    for (size_t i = 0; ampd_options[i].name != NULL; i++) {
        char where[AMPD_CONFIG_ENV_MAX];
        (void)snprintf(where, sizeof where, "--%s", ampd_options[i].name);
        if (config->flags[i] != NULL)
            set(config, i, where, config->flags[i], arguments);
    }
    config->alone = config->faults_count > 0;
    if (!config->alone)
        ampd_arguments_check(arguments);
    if (arguments->wrong[0] != 0)
        fault(config, "", arguments->wrong);
}

int ampd_config_read(struct ampd_config *config, int argc, char **argv, struct ampd_arguments *arguments)
{
    *config = (struct ampd_config){0};
    amp_buf_init(&config->faults, FAULTS_MAX);
    int rc = read_flags(config, argc, argv);
    if (rc == 0)
        rc = find_file(config);
    if (rc != 0)
        return rc;
    read_all(config, arguments);
    return config->memory_out ? AMP_ENOMEM : config->faults_count == 0 ? 0 : AMP_EINVAL;
}

static void close_values(struct ampd_config *config)
{
    for (size_t i = 0; i < AMPD_OPTIONS_MAX; i++) {
        free(config->values[i].text);
        free(config->values[i].where);
    }
}

void ampd_config_close(struct ampd_config *config)
{
    close_values(config);
    for (size_t i = 0; i < AMPD_OPTIONS_MAX; i++)
        free(config->flags[i]);
    free(config->path);
    amp_buf_close(&config->faults);
}

static const char *text_of(const struct ampd_config *config, size_t option)
{
    const char *text = config->values[option].text;
    return text != NULL ? text : ampd_option_default(&ampd_options[option]);
}

size_t ampd_config_values(const struct ampd_config *config, struct ampd_option_value values[AMPD_OPTIONS_MAX])
{
    size_t count = 0;
    for (; ampd_options[count].name != NULL; count++) {
        const char *where = config->values[count].where;
        values[count] = (struct ampd_option_value){.name = ampd_options[count].name,
                                                   .value = text_of(config, count),
                                                   .where = where != NULL ? where : "default",
                                                   .reloads = ampd_option_reloads(&ampd_options[count])};
    }
    return count;
}

/* ---- reading again ---- */

static void log_faults(const struct ampd_config *fresh, struct amp_log *log)
{
    const char *at = (const char *)fresh->faults.data, *end = at + fresh->faults.size;
    while (at < end) {
        char line[FAULT_MAX];
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        (void)snprintf(line, sizeof line, "%.*s", (int)(line_end - at), at);
        amp_log(log, AMP_LOG_ERROR, "config",
                "msg=\"the options could not be reloaded; the old ones stay in force\" fault=\"%s\"", line);
        at = line_end + 1;
    }
}

/* The value is the same: takes over its source, which may be another line now. */
static void move(struct ampd_config *config, struct ampd_config *fresh, size_t option)
{
    char *where = config->values[option].where;
    config->values[option].where = fresh->values[option].where;
    fresh->values[option].where = where;
}

/* The value of an option differs: takes it over if the option can change, and logs the change in any case. */
static void change(struct ampd_config *config, struct ampd_config *fresh, size_t option,
                   struct ampd_arguments *arguments, struct amp_log *log)
{
    const char *before = text_of(config, option), *now = text_of(fresh, option);
    struct ampd_config_value old = config->values[option];
    if (!ampd_option_reloads(&ampd_options[option])) {
        amp_log(log, AMP_LOG_WARN, "config",
                "msg=\"changed; takes effect at the next start\" option=%s is=\"%s\" "
                "will_be=\"%s\"",
                ampd_options[option].name, before, now);
        return;
    }
    ampd_option_set(arguments, &ampd_options[option], now);
    amp_log(log, AMP_LOG_INFO, "config", "msg=\"changed\" option=%s was=\"%s\" is=\"%s\"", ampd_options[option].name,
            before, now);
    config->values[option] = fresh->values[option];
    fresh->values[option] = old;
}

void ampd_config_reload(struct ampd_config *config, struct ampd_arguments *arguments, struct amp_log *log)
{
    struct ampd_config fresh = {.path = config->path};
    struct ampd_arguments read;
    amp_buf_init(&fresh.faults, FAULTS_MAX);
    memcpy(fresh.flags, config->flags, sizeof fresh.flags);
    read_all(&fresh, &read);
    if (fresh.faults_count > 0)
        log_faults(&fresh, log);
    for (size_t i = 0; fresh.faults_count == 0 && ampd_options[i].name != NULL; i++)
        if (strcmp(text_of(config, i), text_of(&fresh, i)) == 0)
            move(config, &fresh, i);
        else
            change(config, &fresh, i, arguments, log);
    close_values(&fresh);
    amp_buf_close(&fresh.faults);
}
