#include "server/io/process/log_steps.h"

#include "server/io/base/server.h"

#include <inttypes.h>
#include <stdio.h>

static const char *const verdict_names[] = {
    [AMPD_VERDICT_APPLIED] = "APPLIED",
    [AMPD_VERDICT_SKIPPED_OVERFLOW] = "SKIPPED_OVERFLOW",
    [AMPD_VERDICT_SKIPPED_EMPTY] = "SKIPPED_EMPTY",
};

/* Logs a step that overflowed, with its first row: that of the lowest parameter, and for it of the lowest rank. */
static void log_overflow(const struct ampd_server *server, uint32_t model, const struct ampd_model_spec *spec,
                         const struct ampd_step_row *row, uint64_t suppressed)
{
    const struct ampd_overflow_row *first = &row->rows[0];
    char rank[16] = "none", scale[32], next[32];
    const char *name = "";
    (void)snprintf(scale, sizeof scale, "%.9g", (double)row->scale);
    (void)snprintf(next, sizeof next, "%.9g", (double)row->after.scaler.scale);
    if (first->rank == AMPD_RANK_SUM)
        (void)snprintf(rank, sizeof rank, "sum");
    else if (first->rank == AMPD_RANK_RANGE)
        (void)snprintf(rank, sizeof rank, "range");
    else
        (void)snprintf(rank, sizeof rank, "%u", first->rank);
    const struct ampd_contributor *whose = ampd_contributor_of(row->contributors, row->contributors_count, first->rank);
    if (whose != NULL && first->rank < spec->world_size)
        name = ampd_core_worker_name(server->core, model, first->rank, whose->incarnation);
    amp_log(server->log, AMP_LOG_INFO, "core",
            "msg=\"step skipped: Inf or NaN\" model=%s step=%" PRIu64 " parameter=%s rank=%s worker=%s inf=%" PRIu64
            " nan=%" PRIu64 " pairs=%" PRIu64 " scale=%s next_scale=%s suppressed=%" PRIu64,
            spec->name, row->step,
            first->parameter < spec->parameters_count ? spec->parameters[first->parameter].name : "", rank, name,
            row->inf_total, row->nan_total, row->overflow_params, scale, next, suppressed);
}

static void log_skip(const struct ampd_server *server, uint32_t model, const struct ampd_model_spec *spec,
                     const struct ampd_step_row *row, uint64_t suppressed)
{
    if (row->verdict == AMPD_VERDICT_SKIPPED_OVERFLOW && row->rows_count > 0)
        log_overflow(server, model, spec, row, suppressed);
    else if (row->verdict != AMPD_VERDICT_APPLIED)
        amp_log(server->log, AMP_LOG_INFO, "core",
                "msg=\"step skipped\" model=%s step=%" PRIu64 " verdict=%s suppressed=%" PRIu64, spec->name, row->step,
                verdict_names[row->verdict], suppressed);
    else
        amp_log(server->log, AMP_LOG_INFO, "core",
                "msg=\"steps were skipped since the last line about it\" model=%s step=%" PRIu64 " suppressed=%" PRIu64,
                spec->name, row->step, suppressed);
}

void io_log_steps_row(struct ampd_server *server, uint32_t model, const struct ampd_step_row *row)
{
    struct ampd_model_info info;
    uint64_t suppressed = 0;
    ampd_core_model(server->core, model, &info);
    if (info.deleted)
        return;
    if (row == NULL) {
        amp_log(server->log, AMP_LOG_INFO, "core", "msg=\"done: max_steps are decided\" model=%s step=%" PRIu64,
                info.spec->name, info.decided_step);
        return;
    }
    if (row->kind != AMPD_ROW_STEP)
        return;
    amp_log(server->log, AMP_LOG_DEBUG, "core", "msg=\"step %" PRIu64 " is decided: %s\" model=%s", row->step,
            verdict_names[row->verdict], info.spec->name);
    if (io_counts_log_skip(&server->counts, model, row, &suppressed))
        log_skip(server, model, info.spec, row, suppressed);
}
