/*
 * process_*, with the names of Prometheus' official client libraries, read from /proc/self. A value that cannot be read
 * is left out.
 */
#include "server/io/http/metrics_process.h"

#include "server/io/base/open_files.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Fields of /proc/self/stat by their numbers in proc(5), from `state`, the third, on. */
enum { STAT_FIRST = 3, STAT_STARTTIME = 22, STAT_VSIZE = 23, STAT_RSS = 24 };
#define STAT_COUNT (STAT_RSS + 1)

/*
 * Reads the fields of /proc/self/stat. False: it cannot be read. The name in the second field may contain anything, so
 * reading begins behind the last bracket.
 */
static bool read_stat(double values[STAT_COUNT])
{
    char line[1024];
    FILE *file = fopen("/proc/self/stat", "re");
    if (file == NULL)
        return false;
    bool is_read = fgets(line, sizeof line, file) != NULL;
    (void)fclose(file); /* it was only read */
    char *at = is_read ? strrchr(line, ')') : NULL;
    if (at == NULL)
        return false;
    char *rest = NULL;
    at = strtok_r(at + 1, " ", &rest);
    for (int i = STAT_FIRST; i < STAT_COUNT; i++) {
        if (at == NULL)
            return false;
        values[i] = strtod(at, NULL); /* the state is a letter, which nobody asks for */
        at = strtok_r(NULL, " ", &rest);
    }
    return true;
}

/* When the machine was started, in seconds since 1970; 0: not known. */
static double boot_time(void)
{
    char line[256];
    double at = 0;
    FILE *file = fopen("/proc/stat", "re");
    if (file == NULL)
        return 0;
    while (at == 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "btime ", 6) == 0)
            at = strtod(line + 6, NULL);
    (void)fclose(file); /* it was only read */
    return at;
}

/* From the clock, not from /proc, which counts ticks of 10 ms: a server that has done little would have 0 there. */
static void write_cpu(struct amp_metric_text *text)
{
    static const struct amp_metric cpu = {"process_cpu_seconds_total", AMP_METRIC_COUNTER,
                                          "Processor time of the process, in user and in system mode"};
    struct timespec used;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) == 0)
        amp_metric_one(text, &cpu, (double)used.tv_sec + (double)used.tv_nsec * 1e-9);
}

static void write_stat(struct amp_metric_text *text)
{
    static const struct amp_metric resident = {"process_resident_memory_bytes", AMP_METRIC_GAUGE,
                                               "Memory of the process that is resident"};
    static const struct amp_metric virtual_size = {"process_virtual_memory_bytes", AMP_METRIC_GAUGE,
                                                   "Virtual memory of the process"};
    static const struct amp_metric started = {"process_start_time_seconds", AMP_METRIC_GAUGE,
                                              "When the process started, since 1970 in UTC"};
    double values[STAT_COUNT];
    double ticks = (double)sysconf(_SC_CLK_TCK), booted = boot_time();
    if (!read_stat(values) || ticks <= 0)
        return;
    amp_metric_one(text, &resident, values[STAT_RSS] * (double)sysconf(_SC_PAGESIZE));
    amp_metric_one(text, &virtual_size, values[STAT_VSIZE]);
    if (booted > 0)
        amp_metric_one(text, &started, booted + values[STAT_STARTTIME] / ticks);
}

static void write_descriptors(struct amp_metric_text *text)
{
    static const struct amp_metric open_fds = {"process_open_fds", AMP_METRIC_GAUGE, "File descriptors that are open"};
    static const struct amp_metric max_fds = {"process_max_fds", AMP_METRIC_GAUGE,
                                              "File descriptors that may be open at most"};
    uint64_t count = io_open_files_walk(IO_OPEN_FILES_FOLDER), most = io_open_files_max();
    if (count > 0)
        amp_metric_one(text, &open_fds, (double)count);
    if (most > 0)
        amp_metric_one(text, &max_fds, (double)most);
}

void io_metrics_write_process(struct amp_metric_text *text)
{
    write_cpu(text);
    write_stat(text);
    write_descriptors(text);
}
