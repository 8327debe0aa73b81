/*
 * Pushing: gradients become blocks, blocks go out as soon as they are whole, and a push that broke off goes on.
 *
 * A block is ready when every parameter in it has all its gradients; at step_end, when at least one of them has any
 * (the rest of it travels as zeros). A block of which no parameter was pushed is never sent: its parameters are absent.
 *
 * With units a gradient is read until it is let go (DRAIN). What lies in a block with elements of other parameters is
 * copied at once, for the rest of that block may come later; such a copy is freed when its block has left. A block that
 * was sent and let go is gone: where its shard lacks it after a break, the step is void (client_units.h).
 */
#include "client/core/client_push.h"

#include "amp/fp_env.h"
#include "amp/kernels.h"
#include "client/core/client_requests.h"
#include "client/core/client_retry.h"
#include "client/core/machine.h"
#include "client/core/membership.h"
#include "client/core/outbox.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a copy of the block: there is room for the widest dtype. */
static size_t edge_size(const struct ampclient_core *core, uint64_t block)
{
    return ampclient_core_layout_block_elements(&core->flat, block) * sizeof(float);
}

/* Those of the blocks [from, until) that shard k has may be ready and not sent. */
static void set_due(struct ampclient_core *core, uint32_t k, uint64_t from, uint64_t until)
{
    struct ampclient_range *due = &core->push.due[k];
    uint64_t first, end;
    ampclient_core_layout_shard(&core->flat, k, core->config.shards, &first, &end);
    first = first > from ? first : from;
    end = end < until ? end : until;
    if (first >= end)
        return;
    if (due->count > 0) {
        first = first < due->first ? first : due->first;
        end = end > due->first + due->count ? end : due->first + due->count;
    }
    *due = (struct ampclient_range){.first = first, .count = end - first};
}

/* ---- life ---- */

int ampclient_core_push_init(struct ampclient_core *core)
{
    struct ampclient_push *push = &core->push;
    const struct ampclient_core_layout *flat = &core->flat;
    push->gradients = calloc(flat->parameters, sizeof *push->gradients);
    push->given = calloc(flat->parameters, sizeof *push->given);
    push->absent = calloc(flat->parameters, sizeof *push->absent);
    push->missing = calloc(flat->blocks, sizeof *push->missing);
    push->sent = calloc(flat->blocks, 1);
    if (core->config.accumulate > 1)
        push->sums = calloc(flat->elements, sizeof *push->sums);
    if (core->config.units) {
        push->edges = calloc(flat->blocks, sizeof *push->edges);
        push->gone = calloc(flat->blocks, 1);
    }
    bool ok = push->gradients != NULL && push->given != NULL && push->absent != NULL && push->missing != NULL &&
              push->sent != NULL && (core->config.accumulate <= 1 || push->sums != NULL) &&
              (!core->config.units || (push->edges != NULL && push->gone != NULL));
    return ok ? 0 : AMP_ENOMEM;
}

static void free_edge(struct ampclient_core *core, uint64_t block)
{
    struct ampclient_push *push = &core->push;
    if (push->edges[block] == NULL)
        return;
    push->edges_bytes -= edge_size(core, block);
    free(push->edges[block]);
    push->edges[block] = NULL;
}

void ampclient_core_push_close(struct ampclient_core *core)
{
    struct ampclient_push *push = &core->push;
    for (uint64_t b = 0; push->edges != NULL && b < core->flat.blocks; b++)
        free(push->edges[b]);
    free(push->edges);
    free(push->gone);
    free(push->gradients);
    free(push->given);
    free(push->absent);
    free(push->missing);
    free(push->sent);
    free(push->sums);
}

void ampclient_core_push_restart(struct ampclient_core *core)
{
    struct ampclient_push *push = &core->push;
    ampclient_core_push_cancel(core);
    for (uint32_t k = 0; k < core->config.shards; k++) {
        push->asked[k] = !core->config.units; /* units: what was sent is gone, so has the shard got or decided it? */
        push->answered[k] = false;
        set_due(core, k, 0, core->flat.blocks);
    }
    memset(push->sent, 0, core->flat.blocks);
}

void ampclient_core_push_reset(struct ampclient_core *core)
{
    struct ampclient_push *push = &core->push;
    const struct ampclient_core_layout *flat = &core->flat;
    ampclient_core_push_restart(core);
    for (uint32_t k = 0; k < core->config.shards; k++)
        push->asked[k] = true;
    for (uint64_t b = 0; core->config.units && b < flat->blocks; b++) {
        free_edge(core, b);
        push->gone[b] = 0;
    }
    push->resends = 0;
    push->dtype = AMP_DTYPE_NONE;
    push->absent_count = 0;
    push->metrics = (struct ampclient_core_metrics){0};
    push->closed = false;
    push->error = (struct amp_error){0};
    memset(push->gradients, 0, flat->parameters * sizeof *push->gradients);
    memset(push->given, 0, flat->parameters * sizeof *push->given);
    for (uint64_t b = 0; b < flat->blocks; b++) {
        push->missing[b] = 0;
        for (uint32_t p = flat->block_parameter[b]; ampclient_core_layout_in_block(flat, p, b); p++)
            push->missing[b]++;
    }
}

/* Whether something was pushed to the step in hand, so that its header may have been sent. */
static bool has_pushed(const struct ampclient_core *core)
{
    return ampclient_core_has_step(core) && core->push.dtype != AMP_DTYPE_NONE;
}

int ampclient_core_weight(struct ampclient_core *core, float weight, struct amp_error *error)
{
    if (!(weight == 0 || (weight >= AMPCLIENT_WEIGHT_MIN && weight <= AMPCLIENT_WEIGHT_MAX)))
        return amp_error_set(error, AMP_EINVAL, NULL, "A weight of %g is not possible; give 0, or 2^-60 to 2^24.",
                             (double)weight);
    if (has_pushed(core))
        return amp_error_set(
            error, AMP_ESTATE, NULL,
            "Step %llu has been pushed to with weight %g; set the weight before the first push of a step.",
            (unsigned long long)core->step, (double)core->weight);
    core->weight = weight;
    return 0;
}

int ampclient_core_learning_rate(struct ampclient_core *core, double lr, struct amp_error *error)
{
    if (!(lr >= 0 && lr <= (double)FLT_MAX))
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "A learning rate of %g is not possible; give a finite number, 0 or more.", lr);
    if (has_pushed(core))
        return amp_error_set(error, AMP_ESTATE, NULL,
                             "Step %llu has been pushed to; set the learning rate before the first push of a step.",
                             (unsigned long long)core->step);
    core->has_lr = true;
    core->lr = lr;
    return 0;
}

void ampclient_core_push_cancel(struct ampclient_core *core)
{
    struct ampclient_push *push = &core->push;
    for (uint32_t k = 0; k < core->config.shards; k++) {
        ampclient_core_cancel(core, &push->calls[k], true);
        ampclient_core_cancel(core, &push->states[k], false);
    }
}

/* ---- gradients in ---- */

int ampclient_core_push_check(const struct ampclient_core *core, uint32_t parameter, const void *gradient,
                              enum amp_dtype dtype, struct amp_error *error)
{
    if (core->taken.code != 0)
        return amp_error_set(error, core->taken.code, core->taken.reason, "%s", core->taken.text);
    if (core->state != AMPCLIENT_STATE_COMPUTING)
        return amp_error_set(error, AMP_ESTATE, NULL, "no step has begun: call ampclient_step_begin first");
    if (core->push.closed)
        return amp_error_set(
            error, AMP_ESTATE, NULL,
            "the server has been told that the step ends: call ampclient_step_end again for its verdict");
    if (parameter >= core->flat.parameters)
        return amp_error_set(error, AMP_ERANGE, NULL, "parameter %u: the model has %u, counted from 0", parameter,
                             core->flat.parameters);
    if (gradient == NULL || (dtype != AMP_F32 && dtype != AMP_F16 && dtype != AMP_BF16))
        return amp_error_set(error, AMP_EINVAL, NULL, "parameter %u: give a gradient of AMP_F16, AMP_BF16 or AMP_F32",
                             parameter);
    if (core->push.given[parameter] >= core->config.accumulate)
        return amp_error_set(error, AMP_ESTATE, NULL,
                             "parameter %u was pushed %u times in this step, as often as accumulate says; for more, "
                             "join with a larger accumulate",
                             parameter, core->config.accumulate);
    if (core->config.accumulate == 1 && core->push.dtype != AMP_DTYPE_NONE && core->push.dtype != dtype)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "parameter %u: %s, but this step's gradients are %s; use one dtype", parameter,
                             amp_dtype_name(dtype), amp_dtype_name(core->push.dtype));
    return 0;
}

/* The first and the last block of a parameter: only these can have elements of other parameters. */
static void ends_of(const struct ampclient_core_layout *flat, uint32_t parameter, uint64_t ends[2])
{
    ends[0] = flat->starts[parameter] / flat->block_elements;
    ends[1] = (flat->starts[parameter] + flat->sizes[parameter] - 1) / flat->block_elements;
}

int ampclient_core_push_make_edges(struct ampclient_core *core, uint32_t parameter)
{
    struct ampclient_push *push = &core->push;
    uint64_t ends[2];
    ends_of(&core->flat, parameter, ends);
    for (unsigned i = 0; i < 2; i++) {
        if (ampclient_core_layout_fills(&core->flat, parameter, ends[i]) || push->edges[ends[i]] != NULL)
            continue;
        push->edges[ends[i]] = calloc(1, edge_size(core, ends[i]));
        if (push->edges[ends[i]] == NULL)
            return AMP_ENOMEM;
        push->edges_bytes += edge_size(core, ends[i]);
    }
    return 0;
}

/*
 * Copies what lies in blocks of several parameters: the rest of such a block may be pushed when this gradient is gone.
 */
static void fill_edges(struct ampclient_core *core, uint32_t parameter)
{
    const struct ampclient_core_layout *flat = &core->flat;
    uint64_t ends[2];
    ends_of(flat, parameter, ends);
    for (unsigned i = 0; i < (ends[0] == ends[1] ? 1u : 2u); i++) {
        if (!ampclient_core_layout_fills(flat, parameter, ends[i]))
            ampclient_core_layout_put(flat, parameter, core->push.gradients[parameter],
                                      amp_dtype_size(core->push.dtype), ends[i], core->push.edges[ends[i]]);
    }
}

/* Adds to the sum in the fixed floating-point environment, so that the bits do not depend on the caller's thread. */
static int add_up(struct ampclient_core *core, uint32_t parameter, const void *gradient, enum amp_dtype dtype,
                  struct amp_error *error)
{
    float *sum = core->push.sums + core->flat.starts[parameter];
    uint64_t elements = core->flat.sizes[parameter];
    struct amp_fp_env env;
    int rc = amp_fp_env_set(&env, error);
    if (rc != 0)
        return rc;
    if (core->push.given[parameter] == 0)
        amp_kernels_ref.sum_set[dtype](sum, gradient, 1, elements);
    else
        amp_kernels_ref.sum_add[dtype](sum, gradient, 1, elements);
    amp_fp_env_restore(&env);
    return 0;
}

static void parameter_whole(struct ampclient_core *core, uint32_t parameter)
{
    uint64_t ends[2];
    ends_of(&core->flat, parameter, ends);
    for (uint64_t b = ends[0]; b <= ends[1]; b++)
        core->push.missing[b]--;
    for (uint32_t k = 0; k < core->config.shards; k++)
        set_due(core, k, ends[0], ends[1] + 1);
}

int ampclient_core_push(struct ampclient_core *core, uint64_t now_ms, uint32_t parameter, const void *gradient,
                        enum amp_dtype dtype, struct amp_error *error)
{
    core->now_ms = now_ms;
    if (core->state == AMPCLIENT_STATE_ROLLED_BACK)
        return 0;
    int rc = ampclient_core_push_check(core, parameter, gradient, dtype, error);
    if (rc != 0)
        return rc;
    struct ampclient_push *push = &core->push;
    if (core->config.accumulate > 1) {
        rc = add_up(core, parameter, gradient, dtype, error);
        if (rc != 0)
            return rc;
        push->gradients[parameter] = push->sums + core->flat.starts[parameter];
        push->dtype = AMP_F32;
    } else {
        push->gradients[parameter] = gradient;
        push->dtype = dtype;
        if (core->config.units)
            fill_edges(core, parameter);
    }
    if (++push->given[parameter] == core->config.accumulate)
        parameter_whole(core, parameter);
    ampclient_core_push_drive(core);
    return 0;
}

void ampclient_core_push_close_step(struct ampclient_core *core)
{
    struct ampclient_push *push = &core->push;
    push->closed = true;
    push->absent_count = 0;
    for (uint32_t p = 0; p < core->flat.parameters; p++) {
        if (push->given[p] == 0)
            push->absent[push->absent_count++] = p;
    }
    if (push->dtype == AMP_DTYPE_NONE)
        push->dtype = AMP_F32; /* nothing was pushed */
    for (uint32_t k = 0; k < core->config.shards; k++) {
        set_due(core, k, 0, core->flat.blocks);
        /* The header that was sent has an older user state: begin the stream again, and go on where it was. */
        if (push->outdated[k])
            ampclient_core_cancel(core, &push->calls[k], true);
    }
}

/* ---- blocks out ---- */

static bool any_given(const struct ampclient_core *core, uint64_t block)
{
    const struct ampclient_core_layout *flat = &core->flat;
    for (uint32_t p = flat->block_parameter[block]; ampclient_core_layout_in_block(flat, p, block); p++) {
        if (core->push.given[p] > 0)
            return true;
    }
    return false;
}

static bool ready(const struct ampclient_core *core, uint64_t block)
{
    if (core->push.missing[block] == 0)
        return true;
    return core->push.closed && any_given(core, block);
}

static void open_stream(struct ampclient_core *core, uint32_t k)
{
    struct ampclient_push *push = &core->push;
    push->asked[k] = push->ended[k] = push->outdated[k] = false;
    struct ampclient_output *output =
        ampclient_core_out(core, AMPCLIENT_OUT_PUSH, k, ampclient_core_wait_ms(core), &push->calls[k]);
    push->drained[k] = true;
    output->u.push = (struct ampclient_out_push){.epoch = core->step_epoch,
                                                 .step = core->step,
                                                 .scale_id = core->scale_id,
                                                 .dtype = push->dtype,
                                                 .weight = core->weight,
                                                 .has_lr = core->has_lr,
                                                 .lr = core->lr};
}

static void ask_state(struct ampclient_core *core, uint32_t k)
{
    struct ampclient_push *push = &core->push;
    uint64_t first, end;
    ampclient_core_layout_shard(&core->flat, k, core->config.shards, &first, &end);
    memset(push->sent + first, 0, end - first);
    set_due(core, k, first, end);
    struct ampclient_output *output =
        ampclient_core_out(core, AMPCLIENT_OUT_GET_PUSH_STATE, k, core->config.call_timeout_ms, &push->states[k]);
    output->u.push = (struct ampclient_out_push){.epoch = core->step_epoch, .step = core->step};
}

bool ampclient_core_push_any_answered(const struct ampclient_core *core)
{
    for (uint32_t k = 0; k < core->config.shards; k++) {
        if (core->push.answered[k])
            return true;
    }
    return false;
}

/* Units: a shard lacks bytes that this process no longer has. If another shard has answered, the step is decided. */
static void bytes_are_gone(struct ampclient_core *core)
{
    if (ampclient_core_push_any_answered(core))
        ampclient_core_push_too_late(core);
    else
        ampclient_core_void_step(core);
}

/* NULL: there is no memory, and the push has ended. */
static struct ampclient_range *begin_run(struct ampclient_core *core, uint32_t k, uint64_t first)
{
    struct ampclient_output *output = ampclient_core_try_output(core, AMPCLIENT_OUT_PUSH_BLOCKS);
    if (output == NULL) {
        (void)amp_error_set(&core->push.error, AMP_ENOMEM, NULL,
                            "there is no memory for the list of blocks to send; free some");
        ampclient_core_push_cancel(core);
        return NULL;
    }
    output->shard = k;
    output->call = core->push.calls[k];
    output->u.blocks = (struct ampclient_range){.first = first};
    return &output->u.blocks;
}

static void drive_shard(struct ampclient_core *core, uint32_t k)
{
    struct ampclient_push *push = &core->push;
    struct ampclient_range *run = NULL; /* of blocks that follow each other: one output for all of them */
    if (push->answered[k] || push->states[k] != 0)
        return;
    if (push->calls[k] == 0 && !push->asked[k]) {
        ask_state(core, k);
        return;
    }
    for (uint64_t b = push->due[k].first; b < push->due[k].first + push->due[k].count; b++) {
        if (push->sent[b] != 0 || !ready(core, b))
            continue;
        if (core->config.units && push->gone[b] != 0) {
            bytes_are_gone(core);
            return;
        }
        if (push->calls[k] == 0)
            open_stream(core, k);
        if (run == NULL || run->first + run->count != b)
            run = begin_run(core, k, b);
        if (run == NULL)
            return;
        run->count++;
        push->sent[b] = 1;
        push->drained[k] = false;
    }
    push->due[k].count = 0;
    if (!push->closed)
        return;
    if (push->calls[k] == 0)
        open_stream(core, k);
    if (push->ended[k])
        return;
    push->ended[k] = true;
    struct ampclient_output *output = ampclient_core_out(core, AMPCLIENT_OUT_PUSH_END, k, 0, NULL);
    output->call = push->calls[k];
    output->u.end.absent = push->absent;
    output->u.end.absent_count = push->absent_count;
    output->u.end.metrics = &push->metrics;
}

static bool may_send(const struct ampclient_core *core)
{
    return ampclient_core_may_call(core) && ampclient_core_has_step(core) && core->push.error.code == 0;
}

void ampclient_core_push_drive(struct ampclient_core *core)
{
    for (uint32_t k = 0; k < core->config.shards && may_send(core); k++)
        drive_shard(core, k);
}

/* ---- answers ---- */

void ampclient_core_push_state(struct ampclient_core *core, uint64_t call, const struct ampclient_event *event)
{
    if (ampclient_core_shard_of(core, core->push.states, call) < 0)
        return;
    for (uint64_t i = 0; i < event->u.push_state.ranges_count; i++) {
        const struct ampclient_range *range = &event->u.push_state.ranges[i];
        for (uint64_t b = range->first; b < core->flat.blocks && b - range->first < range->count; b++)
            core->push.sent[b] = 1;
    }
}

bool ampclient_core_push_answered(const struct ampclient_core *core)
{
    for (uint32_t k = 0; k < core->config.shards; k++) {
        if (!core->push.answered[k])
            return false;
    }
    return true;
}

void ampclient_core_push_drained(struct ampclient_core *core, uint64_t call)
{
    int k = ampclient_core_shard_of(core, core->push.calls, call);
    if (k >= 0 && call != 0)
        core->push.drained[k] = true;
}

bool ampclient_core_push_let_go(struct ampclient_core *core)
{
    struct ampclient_push *push = &core->push;
    if (!ampclient_core_may_call(core))
        return false;
    for (uint32_t k = 0; k < core->config.shards; k++) {
        bool known = (push->asked[k] || push->calls[k] != 0) && push->states[k] == 0;
        if (!push->answered[k] && (!known || (push->calls[k] != 0 && !push->drained[k])))
            return false;
    }
    /* Every block that could be sent was, so what is not sent is in edges. */
    memset(push->gradients, 0, core->flat.parameters * sizeof *push->gradients);
    for (uint64_t b = 0; b < core->flat.blocks; b++) {
        if (push->sent[b] == 0)
            continue;
        push->gone[b] = 1;
        free_edge(core, b);
    }
    return true;
}

/* An answer of one shard is that of all shards. Without any, the step was decided without this worker. */
void ampclient_core_push_too_late(struct ampclient_core *core)
{
    if (!ampclient_core_push_any_answered(core))
        core->push.result = (struct ampclient_core_result){
            .epoch = core->step_epoch, .step = core->step, .verdict = AMPCLIENT_CORE_LATE};
    ampclient_core_push_cancel(core);
    for (uint32_t k = 0; k < core->config.shards; k++)
        core->push.answered[k] = true;
}

static void push_failed(struct ampclient_core *core, const struct ampclient_ended *ended)
{
    struct ampclient_push *push = &core->push;
    if (ended->code == AMP_EABORTED && ended->epoch == core->epoch && strcmp(ended->reason, "STALE_STEP") == 0) {
        ampclient_core_push_too_late(core);
        return;
    }
    if (ended->code == AMP_EDATALOSS && push->resends < AMPCLIENT_BLOCK_RESENDS_MAX) {
        push->resends++;
        return;
    }
    if (ampclient_core_failed(core, ended)) {
        push->error = core->last_error;
        ampclient_core_push_cancel(core);
    }
}

bool ampclient_core_push_ended(struct ampclient_core *core, uint64_t call, const struct ampclient_ended *ended)
{
    struct ampclient_push *push = &core->push;
    int k = ampclient_core_shard_of(core, push->states, call);
    if (k >= 0) {
        push->states[k] = 0;
        if (ended->code != 0)
            push_failed(core, ended);
        else
            push->asked[k] = true;
        return true;
    }
    k = ampclient_core_shard_of(core, push->calls, call);
    if (k < 0)
        return false;
    push->calls[k] = 0;
    if (ended->code == AMP_EDEADLINE) /* other workers took as long: no server has failed, GetPushState asks it */
        return true;
    if (ended->code != 0) {
        push_failed(core, ended);
        return true;
    }
    ampclient_core_succeeded(core);
    push->answered[k] = true;
    push->result = ended->u.push;
    return true;
}

/* ---- the bytes of a block ---- */

const void *ampclient_core_block(const struct ampclient_core *core, uint64_t block, void *scratch, size_t *size)
{
    const struct ampclient_push *push = &core->push;
    size_t each = amp_dtype_size(push->dtype);
    *size = ampclient_core_layout_block_elements(&core->flat, block) * each;
    if (push->edges == NULL || push->edges[block] == NULL)
        return ampclient_core_layout_values(&core->flat, (const void *const *)push->gradients, each, block, scratch);
    memcpy(scratch, push->edges[block], *size); /* a copy: the edge is freed when the block has left */
    return scratch;
}
