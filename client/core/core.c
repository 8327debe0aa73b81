/*
 * The handle's machine.
 *
 *   NEW         -> JOINING, LEAVING
 *   JOINING     -> READY, NEW
 *   READY       -> PULLING, FETCHING, LEAVING
 *   PULLING     -> COMPUTING, READY, DONE, LEAVING   the step is in hand; a failure; max_steps are through
 *   COMPUTING   -> WAITING, ROLLED_BACK, PULLING, LEAVING
 *   WAITING     -> READY, COMPUTING                  the verdict; the user's deadline
 *   ROLLED_BACK -> READY, PULLING, LEAVING           step_end; the step begun again
 *   FETCHING    -> READY, DONE
 *   DONE        -> FETCHING, LEAVING
 *   LEAVING     -> LEFT
 *
 * A lost membership (the epoch is over, the lease has ended, a newer incarnation) is mended by a Join in whatever state
 * the handle is. If the epoch is another one then, the step in hand is void: ROLLED_BACK. If not, its push begins anew
 * under the new incarnation.
 *
 * Events only change flags; drive() at the end of each says what is to be done now. While a cancelled stream has not
 * ended, the host may still read gradients or write parameters: nothing is begun, and no wish answered, before it has.
 */
#include "client/core/internal.h"

#include "base/assert.h"
#include "base/large.h"

#include <stdio.h>
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
    [AMPCLIENT_STATE_DONE] = TO(FETCHING) | TO(LEAVING),
    [AMPCLIENT_STATE_LEAVING] = TO(LEFT),
    [AMPCLIENT_STATE_LEFT] = 0,
};

struct ampclient_out_node {
    struct amp_list node;
    struct ampclient_output output;
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

/* ---- outputs ---- */

static struct ampclient_output *push_output(struct ampclient_core *core, enum ampclient_output_type type)
{
    struct ampclient_out_node *node = calloc(1, sizeof(*node));
    AMP_NEED(node != NULL);
    node->output.type = type;
    amp_list_push(&core->outputs, &node->node);
    return &node->output;
}

struct ampclient_output *ampclient_core_out(struct ampclient_core *core, enum ampclient_output_type type,
                                            uint32_t shard, uint64_t deadline_ms, uint64_t *call)
{
    struct ampclient_output *output = push_output(core, type);
    output->shard = shard;
    output->deadline_ms = deadline_ms;
    output->model = core->model;
    output->worker = core->worker;
    output->rank = core->has_model ? (int32_t)core->rank : core->config.rank;
    output->world_size = core->config.world_size;
    output->replace = core->config.replace;
    output->incarnation = core->incarnation;
    if (call != NULL) {
        *call = ++core->last_call;
        output->call = *call;
    }
    return output;
}

bool ampclient_core_next(struct ampclient_core *core, struct ampclient_output *output)
{
    free(core->handed);
    core->handed = NULL;
    struct amp_list *first = amp_list_shift(&core->outputs);
    if (first == NULL)
        return false;
    core->handed = AMP_CONTAINER(first, struct ampclient_out_node, node);
    *output = core->handed->output;
    return true;
}

void ampclient_core_cancel(struct ampclient_core *core, uint64_t *call, bool stream)
{
    if (*call == 0)
        return;
    push_output(core, AMPCLIENT_OUT_CANCEL)->call = *call;
    if (stream) {
        AMP_ASSERT(core->streams_dying < AMPCLIENT_DYING_MAX);
        core->dying[core->streams_dying++] = *call;
    }
    *call = 0;
}

/* ---- failures ---- */

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
    ampclient_core_say_goes_on(core);
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
 * A process that knows less than the others have told: it was replaced, and neither it nor its connections have noticed.
 * Who asks again finds the one in its place. The handle counts steps itself and leaves no block out but those it was told
 * are there, so this is never its user's mistake.
 */
static bool is_behind(const struct ampclient_core *core, const struct ampclient_ended *ended)
{
    bool older = ended->epoch != 0 && ended->epoch < core->epoch;
    bool empty = core->has_values && has_reason(ended, "MODEL_NOT_LOADED");
    return (ended->code == AMP_ESTATE && (older || empty || has_reason(ended, "STEP_AHEAD"))) ||
           (ended->code == AMP_EINVAL && has_reason(ended, "INCOMPLETE_PUSH"));
}

bool ampclient_core_failed(struct ampclient_core *core, const struct ampclient_ended *ended)
{
    ampclient_core_note(core, ended);
    if (ended->code == AMP_EABORTED && !has_reason(ended, "REPLACED")) {
        bool joins = core->need_join || core->join_call != 0; /* then the other process may be this one */
        bool stops = !core->config.take_back && !joins;
        if (stops && has_reason(ended, "RANK_TAKEN"))
            core->taken = core->last_error;
        else
            ampclient_core_lose(core, has_reason(ended, "FENCED"), core->last_error.text);
        return core->taken.code != 0;
    }
    if (!again_later(ended->code) && ended->code != AMP_EABORTED && !is_behind(core, ended))
        return true;
    if (core->failures == 0)
        core->first_failure_ms = core->now_ms;
    uint64_t pause = AMPCLIENT_BACKOFF_MS;
    for (uint32_t i = 0; i < core->failures && pause < AMPCLIENT_BACKOFF_MAX_MS; i++)
        pause *= 2;
    if (pause > AMPCLIENT_BACKOFF_MAX_MS)
        pause = AMPCLIENT_BACKOFF_MAX_MS;
    if (ended->retry_ms > pause)
        pause = ended->retry_ms;
    core->failures++;
    ampclient_core_say_failed(core);
    core->retry_ms = core->now_ms + pause;
    bool spent = core->now_ms - core->first_failure_ms >= core->config.reconnect_timeout_ms;
    if (!spent || core->wish == 0)
        return false;
    core->last_error.code = AMP_EUNAVAILABLE;
    core->retry_ms = 0;
    ampclient_core_succeeded(core); /* the next wish has a budget of its own */
    return true;
}

/* ---- wishes ---- */

void ampclient_core_finish(struct ampclient_core *core, int code, const struct amp_error *error,
                           enum ampclient_state state)
{
    if (core->state != state)
        ampclient_core_set_state(core, state);
    if (core->wish == 0)
        return;
    core->done.wish = core->wish;
    core->done.code = code;
    core->done.error = error == NULL ? (struct amp_error){0} : *error;
    core->done_ready = true;
}

static void begin_wish(struct ampclient_core *core, enum ampclient_event_type wish, uint64_t timeout_ms)
{
    core->wish = wish;
    core->wish_begun_ms = core->now_ms;
    core->wish_deadline_ms = core->now_ms + timeout_ms;
    core->done = (struct ampclient_user_done){0};
    core->done_ready = false;
}

static void refuse(struct ampclient_core *core, const char *text)
{
    struct amp_error error;
    (void)amp_error_set(&error, AMP_ESTATE, NULL, "%s", text);
    ampclient_core_finish(core, AMP_ESTATE, &error, core->state);
}

static bool refuse_taken(struct ampclient_core *core)
{
    if (core->taken.code != 0)
        ampclient_core_finish(core, core->taken.code, &core->taken, core->state);
    return core->taken.code != 0;
}

static void wish_join(struct ampclient_core *core)
{
    begin_wish(core, AMPCLIENT_EVENT_JOIN, core->config.reconnect_timeout_ms);
    if (core->state != AMPCLIENT_STATE_NEW) {
        refuse(core, "the handle has joined before");
        return;
    }
    ampclient_core_set_state(core, AMPCLIENT_STATE_JOINING);
    core->need_join = true;
}

static void wish_step_begin(struct ampclient_core *core)
{
    begin_wish(core, AMPCLIENT_EVENT_STEP_BEGIN, core->config.step_timeout_ms);
    if (refuse_taken(core))
        return;
    switch (core->state) {
    case AMPCLIENT_STATE_DONE:
        ampclient_core_finish(core, 1, NULL, AMPCLIENT_STATE_DONE);
        return;
    case AMPCLIENT_STATE_COMPUTING:
    case AMPCLIENT_STATE_ROLLED_BACK:
        ampclient_core_push_cancel(core);
        break;
    case AMPCLIENT_STATE_READY:
        break;
    default:
        refuse(core, "the model is not joined");
        return;
    }
    core->pull.by = AMPCLIENT_PULL_STEP;
    core->pull.resends = 0;
    ampclient_core_set_state(core, AMPCLIENT_STATE_PULLING);
}

static void rolled_back(struct ampclient_core *core)
{
    core->done.result =
        (struct ampclient_core_result){.epoch = core->epoch, .step = core->step, .verdict = AMPCLIENT_CORE_ROLLED_BACK};
    ampclient_core_finish(core, 0, NULL, AMPCLIENT_STATE_READY);
}

static void wish_step_end(struct ampclient_core *core)
{
    begin_wish(core, AMPCLIENT_EVENT_STEP_END, core->config.step_timeout_ms);
    if (refuse_taken(core))
        return;
    if (core->state == AMPCLIENT_STATE_ROLLED_BACK) {
        rolled_back(core);
        return;
    }
    if (core->state != AMPCLIENT_STATE_COMPUTING) {
        refuse(core, "no step is begun: call ampclient_step_begin first");
        return;
    }
    ampclient_core_push_close_step(core);
    ampclient_core_set_state(core, AMPCLIENT_STATE_WAITING);
}

static void wish_pull(struct ampclient_core *core)
{
    begin_wish(core, AMPCLIENT_EVENT_PULL_LATEST, core->config.step_timeout_ms);
    if (core->state != AMPCLIENT_STATE_READY && core->state != AMPCLIENT_STATE_DONE) {
        refuse(core, "a pull is not possible between step_begin and step_end, or before the join");
        return;
    }
    core->fetch_from = core->state;
    core->pull.by = AMPCLIENT_PULL_LATEST;
    core->pull.resends = 0;
    ampclient_core_set_state(core, AMPCLIENT_STATE_FETCHING);
}

static void wish_leave(struct ampclient_core *core)
{
    begin_wish(core, AMPCLIENT_EVENT_LEAVE, core->config.call_timeout_ms);
    if (!ampclient_state_allowed(core->state, AMPCLIENT_STATE_LEAVING)) {
        refuse(core, "the handle is busy, or has left");
        return;
    }
    ampclient_core_pull_cancel(core);
    if (core->has_model)
        ampclient_core_push_cancel(core);
    ampclient_core_set_state(core, AMPCLIENT_STATE_LEAVING);
    core->need_join = false;
    core->retry_ms = 0;
    if (core->has_model && core->taken.code == 0)
        (void)ampclient_core_out(core, AMPCLIENT_OUT_LEAVE, 0, core->config.call_timeout_ms, &core->leave_call);
    else
        ampclient_core_finish(core, 0, NULL, AMPCLIENT_STATE_LEFT);
}

static void set_user_state(struct ampclient_core *core, const void *data, size_t size)
{
    uint8_t *copy = malloc(size == 0 ? 1 : size);
    if (copy == NULL || size > AMPCLIENT_USER_STATE_MAX) {
        free(copy);
        return;
    }
    memcpy(copy, data, size);
    free(core->user_state);
    core->user_state = copy;
    core->user_state_size = (uint32_t)size;
    core->user_state_serial++;
}

/* ---- membership ---- */

static int take_model(struct ampclient_core *core, const struct ampclient_join_answer *answer)
{
    if (core->has_model)
        return ampclient_core_layout_same(&core->flat, answer) && core->cast == answer->cast ? 0 : AMP_ESTATE;
    int rc = ampclient_core_layout_init(&core->flat, answer);
    if (rc != 0)
        return rc;
    core->cast = answer->cast;
    size_t bytes = (size_t)core->flat.elements * amp_dtype_size(core->cast);
    core->parameters = aligned_alloc(64, (bytes + 63) / 64 * 64);
    amp_large_advise(core->parameters, bytes);
    core->pull.have = calloc(core->flat.blocks, 1);
    rc = ampclient_core_push_init(core);
    if (rc != 0 || core->parameters == NULL || core->pull.have == NULL || bytes == 0) {
        free(core->parameters);
        free(core->pull.have);
        ampclient_core_push_close(core);
        ampclient_core_layout_close(&core->flat);
        core->parameters = NULL;
        core->pull.have = NULL;
        memset(&core->push, 0, sizeof(core->push));
        return AMP_ENOMEM;
    }
    memset(core->parameters, 0, bytes);
    core->has_model = true;
    return 0;
}

static void take_base_state(struct ampclient_core *core, const struct ampclient_join_answer *answer)
{
    uint8_t *copy = malloc(answer->user_state_size + (size_t)1);
    free(core->base_state);
    core->base_state = copy;
    core->base_state_size = copy == NULL ? 0 : answer->user_state_size;
    if (core->base_state_size > 0)
        memcpy(copy, answer->user_state, answer->user_state_size);
}

void ampclient_core_join_failed(struct ampclient_core *core)
{
    core->need_join = core->state != AMPCLIENT_STATE_JOINING;
    switch (core->state) {
    case AMPCLIENT_STATE_JOINING:
        ampclient_core_finish(core, core->last_error.code, &core->last_error, AMPCLIENT_STATE_NEW);
        break;
    case AMPCLIENT_STATE_PULLING:
    case AMPCLIENT_STATE_WAITING:
        ampclient_core_finish(core, core->last_error.code, &core->last_error, AMPCLIENT_STATE_READY);
        break;
    case AMPCLIENT_STATE_FETCHING:
        ampclient_core_finish(core, core->last_error.code, &core->last_error, core->fetch_from);
        break;
    default:
        core->retry_ms = core->now_ms + AMPCLIENT_BACKOFF_MAX_MS;
        break;
    }
}

/* The step in hand after a new Join: void in a new epoch, else pushed again by the new incarnation. */
static void rejoined(struct ampclient_core *core, uint64_t old_epoch, uint64_t next_step)
{
    bool holds = core->state == AMPCLIENT_STATE_COMPUTING || core->state == AMPCLIENT_STATE_WAITING;
    if (!holds) {
        core->step = next_step;
        return;
    }
    if (core->epoch == old_epoch) {
        if (!ampclient_core_push_answered(core))
            ampclient_core_push_restart(core);
        return;
    }
    core->step = next_step;
    ampclient_core_push_cancel(core);
    if (core->state == AMPCLIENT_STATE_WAITING)
        rolled_back(core);
    else
        ampclient_core_set_state(core, AMPCLIENT_STATE_ROLLED_BACK);
}

static void join_ended(struct ampclient_core *core, const struct ampclient_ended *ended)
{
    core->join_call = 0;
    if (ended->code != 0) {
        core->need_join = true;
        if (ampclient_core_failed(core, ended))
            ampclient_core_join_failed(core);
        return;
    }
    const struct ampclient_join_answer *answer = &ended->u.join;
    bool again = core->has_model;
    int rc = take_model(core, answer);
    if (rc != 0) {
        (void)amp_error_set(&core->last_error, rc, NULL, "%s",
                            rc == AMP_ESTATE      ? "the model is not the one that was joined before"
                            : rc == AMP_EDATALOSS ? "the server's parameters cannot be: wrong sizes"
                                                  : "no memory for the model");
        ampclient_core_join_failed(core);
        return;
    }
    uint64_t old_epoch = core->step_epoch;
    core->need_join = core->fenced = false;
    ampclient_core_cancel(core, &core->keep_alive_call, false); /* its answer is about the incarnation of before */
    core->rank = answer->rank;
    core->world_size = answer->world_size;
    core->incarnation = answer->incarnation;
    core->lease_ms = answer->lease_ms;
    core->epoch = answer->epoch;
    core->keep_alive_ms = core->now_ms + core->lease_ms / AMPCLIENT_KEEP_ALIVE_DIVISOR;
    take_base_state(core, answer);
    core->restored_step = answer->restored_step;
    rejoined(core, old_epoch, answer->step);
    ampclient_core_say_joined(core, again);
    ampclient_core_succeeded(core);
    if (core->state == AMPCLIENT_STATE_JOINING)
        ampclient_core_finish(core, 0, NULL, AMPCLIENT_STATE_READY);
}

/* ---- what is to be done now ---- */

static void drive_wish(struct ampclient_core *core)
{
    if (core->state == AMPCLIENT_STATE_WAITING && !core->done_ready) {
        if (core->push.error.code != 0) {
            ampclient_core_finish(core, core->push.error.code, &core->push.error, AMPCLIENT_STATE_READY);
        } else if (ampclient_core_push_answered(core)) {
            core->done.result = core->push.result;
            core->step = core->push.result.step + 1;
            ampclient_core_finish(core, 0, NULL, AMPCLIENT_STATE_READY);
        }
    }
    if (!core->done_ready || core->streams_dying != 0)
        return;
    core->done_ready = false;
    push_output(core, AMPCLIENT_OUT_USER_DONE)->u.done = core->done;
    core->wish = 0;
}

static bool active(const struct ampclient_core *core)
{
    return core->state != AMPCLIENT_STATE_LEAVING && core->state != AMPCLIENT_STATE_LEFT && core->taken.code == 0;
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
    bool member = core->has_model && core->join_call == 0 && !core->need_join;
    if (!waits && member && !core->done_ready &&
        (core->state == AMPCLIENT_STATE_PULLING || core->state == AMPCLIENT_STATE_FETCHING))
        ampclient_core_pull_start(core);
    if (!waits && member)
        ampclient_core_push_drive(core);
    drive_wish(core);
}

static void arm_timer(struct ampclient_core *core)
{
    uint64_t next = 0;
    uint64_t times[] = {core->retry_ms, core->wish == 0 || core->done_ready ? 0 : core->wish_deadline_ms,
                        core->has_model && active(core) && core->keep_alive_call == 0 ? core->keep_alive_ms : 0};
    for (unsigned i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        if (times[i] != 0 && (next == 0 || times[i] < next))
            next = times[i];
    }
    if (next == 0 || next == core->timer_ms)
        return;
    core->timer_ms = next;
    push_output(core, AMPCLIENT_OUT_TIMER)->u.at_ms = next;
}

/* ---- events ---- */

static void wish_too_late(struct ampclient_core *core)
{
    struct amp_error error;
    bool knows = core->waiting_for[0] != 0 && core->failures == 0;
    (void)amp_error_set(&error, AMP_EDEADLINE, NULL, "no answer in time; last: %s%s",
                        knows                        ? "the model waits for "
                        : core->last_error.code == 0 ? "still waiting"
                                                     : core->last_error.text,
                        knows ? core->waiting_for : "");
    switch (core->state) {
    case AMPCLIENT_STATE_JOINING:
        ampclient_core_cancel(core, &core->join_call, false);
        core->need_join = false;
        ampclient_core_finish(core, AMP_EDEADLINE, &error, AMPCLIENT_STATE_NEW);
        break;
    case AMPCLIENT_STATE_PULLING:
        ampclient_core_pull_cancel(core);
        ampclient_core_finish(core, AMP_EDEADLINE, &error, AMPCLIENT_STATE_READY);
        break;
    case AMPCLIENT_STATE_FETCHING:
        ampclient_core_pull_cancel(core);
        ampclient_core_finish(core, AMP_EDEADLINE, &error, core->fetch_from);
        break;
    case AMPCLIENT_STATE_WAITING: /* the push goes on; step_end may be called again */
        ampclient_core_push_cancel(core);
        for (uint32_t k = 0; k < core->config.shards; k++)
            core->push.asked[k] = core->push.asked[k] && core->push.answered[k];
        ampclient_core_finish(core, AMP_EDEADLINE, &error, AMPCLIENT_STATE_COMPUTING);
        break;
    case AMPCLIENT_STATE_LEAVING:
        ampclient_core_cancel(core, &core->leave_call, false);
        ampclient_core_finish(core, AMP_EDEADLINE, &error, AMPCLIENT_STATE_LEFT);
        break;
    default:
        break;
    }
}

static void tick(struct ampclient_core *core)
{
    core->timer_ms = 0;
    if (core->retry_ms != 0 && core->retry_ms <= core->now_ms)
        core->retry_ms = 0;
    if (core->wish != 0 && !core->done_ready && core->wish_deadline_ms <= core->now_ms)
        wish_too_late(core);
    bool member = core->has_model && active(core) && core->join_call == 0 && !core->need_join;
    if (core->keep_alive_call != 0 || core->keep_alive_ms > core->now_ms)
        return;
    core->keep_alive_ms = core->now_ms + core->lease_ms / AMPCLIENT_KEEP_ALIVE_DIVISOR;
    if (member && core->state != AMPCLIENT_STATE_DONE)
        (void)ampclient_core_out(core, AMPCLIENT_OUT_KEEP_ALIVE, 0, core->lease_ms, &core->keep_alive_call);
}

/* A cancelled stream has let go of memory. */
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
        join_ended(core, &ended);
    else if (call == core->keep_alive_call)
        ampclient_core_keep_alive_ended(core, &ended);
    else if (call == core->leave_call) {
        core->leave_call = 0;
        ampclient_core_note(core, &ended);
        ampclient_core_finish(core, ended.code, &core->last_error, AMPCLIENT_STATE_LEFT);
    } else if (!ampclient_core_pull_ended(core, call, &ended))
        (void)ampclient_core_push_ended(core, call, &ended); /* an unknown call was cancelled */
}

void ampclient_core_step(struct ampclient_core *core, uint64_t now_ms, const struct ampclient_event *event)
{
    AMP_ASSERT(now_ms >= core->now_ms);
    core->now_ms = now_ms;
    switch (event->type) {
    case AMPCLIENT_EVENT_JOIN:
        wish_join(core);
        break;
    case AMPCLIENT_EVENT_STEP_BEGIN:
        wish_step_begin(core);
        break;
    case AMPCLIENT_EVENT_STEP_END:
        wish_step_end(core);
        break;
    case AMPCLIENT_EVENT_PULL_LATEST:
        wish_pull(core);
        break;
    case AMPCLIENT_EVENT_LEAVE:
        wish_leave(core);
        break;
    case AMPCLIENT_EVENT_USER_STATE:
        set_user_state(core, event->u.user_state.data, event->u.user_state.size);
        break;
    case AMPCLIENT_EVENT_PULL_HEADER:
        ampclient_core_pull_header(core, event->call, &event->u.header);
        break;
    case AMPCLIENT_EVENT_PULL_BLOCK:
        ampclient_core_pull_block(core, event->call, event->u.block);
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
        config->shards > AMPCLIENT_SHARDS_MAX)
        return AMP_EINVAL;
    struct ampclient_core *made = calloc(1, sizeof(*made));
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
    amp_list_init(&made->outputs);
    *core = made;
    return 0;
}

void ampclient_core_free(struct ampclient_core *core)
{
    if (core == NULL)
        return;
    free(core->handed);
    for (struct amp_list *node; (node = amp_list_shift(&core->outputs)) != NULL;)
        free(AMP_CONTAINER(node, struct ampclient_out_node, node));
    ampclient_core_push_close(core);
    ampclient_core_layout_close(&core->flat);
    free(core->pull.have);
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
    if (!core->has_values || parameter >= core->flat.parameters)
        return NULL;
    *elements = core->flat.sizes[parameter];
    return core->parameters + core->flat.starts[parameter] * amp_dtype_size(core->cast);
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
