#include "client/core/client_retry.h"

#include "client/core/machine.h"
#include "client/core/membership.h"

#include <string.h>

/* A stream to a host that does not answer ends after about this time, when the connection has not been made. */
#define CONNECT_MS 10000

bool ampclient_core_is_text(const char *text)
{
    return text != NULL && text[0] != 0;
}

void ampclient_core_note(struct ampclient_core *core, const struct ampclient_ended *ended)
{
    const char *text = ampclient_core_is_text(ended->text) ? ended->text : amp_strerror(ended->code);
    (void)amp_error_set(&core->last_error, ended->code, ended->reason, "%s", text);
}

void ampclient_core_succeeded(struct ampclient_core *core)
{
    core->failures = 0;
    core->first_failure_ms = 0;
    ampclient_core_log_goes_on(core);
}

static bool again_later(int code)
{
    return code == AMP_EUNAVAILABLE || code == AMP_EDEADLINE || code == AMP_ECANCELLED || code == AMP_EEXHAUSTED;
}

static bool has_reason(const struct ampclient_ended *ended, const char *reason)
{
    return ended->reason != NULL && strcmp(ended->reason, reason) == 0;
}

/*
 * Whether the answer comes from a process that knows less than other servers have said: it was replaced, and neither it
 * nor its connections have noticed. Another try reaches the process in its place. The answer is never the user's
 * mistake, for the handle counts the steps itself, and leaves out only blocks that the server has reported as present.
 */
static bool is_behind(const struct ampclient_core *core, const struct ampclient_ended *ended)
{
    bool older = ended->epoch != 0 && ended->epoch < core->epoch;
    bool empty = core->has_values && has_reason(ended, "MODEL_NOT_LOADED");
    /* All shards have opened the step that this worker has begun, and no model stops within a step. */
    bool begun = ampclient_core_has_step(core);
    bool stopped = begun && (has_reason(ended, "MODEL_FROZEN") || has_reason(ended, "MODEL_UNSTABLE"));
    return (ended->code == AMP_ESTATE && (older || empty || stopped || has_reason(ended, "STEP_AHEAD"))) ||
           (ended->code == AMP_EINVAL && has_reason(ended, "INCOMPLETE_PUSH"));
}

/*
 * Whether reconnect_timeout_ms counts from this failure. That is so for the first failure in a row, and if the server
 * was alive after the failure before: it has just answered that it waited in vain for other workers, or more time has
 * passed than a call to a lost server takes to fail.
 */
static bool begins_anew(const struct ampclient_core *core, const struct ampclient_ended *ended)
{
    uint64_t call_ms = core->config.call_timeout_ms > CONNECT_MS ? core->config.call_timeout_ms : CONNECT_MS;
    uint64_t longest = 2 * (call_ms + AMPCLIENT_BACKOFF_MAX_MS);
    return core->failures == 0 || has_reason(ended, "WAITED_TOO_LONG") ||
           core->now_ms - core->last_failure_ms > longest;
}

bool ampclient_core_failed(struct ampclient_core *core, const struct ampclient_ended *ended)
{
    ampclient_core_note(core, ended);
    if (ended->code == AMP_EABORTED && !has_reason(ended, "REPLACED")) {
        bool joins = core->need_join || core->join_call != 0; /* then the other process may be this one */
        bool stops = !core->config.take_back && !joins;
        if (stops && has_reason(ended, "RANK_TAKEN")) { /* whichever call was refused: all others stop, too */
            core->taken = core->push.error = core->last_error;
            ampclient_core_push_cancel(core);
            ampclient_core_units_fail(core, &core->taken);
        } else {
            ampclient_core_lose(core, has_reason(ended, "FENCED"), core->last_error.text);
        }
        return core->taken.code != 0;
    }
    if (!again_later(ended->code) && ended->code != AMP_EABORTED && !is_behind(core, ended))
        return true;
    if (begins_anew(core, ended))
        core->first_failure_ms = core->now_ms;
    core->last_failure_ms = core->now_ms;
    uint64_t pause = AMPCLIENT_BACKOFF_MS;
    for (uint32_t i = 0; i < core->failures && pause < AMPCLIENT_BACKOFF_MAX_MS; i++)
        pause *= 2;
    if (pause > AMPCLIENT_BACKOFF_MAX_MS)
        pause = AMPCLIENT_BACKOFF_MAX_MS;
    if (ended->retry_ms > pause)
        pause = ended->retry_ms;
    core->failures++;
    ampclient_core_log_failed(core);
    core->retry_ms = core->now_ms + pause;
    bool spent = core->now_ms - core->first_failure_ms >= core->config.reconnect_timeout_ms;
    if (!spent || core->request == 0)
        return false;
    core->last_error.code = AMP_EUNAVAILABLE;
    core->retry_ms = 0;
    return true;
}
