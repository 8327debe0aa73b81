#include "client/core/client_units.h"

#include "base/assert.h"
#include "base/large.h"
#include "client/core/client_requests.h"
#include "client/core/client_retry.h"
#include "client/core/machine.h"
#include "client/core/outbox.h"

#include <stdlib.h>
#include <string.h>

#define TO(state) (1u << AMPCLIENT_UNIT_##state)

static const char *const state_names[AMPCLIENT_UNIT_STATES_COUNT] = {"ABSENT", "COMING", "HERE"};

static const uint32_t state_allowed[AMPCLIENT_UNIT_STATES_COUNT] = {
    [AMPCLIENT_UNIT_ABSENT] = TO(COMING),
    [AMPCLIENT_UNIT_COMING] = TO(HERE) | TO(ABSENT),
    [AMPCLIENT_UNIT_HERE] = TO(ABSENT),
};

const char *ampclient_unit_state_name(enum ampclient_unit_state state)
{
    return state < AMPCLIENT_UNIT_STATES_COUNT ? state_names[state] : "";
}

bool ampclient_unit_state_allowed(enum ampclient_unit_state from, enum ampclient_unit_state to)
{
    return from < AMPCLIENT_UNIT_STATES_COUNT && to < AMPCLIENT_UNIT_STATES_COUNT &&
           (state_allowed[from] >> to & 1) != 0;
}

static void set_state(struct ampclient_unit *unit, enum ampclient_unit_state state)
{
    AMP_ASSERT(ampclient_unit_state_allowed(unit->state, state));
    unit->state = state;
}

static size_t memory_size(const struct ampclient_core *core, const struct ampclient_unit *unit)
{
    return (size_t)(unit->blocks * core->flat.block_elements) * amp_dtype_size(core->cast);
}

static void free_memory(struct ampclient_core *core, struct ampclient_unit *unit)
{
    if (unit->memory == NULL)
        return;
    core->units.held_bytes -= memory_size(core, unit);
    amp_large_free(unit->memory, memory_size(core, unit));
    unit->memory = NULL;
}

/* ---- life ---- */

int ampclient_core_units_init(struct ampclient_core *core)
{
    core->units.unit_of = calloc(core->flat.parameters, sizeof *core->units.unit_of);
    return core->units.unit_of != NULL ? 0 : AMP_ENOMEM;
}

void ampclient_core_units_close(struct ampclient_core *core)
{
    struct ampclient_units *units = &core->units;
    for (uint32_t u = 0; u < units->count; u++) {
        free_memory(core, &units->list[u]);
        free(units->list[u].pieces);
        free(units->list[u].parameters);
    }
    free(units->list);
    free(units->unit_of);
    memset(units, 0, sizeof *units);
}

static int check_parameters(const struct ampclient_core *core, const uint32_t *parameters, uint32_t count,
                            struct amp_error *error)
{
    if (!core->config.units || !core->has_model)
        return amp_error_set(error, AMP_ESTATE, NULL, "this handle has no units: set units in the join options");
    if (parameters == NULL || count == 0)
        return amp_error_set(error, AMP_EINVAL, NULL, "a unit has at least one parameter; give their indices");
    for (uint32_t i = 0; i < count; i++) {
        if (parameters[i] >= core->flat.parameters)
            return amp_error_set(error, AMP_ERANGE, NULL, "parameter %u: the model has %u, counted from 0",
                                 parameters[i], core->flat.parameters);
        if (core->units.unit_of[parameters[i]] != 0)
            return amp_error_set(error, AMP_EINVAL, NULL, "parameter %u is in unit %u; a parameter is in one unit",
                                 parameters[i], core->units.unit_of[parameters[i]] - 1);
    }
    return 0;
}

/* Room for one more unit. */
static int grow(struct ampclient_units *units)
{
    if ((units->count & (units->count - 1)) != 0)
        return 0; /* the room is the next power of two */
    size_t room = units->count == 0 ? 1 : (size_t)units->count * 2;
    size_t pulled = units->pulled != NULL ? (size_t)(units->pulled - units->list) : 0;
    struct ampclient_unit *list = realloc(units->list, room * sizeof *list);
    if (list == NULL)
        return AMP_ENOMEM;
    if (units->pulled != NULL)
        units->pulled = list + pulled;
    units->list = list;
    return 0;
}

/* Adds the blocks [first, end) as pieces, one for each shard that owns some of them. */
static void add_pieces(const struct ampclient_core *core, struct ampclient_unit *unit, uint64_t first, uint64_t end)
{
    for (uint32_t k = 0; k < core->config.shards; k++) {
        uint64_t from, until;
        ampclient_core_layout_shard(&core->flat, k, core->config.shards, &from, &until);
        from = from > first ? from : first;
        until = until < end ? until : end;
        if (from >= until)
            continue;
        unit->pieces[unit->pieces_count++] =
            (struct ampclient_piece){.shard = k, .first = from, .count = until - from, .at = unit->blocks};
        unit->blocks += until - from;
    }
}

/* Adds the blocks of the parameters that `unit_of` gives to unit `number`, each block once and in order. */
static void find_pieces(const struct ampclient_core *core, struct ampclient_unit *unit, uint32_t number)
{
    const struct ampclient_core_layout *flat = &core->flat;
    uint64_t first = 0, end = 0;
    for (uint32_t p = 0; p < flat->parameters; p++) {
        if (core->units.unit_of[p] != number + 1)
            continue;
        uint64_t begins = flat->starts[p] / flat->block_elements;
        uint64_t ends = (flat->starts[p] + flat->sizes[p] - 1) / flat->block_elements + 1;
        if (begins > end) {
            add_pieces(core, unit, first, end);
            first = begins;
        }
        if (end == 0)
            first = begins;
        end = ends;
    }
    add_pieces(core, unit, first, end);
}

int ampclient_core_unit_add(struct ampclient_core *core, const uint32_t *parameters, uint32_t count, uint32_t *unit,
                            struct amp_error *error)
{
    struct ampclient_units *units = &core->units;
    int rc = check_parameters(core, parameters, count, error);
    if (rc != 0)
        return rc;
    struct ampclient_unit made = {.parameters_count = count};
    made.parameters = calloc(count, sizeof *made.parameters);
    made.pieces = calloc((size_t)count + core->config.shards, sizeof *made.pieces); /* K - 1 cuts at the most */
    rc = made.parameters != NULL && made.pieces != NULL ? grow(units) : AMP_ENOMEM;
    if (rc != 0)
        (void)amp_error_set(error, rc, NULL, "there is no memory for a unit");
    uint32_t marked = 0;
    for (; rc == 0 && marked < count; marked++) {
        uint32_t p = parameters[marked];
        if (units->unit_of[p] != 0) {
            rc = amp_error_set(error, AMP_EINVAL, NULL, "parameter %u is given twice", p);
            break;
        }
        units->unit_of[p] = units->count + 1;
        made.parameters[marked] = p;
    }
    if (rc != 0) {
        for (uint32_t i = 0; i < marked; i++)
            units->unit_of[parameters[i]] = 0;
        free(made.parameters);
        free(made.pieces);
        return rc;
    }
    find_pieces(core, &made, units->count);
    units->list[units->count] = made;
    *unit = units->count++;
    return 0;
}

/* ---- memory ---- */

/* A cancelled stream may still write into a unit that was COMING: its memory is freed when the stream has ended. */
static void make_absent(struct ampclient_core *core, struct ampclient_unit *unit)
{
    bool here = unit->state == AMPCLIENT_UNIT_HERE;
    if (unit == core->units.pulled)
        ampclient_core_units_cancel(core);
    set_state(unit, AMPCLIENT_UNIT_ABSENT);
    if (here || core->streams_dying == 0)
        free_memory(core, unit);
}

static void free_absent(struct ampclient_core *core)
{
    for (uint32_t u = 0; u < core->units.count; u++) {
        if (core->units.list[u].state == AMPCLIENT_UNIT_ABSENT)
            free_memory(core, &core->units.list[u]);
    }
}

const void *ampclient_core_units_parameter(const struct ampclient_core *core, uint32_t parameter)
{
    const struct ampclient_core_layout *flat = &core->flat;
    uint32_t number = core->units.unit_of[parameter];
    const struct ampclient_unit *unit = number == 0 ? NULL : &core->units.list[number - 1];
    if (unit == NULL || unit->state != AMPCLIENT_UNIT_HERE)
        return NULL;
    uint64_t block = flat->starts[parameter] / flat->block_elements;
    const struct ampclient_piece *piece = unit->pieces;
    while (block - piece->first >= piece->count) /* one of the pieces has this block */
        piece++;
    uint64_t element =
        (piece->at + block - piece->first) * flat->block_elements + flat->starts[parameter] % flat->block_elements;
    return unit->memory + (size_t)element * amp_dtype_size(core->cast);
}

uint64_t ampclient_core_held(const struct ampclient_core *core)
{
    return core->units.held_bytes + core->push.edges_bytes;
}

/* ---- what the user asks for ---- */

/* Whether the step in hand is void: what is gathered or scattered for it would not count. */
static bool step_is_void(const struct ampclient_core *core)
{
    return core->state == AMPCLIENT_STATE_ROLLED_BACK ||
           (core->state == AMPCLIENT_STATE_COMPUTING && ampclient_core_push_answered(core));
}

/* Whether there is a version to pull units from: that of the step, or of the last PULL_LATEST. */
static bool has_source(const struct ampclient_core *core)
{
    if (core->state == AMPCLIENT_STATE_COMPUTING)
        return !step_is_void(core);
    return (core->state == AMPCLIENT_STATE_READY || core->state == AMPCLIENT_STATE_DONE) && core->units.has_version;
}

static int find_unit(struct ampclient_core *core, uint32_t number, struct ampclient_unit **unit,
                     struct amp_error *error)
{
    if (!core->config.units)
        return amp_error_set(error, AMP_ESTATE, NULL, "this handle has no units: set units in the join options");
    if (number >= core->units.count)
        return amp_error_set(error, AMP_ERANGE, NULL, "there is no unit %u; %u were added", number, core->units.count);
    *unit = &core->units.list[number];
    return 0;
}

int ampclient_core_prefetch(struct ampclient_core *core, uint64_t now_ms, uint32_t number, struct amp_error *error)
{
    struct ampclient_unit *unit = NULL;
    core->now_ms = now_ms;
    int rc = find_unit(core, number, &unit, error);
    if (rc != 0)
        return rc;
    if (core->taken.code != 0)
        return amp_error_set(error, core->taken.code, core->taken.reason, "%s", core->taken.text);
    if (step_is_void(core))
        return 1;
    if (!has_source(core))
        return amp_error_set(error, AMP_ESTATE, NULL,
                             "no version has been pulled: call ampclient_step_begin or ampclient_pull first");
    if (unit->state != AMPCLIENT_UNIT_ABSENT)
        return 0;
    if (unit->memory == NULL) {
        size_t bytes = memory_size(core, unit);
        unit->memory = amp_large_new(bytes);
        if (unit->memory == NULL)
            return amp_error_set(error, AMP_ENOMEM, NULL, "there is no memory for the %zu bytes of unit %u", bytes,
                                 number);
        core->units.held_bytes += bytes;
    }
    set_state(unit, AMPCLIENT_UNIT_COMING);
    unit->turn = ++core->units.turns;
    ampclient_core_units_drive(core);
    return 0;
}

int ampclient_core_release(struct ampclient_core *core, uint32_t number, struct amp_error *error)
{
    struct ampclient_unit *unit = NULL;
    int rc = find_unit(core, number, &unit, error);
    if (rc != 0)
        return rc;
    if (unit->state == AMPCLIENT_UNIT_ABSENT)
        return amp_error_set(error, AMP_ESTATE, NULL, "unit %u is not gathered, or was released", number);
    make_absent(core, unit);
    return 0;
}

int ampclient_core_scatter(struct ampclient_core *core, uint64_t now_ms, uint32_t number, const void *const *gradients,
                           enum amp_dtype dtype, struct amp_error *error)
{
    struct ampclient_unit *unit = NULL;
    core->now_ms = now_ms;
    int rc = find_unit(core, number, &unit, error);
    if (rc == 0 && gradients == NULL)
        rc = amp_error_set(error, AMP_EINVAL, NULL,
                           "gradients is NULL; give one for each parameter of unit %u, or NULL", number);
    if (rc == 0 && step_is_void(core))
        return 1;
    if (rc == 0 && unit->scattered)
        rc = amp_error_set(error, AMP_ESTATE, NULL,
                           "unit %u was scattered in this step; scatter each unit once, with all of its gradients",
                           number);
    for (uint32_t i = 0; rc == 0 && i < unit->parameters_count; i++) {
        if (gradients[i] != NULL)
            rc = ampclient_core_push_check(core, unit->parameters[i], gradients[i], dtype, error);
    }
    for (uint32_t i = 0; rc == 0 && i < unit->parameters_count; i++) {
        if (gradients[i] != NULL && ampclient_core_push_make_edges(core, unit->parameters[i]) != 0)
            rc = amp_error_set(error, AMP_ENOMEM, NULL, "there is no memory for the borders of unit %u", number);
    }
    for (uint32_t i = 0; rc == 0 && i < unit->parameters_count; i++) {
        if (gradients[i] != NULL)
            rc = ampclient_core_push(core, now_ms, unit->parameters[i], gradients[i], dtype, error);
    }
    if (rc == 0)
        unit->scattered = true;
    return rc;
}

/* ---- pulling ---- */

void ampclient_core_units_cancel(struct ampclient_core *core)
{
    struct ampclient_units *units = &core->units;
    for (uint32_t i = 0; i < AMPCLIENT_SHARDS_MAX; i++)
        ampclient_core_cancel(core, &units->calls[i].call, true);
    units->pulled = NULL;
}

void ampclient_core_units_void(struct ampclient_core *core)
{
    for (uint32_t u = 0; u < core->units.count; u++) {
        if (core->units.list[u].state == AMPCLIENT_UNIT_COMING)
            make_absent(core, &core->units.list[u]);
    }
}

void ampclient_core_units_forget(struct ampclient_core *core)
{
    for (uint32_t u = 0; u < core->units.count; u++) {
        if (core->units.list[u].state != AMPCLIENT_UNIT_ABSENT)
            make_absent(core, &core->units.list[u]);
        core->units.list[u].scattered = false;
    }
    core->units.has_version = false;
}

static void begin_unit(struct ampclient_core *core)
{
    struct ampclient_units *units = &core->units;
    struct ampclient_unit *next = NULL;
    for (uint32_t u = 0; u < units->count; u++) {
        struct ampclient_unit *unit = &units->list[u];
        if (unit->state == AMPCLIENT_UNIT_COMING && (next == NULL || unit->turn < next->turn))
            next = unit;
    }
    units->pulled = next;
    units->begun = units->ended = 0;
    for (uint32_t i = 0; next != NULL && i < next->pieces_count; i++)
        memset(core->pull.have + next->pieces[i].first, 0, next->pieces[i].count);
}

static void begin_piece(struct ampclient_core *core, uint32_t slot)
{
    struct ampclient_units *units = &core->units;
    const struct ampclient_piece *piece = &units->pulled->pieces[units->begun];
    bool step = core->state == AMPCLIENT_STATE_COMPUTING;
    size_t stride = (size_t)core->flat.block_elements * amp_dtype_size(core->cast);
    units->calls[slot].piece = units->begun++;
    struct ampclient_output *output = ampclient_core_out(core, AMPCLIENT_OUT_PULL, piece->shard,
                                                         ampclient_core_wait_ms(core), &units->calls[slot].call);
    output->u.pull = (struct ampclient_out_pull){
        .by = step ? AMPCLIENT_PULL_STEP : AMPCLIENT_PULL_VERSION,
        .epoch = core->held_epoch,
        .number = step ? core->step : core->held_version,
        .first_block = piece->first,
        .block_count = piece->count,
        .memory = units->pulled->memory + piece->at * stride,
        .stride = stride,
        .dtype = core->cast,
    };
}

static int slot_of(const struct ampclient_core *core, uint64_t call)
{
    for (int i = 0; i < AMPCLIENT_SHARDS_MAX; i++) {
        if (call != 0 && core->units.calls[i].call == call)
            return i;
    }
    return -1;
}

void ampclient_core_units_fail(struct ampclient_core *core, const struct amp_error *error)
{
    if (core->request == AMPCLIENT_EVENT_GATHER || core->request == AMPCLIENT_EVENT_DRAIN)
        ampclient_core_finish(core, error->code, error, core->state);
}

static void pull_failed(struct ampclient_core *core, const struct ampclient_ended *ended)
{
    bool mine = ended->code == AMP_EABORTED && ended->epoch == core->epoch;
    ampclient_core_units_cancel(core);
    if (core->state != AMPCLIENT_STATE_COMPUTING && ended->code == AMP_EABORTED) { /* the servers dropped the version */
        core->units.has_version = false;
        ampclient_core_units_void(core);
    } else if (mine && strcmp(ended->reason, "STALE_STEP") == 0) {
        if (!core->push.closed) /* else it may have counted, as the answer to the push will say */
            ampclient_core_push_too_late(core);
        ampclient_core_units_void(core);
    } else if (mine && strcmp(ended->reason, "PULL_OUTRUN") == 0) {
        return; /* pulled again; if the step is over, that is refused as STALE_STEP */
    } else if (ended->code == AMP_EDATALOSS && core->units.resends < AMPCLIENT_BLOCK_RESENDS_MAX) {
        core->units.resends++;
    } else if (ampclient_core_failed(core, ended)) {
        core->units.resends = 0;
        ampclient_core_units_void(core);
        if (core->request == AMPCLIENT_EVENT_GATHER)
            ampclient_core_units_fail(core, &core->last_error);
    }
}

bool ampclient_core_units_header(struct ampclient_core *core, uint64_t call, const struct ampclient_pull_header *header)
{
    if (slot_of(core, call) < 0)
        return false;
    if (header->epoch == core->held_epoch && header->version == core->held_version)
        return true;
    struct ampclient_ended ended = {
        .code = AMP_EUNAVAILABLE, .reason = "", .text = "the server sends another version than that of the step"};
    pull_failed(core, &ended); /* asked again after a pause */
    return true;
}

/* Whether all blocks of the piece are here. */
static bool is_whole(const struct ampclient_core *core, const struct ampclient_piece *piece)
{
    for (uint64_t b = 0; b < piece->count; b++) {
        if (core->pull.have[piece->first + b] == 0)
            return false;
    }
    return true;
}

bool ampclient_core_units_block(struct ampclient_core *core, uint64_t call, uint64_t block)
{
    if (slot_of(core, call) < 0)
        return false;
    if (block < core->flat.blocks)
        core->pull.have[block] = 1;
    return true;
}

bool ampclient_core_units_ended(struct ampclient_core *core, uint64_t call, const struct ampclient_ended *ended)
{
    struct ampclient_units *units = &core->units;
    int slot = slot_of(core, call);
    if (slot < 0)
        return false;
    units->calls[slot].call = 0;
    struct ampclient_ended broke = {
        .code = AMP_EUNAVAILABLE, .reason = "", .text = "a pull ended before all blocks came"};
    if (ended->code == 0 && is_whole(core, &units->pulled->pieces[units->calls[slot].piece]))
        units->ended++;
    else
        pull_failed(core, ended->code == 0 ? &broke : ended);
    if (units->pulled == NULL || units->ended < units->pulled->pieces_count)
        return true;
    set_state(units->pulled, AMPCLIENT_UNIT_HERE);
    units->pulled = NULL;
    units->resends = 0;
    ampclient_core_succeeded(core);
    return true;
}

/* ---- what is to be done now ---- */

static void answer(struct ampclient_core *core)
{
    const struct amp_error *push_error = &core->push.error;
    if (step_is_void(core)) {
        ampclient_core_finish(core, 1, NULL, core->state);
    } else if (core->request == AMPCLIENT_EVENT_GATHER) {
        enum ampclient_unit_state state = core->units.list[core->units.wanted].state;
        /* ABSENT: the servers no longer hold the version in hand. This must not happen in a step, before step_end. */
        AMP_ASSERT(state != AMPCLIENT_UNIT_ABSENT || core->state != AMPCLIENT_STATE_COMPUTING || core->push.closed);
        if (state != AMPCLIENT_UNIT_COMING)
            ampclient_core_finish(core, state == AMPCLIENT_UNIT_HERE ? 0 : 1, NULL, core->state);
    } else if (push_error->code != 0) {
        ampclient_core_finish(core, push_error->code, push_error, core->state);
    } else if (ampclient_core_push_let_go(core)) {
        ampclient_core_finish(core, 0, NULL, core->state);
    }
}

void ampclient_core_units_drive(struct ampclient_core *core)
{
    struct ampclient_units *units = &core->units;
    if (!core->config.units)
        return;
    if (core->streams_dying == 0)
        free_absent(core);
    if (ampclient_core_may_call(core) && core->taken.code == 0 && has_source(core)) {
        if (units->pulled == NULL)
            begin_unit(core);
        for (uint32_t i = 0; units->pulled != NULL && i < AMPCLIENT_SHARDS_MAX; i++) {
            if (units->calls[i].call == 0 && units->begun < units->pulled->pieces_count)
                begin_piece(core, i);
        }
    }
    if ((core->request == AMPCLIENT_EVENT_GATHER || core->request == AMPCLIENT_EVENT_DRAIN) && !core->done_ready)
        answer(core);
}
