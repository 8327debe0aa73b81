/* ampd: parses the command line, prepares the process, and runs the server. */
#define _DEFAULT_SOURCE /* struct rlimit's and argp's helpers */
#include "amp/cpu.h"
#include "base/assert.h"
#include "base/streams.h"
#include "server/config/config.h"
#include "server/config/options_print.h"
#include "server/io/base/clock.h"
#include "server/io/base/peer_bytes.h"
#include "server/io/process/drain.h"
#include "server/io/process/memory_limit.h"
#include "server/io/process/start.h"
#include "server/io/process/verify.h"
#include "storage/datadir.h"
#include "storage/store.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <uv.h>

/* Text of --version. Its formats say which versions run together, and which can be downgraded (docs/runbooks.md). */
static char version[128];
__attribute__((visibility("default"))) /* the C library looks for it */
const char *argp_program_version = version;

static void write_version(void)
{
    (void)snprintf(version, sizeof version, "ampd %s\nshards: format %d\ndata: format %d.%d", AMPD_VERSION,
                   AMPD_PEER_FORMAT, AMPD_DATADIR_VERSION, AMPD_STORE_SCHEMA);
}

/* Writes one line about a wrong usage to stderr, and returns the exit code for it. */
static int usage_error(const char *text)
{
    (void)fprintf(stderr, "ampd: %s (see ampd --help)\n", text);
    return AMPD_EXIT_USAGE;
}

/* Writes all faults of the options to stderr, one in each line. */
static void config_error(const struct ampd_config *config)
{
    const char *at = (const char *)config->faults.data, *end = at + config->faults.size;
    const char *more = config->alone ? "; how the options go together is checked when each is right" : "";
    while (at < end) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        (void)fprintf(stderr, "ampd: %.*s%s\n", (int)(line_end - at), at,
                      config->faults_count == 1 ? " (see ampd --help)" : "");
        at = line_end + 1;
    }
    if (config->faults_count > 1)
        (void)fprintf(stderr, "ampd: %u faults in its options (see ampd --help)%s\n", config->faults_count, more);
}

/* ---- the process ---- */

/* One write per line, so that lines of different threads do not mix. */
static void write_line(void *arg, enum amp_log_level level, const char *line)
{
    char text[AMP_LOG_LINE_MAX + 1];
    int size = snprintf(text, sizeof text, "%s\n", line);
    if (size > 0 && write(STDERR_FILENO, text, (size_t)size) < 0)
        return; /* nobody reads the log */
}

static int64_t log_now(void *arg)
{
    return io_clock_utc_us();
}

/* Raises the limit of open files to the highest that the system allows, since each connection needs a descriptor. */
static void raise_descriptors(const struct amp_log *log)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        amp_log(log, AMP_LOG_WARN, "server", "msg=\"cannot raise the limit of open files\"");
}

/* For when memory is out in a place that cannot report it: ends the process, so that nothing more is acknowledged. */
static void end_at_once(void)
{
    _Exit(AMPD_EXIT_FAILED);
}

/* How many processors this process may run on (taskset, a container's cpuset), up to AMPD_COMPUTE_THREADS_MAX. */
static unsigned processors(void)
{
    unsigned count = uv_available_parallelism(); /* at least 1 */
    return count > AMPD_COMPUTE_THREADS_MAX ? AMPD_COMPUTE_THREADS_MAX : count;
}

/* The options with their sources, which SIGHUP reads again, and the log. */
struct options {
    struct ampd_config config;
    struct ampd_arguments arguments;
    struct ampd_option_value values[AMPD_OPTIONS_MAX];
    struct amp_log log;
};

static void on_reload(void *arg, struct ampd_server_options *running)
{
    struct options *options = arg;
    enum amp_log_level before = options->arguments.level;
    ampd_config_reload(&options->config, &options->arguments, &options->log);
    (void)ampd_config_values(&options->config, options->values);
    if (options->arguments.level != before)
        (void)amp_log_set_level(&options->log, options->arguments.level);
    running->checkpoint_disk_share = options->arguments.server.checkpoint_disk_share;
    running->times_ms[AMPD_TIME_DRAIN] = options->arguments.server.times_ms[AMPD_TIME_DRAIN];
    running->history_rows = options->arguments.server.history_rows;
    running->history_age_ms = options->arguments.server.history_age_ms;
}

/*
 * Fills in what the server needs beside the options that were given: the log, defaults of this machine, values for
 * GetConfig.
 */
static void prepare(struct options *options)
{
    struct ampd_server_options *server = &options->arguments.server;
    options->log = (struct amp_log){.level = options->arguments.level,
                                    .json = options->arguments.json,
                                    .write_cb = write_line,
                                    .now_us_cb = log_now};
    server->log = &options->log;
    server->isa = server->kernels->isa;
    if (server->compute_threads == 0)
        server->compute_threads = processors();
    if (server->memory_max == 0)
        server->memory_max = io_memory_limit() / 100 * AMPD_MEMORY_SHARE_PERCENT;
    server->values_count = ampd_config_values(&options->config, options->values);
    server->values = options->values;
    server->reload_cb = on_reload;
    server->reload_arg = options;
}

static int run(struct options *options)
{
    struct ampd_server_options *server = &options->arguments.server;
    struct amp_error error = {0};
    if (amp_cpu_select(getenv("AMPD_ISA"), &server->kernels, &error) != 0) {
        amp_error_wrap(&error, "AMPD_ISA");
        return usage_error(error.text);
    }
    if (options->arguments.check_only) {
        (void)printf("ampd: the options are good\n");
        return AMPD_EXIT_OK;
    }
    if (amp_fp_env_check(&error) != 0 || io_verify_kernels(server->kernels, &error) != 0) {
        (void)fprintf(stderr, "ampd: %s\n", error.text);
        return AMPD_EXIT_FAILED;
    }
    prepare(options);
    raise_descriptors(&options->log);
    (void)signal(SIGPIPE, SIG_IGN); /* writing to a lost connection returns an error */
    (void)signal(SIGXFSZ, SIG_IGN); /* and so does a file that reaches the size limit */
    return ampd_server_run(server);
}

int main(int argc, char **argv)
{
    static struct options options;
    static const char usage_as[] = "--usage-as="; /* for the build */
    if (argc == 2 && strncmp(argv[1], usage_as, strlen(usage_as)) == 0)
        return ampd_options_print(argv[1] + strlen(usage_as)) == 0 ? AMPD_EXIT_OK : AMPD_EXIT_FAILED;
    io_drain_hold();
    amp_streams_hold();
    amp_memory_out_set(end_at_once);
    write_version();
    int rc = ampd_config_read(&options.config, argc, argv, &options.arguments);
    int code = rc == 0 ? AMPD_EXIT_OK : rc == AMP_ENOMEM ? AMPD_EXIT_FAILED : AMPD_EXIT_USAGE;
    if (rc == AMP_ENOMEM)
        (void)fprintf(
            stderr,
            "ampd: out of memory while its options were read: give this machine or control group more memory\n");
    else if (rc != 0)
        config_error(&options.config);
    else
        code = run(&options);
    ampd_config_close(&options.config);
    return code;
}
