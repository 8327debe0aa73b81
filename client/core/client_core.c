/*
 * The state machine of a worker's handle.
 *
 *   NEW         -> JOINING, LEAVING
 *   JOINING     -> READY, NEW
 *   READY       -> PULLING, FETCHING, LEAVING
 *   PULLING     -> COMPUTING, READY, DONE, LEAVING   the step is in hand; a failure; max_steps are done
 *   COMPUTING   -> WAITING, ROLLED_BACK, PULLING, LEAVING
 *   WAITING     -> READY, COMPUTING                  the verdict; the user's deadline
 *   ROLLED_BACK -> READY, PULLING, LEAVING           step_end; the step begun again
 *   FETCHING    -> READY, DONE
 *   DONE        -> PULLING, FETCHING, LEAVING        step_begin: the model may have been rolled back since
 *   LEAVING     -> LEFT
 *
 * If a shard lacks bytes of units that this process no longer has, COMPUTING also becomes ROLLED_BACK, and WAITING
 * becomes READY. The requests GATHER and DRAIN wait without a change of state.
 *
 * A lost membership (the epoch is over, the lease has ended, or there is a newer incarnation) is repaired by a Join, in
 * every state. If the epoch is another one then, the step in hand is void: ROLLED_BACK. If not, its push begins again
 * under the new incarnation.
 *
 * Events only change flags; drive(), at the end of each event, begins what these flags call for. While a cancelled
 * stream has not ended, the I/O layer may still read gradients or write parameters: until then nothing is begun, and no
 * request is answered.
 */
#include "client/core/client_core.h"

#include "base/assert.h"
#include "client/core/client_requests.h"
#include "client/core/client_retry.h"
#include "client/core/machine.h"
#include "client/core/membership.h"
#include "client/core/outbox.h"

#include <stdlib.h>
#include <string.h>

#define TO(state) (1u << AMPCLIENT_STATE_##state)

static const char *const state_names[AMPCLIENT_STATES_COUNT] = {
    "NEW", "JOINING", "READY", "PULLING", "COMPUTING", "WAITING", "ROLLED_BACK", "FETCHING", "DONE", "LEAVING", "LEFT"};

static const uint32_t state_allowed[AMPCLIENT_STATES_COUNT] = {
    [AMPCLIENT_STATE_NEW] = TO(JOINING) | TO(LEAVING),
    [AMPCLIENT_STATE_JOINING] = TO(READY) | TO(NEW),
    [AMPCLIENT_STATE_READY] = TO(PULLING) | TO(FETCHING) | TO(LEAVING),
    [AMPCLIENT_STATE_PULLING] = TO(COMPUTING) | TO(READY) | TO(DONE) | TO(LEAVING),
    [AMPCLIENT_STATE_COMPUTING] = TO(WAITING) | TO(ROLLED_BACK) | TO(PULLING) | TO(LEAVING),
    [AMPCLIENT_STATE_WAITING] = TO(READY) | TO(COMPUTING),
    [AMPCLIENT_STATE_ROLLED_BACK] = TO(READY) | TO(PULLING) | TO(LEAVING),
    [AMPCLIENT_STATE_FETCHING] = TO(READY) | TO(DONE),
    [AMPCLIENT_STATE_DONE] = TO(PULLING) | TO(FETCHING) | TO(LEAVING),
    [AMPCLIENT_STATE_LEAVING] = TO(LEFT),
    [AMPCLIENT_STATE_LEFT] = 0,
};

const char *ampclient_state_name(enum ampclient_state state)
{
    return state < AMPCLIENT_STATES_COUNT ? state_names[state] : "";
}

bool ampclient_state_allowed(enum ampclient_state from, enum ampclient_state to)
{
    return from < AMPCLIENT_STATES_COUNT && to < AMPCLIENT_STATES_COUNT && (state_allowed[from] >> to & 1) != 0;
}

void ampclient_core_set_state(struct ampclient_core *core, enum ampclient_state state)
{
    AMP_ASSERT(ampclient_state_allowed(core->state, state));
    core->state = state;
}

/* ---- what is to be done now ---- */

static bool active(const struct ampclient_core *core)
{
    return core->state != AMPCLIENT_STATE_LEAVING && core->state != AMPCLIENT_STATE_LEFT && core->taken.code == 0;
}

uint64_t ampclient_core_wait_ms(const struct ampclient_core *core)
{
    return 2 * core->config.step_timeout_ms;
}

bool ampclient_core_may_call(const struct ampclient_core *core)
{
    return core->has_model && core->join_call == 0 && !core->need_join && core->retry_ms == 0 &&
           core->streams_dying == 0;
}

bool ampclient_core_has_step(const struct ampclient_core *core)
{
    return core->state == AMPCLIENT_STATE_COMPUTING || core->state == AMPCLIENT_STATE_WAITING;
}

int ampclient_core_shard_of(const struct ampclient_core *core, const uint64_t *calls, uint64_t call)
{
    for (uint32_t k = 0; k < core->config.shards; k++) {
        if (calls[k] == call)
            return (int)k;
    }
    return -1;
}

static void drive(struct ampclient_core *core)
{
    bool waits = core->retry_ms != 0 || core->streams_dying != 0;
    bool joins = !waits && active(core) && core->need_join && core->join_call == 0 && !core->done_ready;
    if (joins && core->fenced && core->keep_alive_call == 0) {
        (void)ampclient_core_out(core, AMPCLIENT_OUT_KEEP_ALIVE, 0, core->config.call_timeout_ms,
                                 &core->keep_alive_call);
    } else if (joins && !core->fenced) {
        core->need_join = false;
        (void)ampclient_core_out(core, AMPCLIENT_OUT_JOIN, 0, core->config.call_timeout_ms, &core->join_call);
    }
    if (ampclient_core_may_call(core) && !core->done_ready &&
        (core->state == AMPCLIENT_STATE_PULLING || core->state == AMPCLIENT_STATE_FETCHING))
        ampclient_core_pull_start(core);
    ampclient_core_push_drive(core);
    ampclient_core_units_drive(core);
    ampclient_core_drive_request(core);
}

static void arm_timer(struct ampclient_core *core)
{
    uint64_t next = 0;
    uint64_t times[] = {core->retry_ms, core->request == 0 || core->done_ready ? 0 : core->request_deadline_ms,
                        core->has_model && active(core) && core->keep_alive_call == 0 ? core->keep_alive_ms : 0};
    for (unsigned i = 0; i < sizeof times / sizeof times[0]; i++) {
        if (times[i] != 0 && (next == 0 || times[i] < next))
            next = times[i];
    }
    if (next == 0 || next == core->timer_ms)
        return;
    core->timer_ms = next;
    ampclient_core_push_output(core, AMPCLIENT_OUT_TIMER)->u.at_ms = next;
}

/* ---- events ---- */

static void stop_waiting(struct ampclient_core *core, int code)
{
    if (core->request != 0 && !core->done_ready)
        ampclient_core_request_stop(core, code);
}

static void tick(struct ampclient_core *core)
{
    core->timer_ms = 0;
    if (core->retry_ms != 0 && core->retry_ms <= core->now_ms)
        core->retry_ms = 0;
    if (core->request_deadline_ms <= core->now_ms)
        stop_waiting(core, AMP_EDEADLINE);
    bool member = core->has_model && active(core) && core->join_call == 0 && !core->need_join;
    if (core->keep_alive_call != 0 || core->keep_alive_ms > core->now_ms)
        return;
    core->keep_alive_ms = core->now_ms + core->lease_ms / AMPCLIENT_KEEP_ALIVE_DIVISOR;
    if (member && core->state != AMPCLIENT_STATE_DONE)
        (void)ampclient_core_out(core, AMPCLIENT_OUT_KEEP_ALIVE, 0, core->lease_ms, &core->keep_alive_call);
}

/* Whether the call is a cancelled stream: it has ended, and no longer uses memory. */
static bool dying_ended(struct ampclient_core *core, uint64_t call)
{
    for (uint32_t i = 0; i < core->streams_dying; i++) {
        if (core->dying[i] != call)
            continue;
        core->dying[i] = core->dying[--core->streams_dying];
        return true;
    }
    return false;
}

static void call_ended(struct ampclient_core *core, uint64_t call, const struct ampclient_ended *given)
{
    struct ampclient_ended ended = *given;
    if (ended.reason == NULL)
        ended.reason = "";
    if (ended.text == NULL)
        ended.text = "";
    if (call == 0 || dying_ended(core, call))
        return;
    if (call == core->join_call)
        ampclient_core_join_ended(core, &ended);
    else if (call == core->keep_alive_call)
        ampclient_core_keep_alive_ended(core, &ended);
    else if (call == core->leave_call)
        ampclient_core_leave_ended(core, &ended);
    else if (!ampclient_core_units_ended(core, call, &ended) && !ampclient_core_pull_ended(core, call, &ended))
        (void)ampclient_core_push_ended(core, call, &ended); /* a call that nobody knows was cancelled */
}

void ampclient_core_step(struct ampclient_core *core, uint64_t now_ms, const struct ampclient_event *event)
{
    AMP_ASSERT(now_ms >= core->now_ms);
    core->now_ms = now_ms;
    switch (event->type) {
    case AMPCLIENT_EVENT_JOIN:
    case AMPCLIENT_EVENT_STEP_BEGIN:
    case AMPCLIENT_EVENT_STEP_END:
    case AMPCLIENT_EVENT_PULL_LATEST:
    case AMPCLIENT_EVENT_LEAVE:
    case AMPCLIENT_EVENT_GATHER:
    case AMPCLIENT_EVENT_DRAIN:
        ampclient_core_request(core, event);
        break;
    case AMPCLIENT_EVENT_INTERRUPT:
        stop_waiting(core, AMP_ECANCELLED);
        break;
    case AMPCLIENT_EVENT_PULL_HEADER:
        if (!ampclient_core_units_header(core, event->call, &event->u.header))
            ampclient_core_pull_header(core, event->call, &event->u.header);
        break;
    case AMPCLIENT_EVENT_PULL_BLOCK:
        if (!ampclient_core_units_block(core, event->call, event->u.block))
            ampclient_core_pull_block(core, event->call, event->u.block);
        break;
    case AMPCLIENT_EVENT_PUSH_DRAINED:
        ampclient_core_push_drained(core, event->call);
        break;
    case AMPCLIENT_EVENT_PUSH_STATE:
        ampclient_core_push_state(core, event->call, event);
        break;
    case AMPCLIENT_EVENT_ENDED:
        call_ended(core, event->call, &event->u.ended);
        break;
    case AMPCLIENT_EVENT_TICK:
        tick(core);
        break;
    }
    drive(core);
    arm_timer(core);
}

/* ---- life ---- */

static uint64_t or_default(uint64_t value, uint64_t fallback)
{
    return value == 0 ? fallback : value;
}

int ampclient_core_new(const struct ampclient_core_config *config, struct ampclient_core **core)
{
    *core = NULL;
    size_t model = config->model == NULL ? 0 : strnlen(config->model, AMPCLIENT_NAME_MAX);
    size_t worker = config->worker == NULL ? 0 : strnlen(config->worker, AMPCLIENT_NAME_MAX);
    if (model == 0 || model == AMPCLIENT_NAME_MAX || worker == AMPCLIENT_NAME_MAX ||
        config->shards > AMPCLIENT_SHARDS_MAX || (config->units && config->accumulate > 1))
        return AMP_EINVAL;
    struct ampclient_core *made = calloc(1, sizeof *made);
    if (made == NULL)
        return AMP_ENOMEM;
    made->config = *config;
    made->config.shards = config->shards == 0 ? 1 : config->shards;
    made->config.accumulate = config->accumulate == 0 ? 1 : config->accumulate;
    made->weight = 1;
    made->config.reconnect_timeout_ms = or_default(config->reconnect_timeout_ms, AMPCLIENT_RECONNECT_MS);
    made->config.step_timeout_ms = or_default(config->step_timeout_ms, AMPCLIENT_STEP_TIMEOUT_MS);
    made->config.call_timeout_ms = or_default(config->call_timeout_ms, AMPCLIENT_CALL_TIMEOUT_MS);
    memcpy(made->model, config->model, model);
    if (worker > 0)
        memcpy(made->worker, config->worker, worker);
    int rc = ampclient_core_outbox_init(made);
    if (rc != 0) {
        ampclient_core_free(made);
        return rc;
    }
    *core = made;
    return 0;
}

void ampclient_core_free(struct ampclient_core *core)
{
    if (core == NULL)
        return;
    ampclient_core_outbox_close(core);
    ampclient_core_push_close(core);
    ampclient_core_units_close(core);
    ampclient_core_layout_close(&core->flat);
    free(core->pull.have);
    if (!core->parameters_given)
        free(core->parameters);
    free(core->base_state);
    free(core->user_state);
    free(core);
}

/* ---- query ---- */

enum ampclient_state ampclient_core_state(const struct ampclient_core *core)
{
    return core->state;
}

uint32_t ampclient_core_rank(const struct ampclient_core *core)
{
    return core->rank;
}

uint32_t ampclient_core_world_size(const struct ampclient_core *core)
{
    return core->world_size;
}

const void *ampclient_core_parameter(const struct ampclient_core *core, uint32_t parameter, uint64_t *elements)
{
    *elements = 0;
    /* held_epoch 0: a pull has overwritten some of the parameters and broken off. */
    bool torn = !core->config.units && core->values == core->parameters && core->held_epoch == 0;
    if (!core->has_values || torn || parameter >= core->flat.parameters)
        return NULL;
    *elements = core->flat.sizes[parameter];
    if (core->config.units)
        return ampclient_core_units_parameter(core, parameter);
    return core->values + core->flat.starts[parameter] * amp_dtype_size(core->cast);
}

const uint8_t *ampclient_core_user_state(const struct ampclient_core *core, size_t *size)
{
    *size = core->base_state_size;
    return core->base_state;
}

uint64_t ampclient_core_blocks(const struct ampclient_core *core)
{
    return core->flat.blocks;
}

uint32_t ampclient_core_block_elements(const struct ampclient_core *core, uint64_t block)
{
    return ampclient_core_layout_block_elements(&core->flat, block);
}
