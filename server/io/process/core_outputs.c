/* Carries out each output of the core: replies, writes, jobs, messages to other shards. */
#include "server/io/process/core_outputs.h"

#include "server/io/base/core_event.h"
#include "server/io/base/counts.h"
#include "server/io/base/server.h"
#include "server/io/calls/server_call.h"
#include "server/io/cluster/membership.h"
#include "server/io/cluster/peers.h"
#include "server/io/host/checkpoint_files.h"
#include "server/io/host/jobs.h"
#include "server/io/host/persist.h"
#include "server/io/host/watchers.h"
#include "server/io/host/write_journal.h"
#include "server/io/process/drain.h"
#include "server/io/process/log_steps.h"
#include "server/io/process/server_health.h"

static void log_line(const struct ampd_server *server, enum amp_log_level level, const char *model, const char *text)
{
    if (model != NULL && model[0] != 0)
        amp_log(server->log, level, "core", "msg=\"%s\" model=%s", text, model);
    else
        amp_log(server->log, level, "core", "msg=\"%s\"", text);
}

/* An output for a call. If the call is gone, nobody needs it. */
static void call_output(struct ampd_server *server, const struct ampd_output *output)
{
    struct io_server_call *call = io_server_call_find(server, output->call);
    if (call == NULL)
        return;
    if (output->type == AMPD_OUT_REPLY)
        io_server_call_answer(call, &output->u.reply);
    else
        call->ops->output_cb(call, output);
}

static void do_output(struct ampd_server *server, const struct ampd_output *output)
{
    switch (output->type) {
    case AMPD_OUT_REPLY:
    case AMPD_OUT_LOAD_GRANT:
    case AMPD_OUT_PUSH_GRANT:
    case AMPD_OUT_PUSH_BLOCKS:
    case AMPD_OUT_PUSH_REVOKE:
    case AMPD_OUT_PULL_GRANT:
    case AMPD_OUT_PULL_BLOCKS:
    case AMPD_OUT_PULL_REVOKE:
        call_output(server, output);
        break;
    case AMPD_OUT_JOB:
        io_jobs_submit(server, &output->u.job);
        break;
    case AMPD_OUT_PERSIST:
        io_persist(server, &output->u.persist);
        break;
    case AMPD_OUT_RESTORE:
        io_checkpoint_files_restore(server, &output->u.restore);
        break;
    case AMPD_OUT_CUT:
        io_checkpoint_files_cut(server, &output->u.cut);
        break;
    case AMPD_OUT_PART_BLOCKS:
        io_checkpoint_files_cut_blocks(server, &output->u.part_blocks);
        break;
    case AMPD_OUT_CUT_CANCEL:
        io_checkpoint_files_cut_cancel(server, output->u.token);
        break;
    case AMPD_OUT_DROP_CHECKPOINT:
        io_persist_drop_checkpoint(server, output->u.drop.model, output->u.drop.checkpoint, output->u.drop.file_only);
        break;
    case AMPD_OUT_JOURNAL:
        io_write_journal(server, &output->u.journal);
        break;
    case AMPD_OUT_REPLAY:
        io_write_journal_replay(server, &output->u.replay);
        break;
    case AMPD_OUT_JOURNAL_PRUNE:
        io_write_journal_prune(server, output->u.journal_prune.model, output->u.journal_prune.epoch,
                               output->u.journal_prune.step);
        break;
    case AMPD_OUT_NOTIFY:
        if (output->u.notify.row != NULL)
            io_counts_row(&server->counts, output->u.notify.model, output->u.notify.row);
        io_log_steps_row(server, output->u.notify.model, output->u.notify.row);
        io_watchers_row(server, output->u.notify.model);
        break;
    case AMPD_OUT_TIMER:
        io_core_event_tick_at(server, output->u.timer.at_ms);
        break;
    case AMPD_OUT_LOG:
        log_line(server, output->u.log.level, output->u.log.model, output->u.log.text);
        break;
    case AMPD_OUT_DRAINED:
        io_drain_core_done(server);
        break;
    case AMPD_OUT_FENCED:
        io_membership_fenced(server, &output->u.fence);
        break;
    case AMPD_OUT_RAISE_EPOCH:
        io_membership_raise(server, output->u.raise.token, output->u.raise.model, output->u.raise.epoch);
        break;
    case AMPD_OUT_SEND:
        io_peers_send(server, output->u.message);
        break;
    }
}

const struct io_core_ops io_core_outputs_ops = {
    .before_cb = io_membership_check, .output_cb = do_output, .after_cb = io_server_health_update};
