/*
 * Lines for the client's log on what the worker's state machine does while the user waits. A line of a kind comes at
 * most once in the kind's interval, so that a loop of failures does not fill a terminal.
 */
#include "client/core/client_log.h"

#include "client/core/client_retry.h"
#include "client/core/machine.h"
#include "client/core/outbox.h"

#include <stdarg.h>
#include <stdio.h>

#define LOG_WAITING_MS 30000
/* Steps of other workers take as long as they take: only beyond this is it worth a line that this one waits. */
#define WAITED_MS 10000

bool ampclient_log_due(uint64_t *said_ms, uint64_t now_ms, uint64_t every_ms)
{
    if (*said_ms != 0 && now_ms - *said_ms < every_ms)
        return false;
    *said_ms = now_ms;
    return true;
}

static void log_line(struct ampclient_core *core, enum ampclient_core_line kind, enum ampclient_core_level level,
                     const char *format, ...) __attribute__((format(printf, 4, 5)));
static void log_line(struct ampclient_core *core, enum ampclient_core_line kind, enum ampclient_core_level level,
                     const char *format, ...)
{
    uint64_t every_ms = kind == LINE_WAITING ? LOG_WAITING_MS : AMPCLIENT_LOG_AGAIN_MS;
    if (!ampclient_log_due(&core->said_ms[kind], core->now_ms, every_ms))
        return;
    struct ampclient_output *output = ampclient_core_try_output(core, AMPCLIENT_OUT_LOG);
    if (output == NULL)
        return;
    output->u.log.level = level;
    char *text = output->u.log.text;
    int used = snprintf(text, sizeof output->u.log.text, "%s: ", core->model);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text + used, sizeof output->u.log.text - (size_t)used, format, args);
    va_end(args);
}

void ampclient_core_log_failed(struct ampclient_core *core)
{
    if (core->failures < 2)
        return; /* the first try may have met a connection that was about to end */
    core->said_trouble = true;
    log_line(core, LINE_TROUBLE, AMPCLIENT_CORE_WARN, "%s%s",
             core->last_error.reason[0] != 0 ? "trying again: " : "reconnecting: ", core->last_error.text);
}

void ampclient_core_log_goes_on(struct ampclient_core *core)
{
    if (!core->said_trouble)
        return;
    core->said_trouble = false;
    log_line(core, LINE_GOES_ON, AMPCLIENT_CORE_WARN, "connected again: rank %u continues with step %llu (epoch %llu)",
             core->rank, (unsigned long long)core->step, (unsigned long long)core->epoch);
}

void ampclient_core_log_lost(struct ampclient_core *core, const char *why)
{
    log_line(core, LINE_LOST, AMPCLIENT_CORE_WARN, "rank %u joins again: %s", core->rank, why);
}

void ampclient_core_log_joined(struct ampclient_core *core, bool again)
{
    unsigned long long step = core->step, epoch = core->epoch;
    core->said_trouble = false;
    if (!again && core->config.rank >= 0 && (uint32_t)core->config.rank != core->rank)
        log_line(
            core, LINE_JOINED, AMPCLIENT_CORE_WARN,
            "joined as rank %u of %u at step %llu (epoch %llu), and not as rank %d: its name, %s, had rank %u before",
            core->rank, core->world_size, step, epoch, (int)core->config.rank, core->worker, core->rank);
    else if (!again)
        log_line(core, LINE_JOINED, AMPCLIENT_CORE_INFO, "joined as rank %u of %u at step %llu (epoch %llu)",
                 core->rank, core->world_size, step, epoch);
    else if (core->begun_epoch != core->epoch && core->step < core->begun_step)
        log_line(core, LINE_GOES_ON, AMPCLIENT_CORE_WARN,
                 "rolled back from step %llu to step %llu (epoch %llu), joined again as rank %u",
                 (unsigned long long)core->begun_step, step, epoch, core->rank);
    else
        log_line(core, LINE_GOES_ON, AMPCLIENT_CORE_WARN, "resumed at step %llu (epoch %llu), joined again as rank %u",
                 step, epoch, core->rank);
}

void ampclient_core_log_waits(struct ampclient_core *core)
{
    uint64_t waited_ms = core->now_ms - core->request_begun_ms;
    bool waits = core->request != 0 && !core->done_ready &&
                 (core->state == AMPCLIENT_STATE_PULLING || core->state == AMPCLIENT_STATE_WAITING);
    if (!waits || waited_ms < WAITED_MS)
        return;
    log_line(core, LINE_WAITING, AMPCLIENT_CORE_WARN, "rank %u has waited %llu s for step %llu%s%s", core->rank,
             (unsigned long long)waited_ms / 1000, (unsigned long long)core->step,
             core->waiting_for[0] != 0 ? ", as the model waits for " : "", core->waiting_for);
}
