/*
 * One function for each struct, its visitor, does both directions: it writes the members of the struct, or reads them,
 * in the same order.
 */
#include "server/io/base/peer_bytes.h"

#include "base/text.h"
#include "storage/store.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are copied as they lie");

/* Most subtrees of a vote: a parameter that a shard has in part has at most two at each level of its tree. */
#define SUBTREES_MAX ((uint64_t)AMPD_PARAMETERS_MAX * 64)

/*
 * Most checkpoints that are accepted in a SYNCED: as many as fit into a content. This ampd sends
 * AMPD_SYNC_CHECKPOINTS_MAX at most; older ones sent all.
 */
#define CHECKPOINTS_MAX  (AMPD_PEER_BODY_MAX / CHECKPOINT_LEAST)
#define CHECKPOINT_LEAST 60 /* bytes of a checkpoint without a file and parts */

struct visit {
    struct amp_buf *out;     /* to be written to; NULL: reading */
    const uint8_t *at, *end; /* reading: the bytes that are left */
    int code;                /* of the first failure, after which nothing more is read or written; 0: none */
};

static void bits(struct visit *v, void *value, size_t size)
{
    if (v->code != 0)
        return;
    if (v->out != NULL) {
        v->code = amp_buf_append(v->out, value, size);
    } else if ((size_t)(v->end - v->at) < size) {
        v->code = AMP_EINVAL;
    } else {
        memcpy(value, v->at, size);
        v->at += size;
    }
}

/* A number of any width, as its bits. */
#define NUMBER(v, field) bits((v), &(field), sizeof field)

static void flag(struct visit *v, bool *value)
{
    uint8_t byte = 0;
    memcpy(&byte, value, 1);
    bits(v, &byte, 1);
    if (v->code == 0 && byte > 1)
        v->code = AMP_EINVAL;
    *value = v->code == 0 && byte == 1;
}

static void bounded(struct visit *v, uint32_t *value, uint32_t max)
{
    bits(v, value, sizeof *value);
    if (v->code == 0 && *value > max)
        v->code = AMP_EINVAL;
    if (v->code != 0 && v->out == NULL)
        *value = 0;
}

/* A value of an enum whose largest value is `max`. */
#define CHOICE(v, field, max)                                                                                          \
    do {                                                                                                               \
        _Static_assert(sizeof field == sizeof(uint32_t), "an enum has 32 bits");                                       \
        bounded((v), (uint32_t *)&(field), (uint32_t)(max));                                                           \
    } while (0)

static void text(struct visit *v, char *value, uint32_t room)
{
    uint32_t size = v->out != NULL ? (uint32_t)strnlen(value, room) : 0;
    bounded(v, &size, room - 1);
    if (v->out == NULL)
        memset(value, 0, room);
    bits(v, value, size);
    if (v->code == 0 && strnlen(value, size) != size)
        v->code = AMP_EINVAL; /* a zero byte within */
    if (v->out == NULL)
        amp_text_repair(value); /* it is stored and sent to clients, so it must be valid text */
}
#define TEXT(v, field) text((v), (field), sizeof field)

/*
 * The count of a list that the message owns, and its memory, which is made when it is read. `least`: fewest bytes of an
 * item. A count for which fewer bytes are left is refused before memory is made.
 */
static void *items(struct visit *v, void *have, uint64_t *count, uint64_t max, size_t size, size_t least)
{
    NUMBER(v, *count);
    if (v->code == 0 && (*count > max || (v->out == NULL && *count > (uint64_t)(v->end - v->at) / least)))
        v->code = AMP_EINVAL;
    if (v->out != NULL)
        return have;
    void *made = v->code == 0 && *count > 0 ? calloc(*count, size) : NULL;
    if (v->code == 0 && *count > 0 && made == NULL)
        v->code = AMP_ENOMEM;
    if (v->code != 0)
        *count = 0;
    return made;
}

/* ---- records ---- */

static void incarnation(struct visit *v, struct ampd_incarnation *x)
{
    NUMBER(v, x->fence);
    NUMBER(v, x->counter);
}

static void fence(struct visit *v, struct ampd_fence *x)
{
    NUMBER(v, x->counter);
    NUMBER(v, x->boot_id);
}

static void scaler_state(struct visit *v, struct amp_scaler_state *x)
{
    NUMBER(v, x->scale);
    NUMBER(v, x->scale_id);
    NUMBER(v, x->growth_tracker);
    NUMBER(v, x->hysteresis_left);
    NUMBER(v, x->consecutive_overflows);
    NUMBER(v, x->total_overflows);
    NUMBER(v, x->steps_since_overflow);
    NUMBER(v, x->attempted);
    NUMBER(v, x->applied);
    NUMBER(v, x->skipped);
}

static void carry(struct visit *v, struct ampd_carry *x)
{
    scaler_state(v, &x->scaler);
    NUMBER(v, x->lr);
}

static void parameter(struct visit *v, struct ampd_parameter_spec *x)
{
    TEXT(v, x->name);
    bounded(v, &x->dimensions, AMPD_DIMENSIONS_MAX);
    NUMBER(v, x->shape);
    bounded(v, &x->group, AMPD_GROUPS_MAX - 1);
}

static void group(struct visit *v, struct ampd_group_spec *x)
{
    TEXT(v, x->name);
    NUMBER(v, x->lr_scale);
    flag(v, &x->weight_decay_set);
    NUMBER(v, x->weight_decay);
    NUMBER(v, x->clip_max_norm);
}

/* The numbers and choices of a specification, in the order of the rows of proto/spec_fields.def. */
static void spec_fields(struct visit *v, struct ampd_model_spec *x)
{
#define VISIT_F64(field)   NUMBER(v, field);
#define VISIT_F32(field)   NUMBER(v, field);
#define VISIT_U64(field)   NUMBER(v, field);
#define VISIT_U32(field)   NUMBER(v, field);
#define VISIT_BOOL(field)  flag(v, &(field));
#define VISIT_RANKS(field) bounded(v, &(field), AMPD_WORLD_MAX);
#define AMPD_SPEC_NUMBER(part, field, name, kind, presence, ...)                                                       \
    VISIT_##kind(x->AMPD_SPEC_MEMBER_##part(field, name)) AMPD_SPEC_IF_SET_##presence(flag(v, &x->name##_set);)
#define AMPD_SPEC_CHOICE(part, field, name, msg, core, default_, last, ...)                                            \
    CHOICE(v, x->AMPD_SPEC_MEMBER_##part(field, name), last);
#define AMPD_SPEC_PARTS AMPD_SPEC_ALL
#include "proto/spec_fields.def"
#undef AMPD_SPEC_NUMBER
#undef AMPD_SPEC_CHOICE
}

static void spec(struct visit *v, struct ampd_model_spec *x)
{
    uint64_t count = x->parameters_count;
    TEXT(v, x->name);
    x->parameters = items(v, x->parameters, &count, AMPD_PARAMETERS_MAX, sizeof *x->parameters, 8);
    x->parameters_count = (uint32_t)count;
    for (uint64_t i = 0; v->code == 0 && i < count; i++)
        parameter(v, &x->parameters[i]);
    bounded(v, &x->groups_count, AMPD_GROUPS_MAX);
    for (uint32_t i = 0; v->code == 0 && i < x->groups_count; i++)
        group(v, &x->groups[i]);
    spec_fields(v, x);
}

static void contributor(struct visit *v, struct ampd_contributor *x)
{
    bounded(v, &x->rank, AMPD_WORLD_MAX - 1);
    incarnation(v, &x->incarnation);
    NUMBER(v, x->weight);
}

#define OVERFLOW_BYTES 36 /* of one row */

static void overflow_row(struct visit *v, struct ampd_overflow_row *x)
{
    bounded(v, &x->parameter, AMPD_PARAMETERS_MAX - 1);
    NUMBER(v, x->rank);
    NUMBER(v, x->inf_count);
    NUMBER(v, x->nan_count);
    NUMBER(v, x->first_index);
    NUMBER(v, x->largest);
}

static void overflow_rows(struct visit *v, uint32_t *count, struct ampd_overflow_row *rows)
{
    bounded(v, count, AMPD_OVERFLOW_ROWS_MAX);
    for (uint32_t i = 0; v->code == 0 && i < *count; i++)
        overflow_row(v, &rows[i]);
}

static void range_warnings(struct visit *v, uint32_t *count, struct ampd_range_warning *range)
{
    bounded(v, count, AMPD_OVERFLOW_ROWS_MAX);
    for (uint32_t i = 0; v->code == 0 && i < *count; i++) {
        bounded(v, &range[i].parameter, AMPD_PARAMETERS_MAX - 1);
        NUMBER(v, range[i].count);
    }
}

static void note(struct visit *v, struct ampd_note *x)
{
    TEXT(v, x->actor);
    TEXT(v, x->words);
    TEXT(v, x->request_id);
}

static void metrics(struct visit *v, struct ampd_metrics *x)
{
    NUMBER(v, x->loss);
    bounded(v, &x->loss_workers, AMPD_WORLD_MAX);
    bounded(v, &x->count, AMPD_METRICS_MAX);
    for (uint32_t i = 0; v->code == 0 && i < x->count; i++) {
        TEXT(v, x->items[i].name);
        NUMBER(v, x->items[i].value);
        bounded(v, &x->items[i].workers, AMPD_WORLD_MAX);
    }
}

static void step_row(struct visit *v, struct ampd_step_row *x)
{
    CHOICE(v, x->kind, AMPD_ROW_LR);
    NUMBER(v, x->epoch);
    NUMBER(v, x->step);
    NUMBER(v, x->parent_epoch);
    NUMBER(v, x->parent_step);
    NUMBER(v, x->from_step);
    note(v, &x->note);
    CHOICE(v, x->verdict, AMPD_VERDICT_SKIPPED_EMPTY);
    NUMBER(v, x->tries);
    NUMBER(v, x->contributors_hash);
    bounded(v, &x->contributors_count, AMPD_WORLD_MAX);
    for (uint32_t i = 0; v->code == 0 && i < x->contributors_count; i++)
        contributor(v, &x->contributors[i]);
    NUMBER(v, x->scale);
    NUMBER(v, x->scale_id);
    carry(v, &x->after);
    NUMBER(v, x->coefficient);
    NUMBER(v, x->norm);
    NUMBER(v, x->clip);
    bounded(v, &x->clips_count, AMPD_GROUPS_MAX);
    NUMBER(v, x->clips);
    NUMBER(v, x->lr);
    NUMBER(v, x->version);
    NUMBER(v, x->overflow_params);
    NUMBER(v, x->inf_total);
    NUMBER(v, x->nan_total);
    overflow_rows(v, &x->rows_count, x->rows);
    NUMBER(v, x->durable_step);
    metrics(v, &x->metrics);
    flag(v, &x->cut);
    flag(v, &x->superseded);
    NUMBER(v, x->at_us);
    NUMBER(v, x->times_us);
}

static void checkpoint(struct visit *v, struct ampd_checkpoint_record *x)
{
    NUMBER(v, x->epoch);
    NUMBER(v, x->step);
    NUMBER(v, x->version);
    TEXT(v, x->file);
    NUMBER(v, x->scale);
    NUMBER(v, x->size_bytes);
    NUMBER(v, x->manifest);
    NUMBER(v, x->at_us);
    bounded(v, &x->parts_count, AMPD_PARTS_MAX);
    bits(v, x->parts, x->parts_count * sizeof x->parts[0]);
}

/* ---- messages ---- */

static void open_step(struct visit *v, struct ampd_open *x)
{
    NUMBER(v, x->step);
    NUMBER(v, x->try_number);
    NUMBER(v, x->scale);
    NUMBER(v, x->scale_id);
    bounded(v, &x->expected_count, AMPD_WORLD_MAX);
    for (uint32_t i = 0; v->code == 0 && i < x->expected_count; i++) {
        bounded(v, &x->expected[i].rank, AMPD_WORLD_MAX - 1);
        incarnation(v, &x->expected[i].incarnation);
    }
    flag(v, &x->closed);
    NUMBER(v, x->coefficient);
}

static void alive(struct visit *v, struct ampd_alive *x)
{
    bounded(v, &x->count, AMPD_WORLD_MAX);
    for (uint32_t i = 0; v->code == 0 && i < x->count; i++) {
        bounded(v, &x->workers[i].rank, AMPD_WORLD_MAX - 1);
        incarnation(v, &x->workers[i].incarnation);
    }
}

static void close_step(struct visit *v, struct ampd_close *x)
{
    NUMBER(v, x->step);
    NUMBER(v, x->try_number);
    NUMBER(v, x->coefficient);
    flag(v, &x->empty);
    bounded(v, &x->contributors_count, AMPD_WORLD_MAX);
    for (uint32_t i = 0; v->code == 0 && i < x->contributors_count; i++)
        contributor(v, &x->contributors[i]);
}

static void complete(struct visit *v, struct ampd_complete *x)
{
    NUMBER(v, x->step);
    NUMBER(v, x->try_number);
    contributor(v, &x->contributor);
    NUMBER(v, x->lr);
}

static void unfit(struct visit *v, struct ampd_unfit *x)
{
    complete(v, &x->push);
    bounded(v, &x->other, AMPD_WORLD_MAX - 1);
    NUMBER(v, x->other_weight);
    NUMBER(v, x->other_lr);
}

static void vote(struct visit *v, struct ampd_vote *x)
{
    uint64_t shared = x->shared_count;
    NUMBER(v, x->step);
    NUMBER(v, x->try_number);
    NUMBER(v, x->contributors_hash);
    x->subtrees = items(v, x->subtrees, &x->subtrees_count, SUBTREES_MAX, sizeof *x->subtrees, 24);
    for (uint64_t i = 0; v->code == 0 && i < x->subtrees_count; i++) {
        bounded(v, &x->subtrees[i].parameter, AMPD_PARAMETERS_MAX - 1);
        bounded(v, &x->subtrees[i].level, 63);
        NUMBER(v, x->subtrees[i].index);
        NUMBER(v, x->subtrees[i].squares);
    }
    NUMBER(v, x->overflow_params);
    NUMBER(v, x->inf_total);
    NUMBER(v, x->nan_total);
    overflow_rows(v, &x->rows_count, x->rows);
    x->shared = items(v, x->shared, &shared, AMPD_SHARED_ROWS_MAX, sizeof *x->shared, OVERFLOW_BYTES);
    x->shared_count = (uint32_t)shared;
    for (uint64_t i = 0; v->code == 0 && i < shared; i++)
        overflow_row(v, &x->shared[i]);
    metrics(v, &x->metrics);
}

static void act(struct visit *v, struct ampd_action *x)
{
    CHOICE(v, x->kind, AMPD_ROW_LR);
    NUMBER(v, x->from_step);
    NUMBER(v, x->rank);
    flag(v, &x->nobody);
    NUMBER(v, x->scale);
    NUMBER(v, x->scale_id);
    carry(v, &x->after);
    NUMBER(v, x->version);
    NUMBER(v, x->durable_step);
    note(v, &x->note);
    NUMBER(v, x->at_us);
}

static void acts(struct visit *v, uint32_t *count, struct ampd_action *list)
{
    bounded(v, count, AMPD_ACTIONS_WAIT_MAX);
    for (uint32_t i = 0; v->code == 0 && i < *count; i++)
        act(v, &list[i]);
}

static void verdict(struct visit *v, struct ampd_verdict_message *x)
{
    step_row(v, &x->row);
    NUMBER(v, x->range_total);
    range_warnings(v, &x->range_count, x->range);
    acts(v, &x->acts_count, x->acts);
}

static void applied(struct visit *v, struct ampd_applied *x)
{
    NUMBER(v, x->step);
    NUMBER(v, x->range_total);
    range_warnings(v, &x->range_count, x->range);
}

static void synced(struct visit *v, struct ampd_sync_state *x)
{
    uint64_t count = x->checkpoints_count;
    spec(v, &x->spec);
    NUMBER(v, x->created_us);
    flag(v, &x->waits);
    flag(v, &x->lost);
    NUMBER(v, x->highest_epoch);
    NUMBER(v, x->durable_step);
    flag(v, &x->ready);
    flag(v, &x->has_last);
    NUMBER(v, x->voted);
    NUMBER(v, x->decided);
    NUMBER(v, x->version);
    carry(v, &x->carry);
    step_row(v, &x->last);
    x->checkpoints = items(v, x->checkpoints, &count, CHECKPOINTS_MAX, sizeof *x->checkpoints, CHECKPOINT_LEAST);
    x->checkpoints_count = (uint32_t)count;
    for (uint64_t i = 0; v->code == 0 && i < count; i++)
        checkpoint(v, &x->checkpoints[i]);
}

static void restore(struct visit *v, struct ampd_restore *x)
{
    NUMBER(v, x->epoch);
    NUMBER(v, x->step);
    flag(v, &x->ok);
    flag(v, &x->waits);
    flag(v, &x->absent);
    NUMBER(v, x->version);
    carry(v, &x->carry);
    NUMBER(v, x->manifest);
}

static void want(struct visit *v, struct ampd_load_want *x)
{
    NUMBER(v, x->loader);
    NUMBER(v, x->base.step);
    NUMBER(v, x->base.version);
    carry(v, &x->base.carry);
}

static void parts(struct visit *v, struct ampd_parts *x)
{
    NUMBER(v, x->epoch);
    NUMBER(v, x->step);
    bounded(v, &x->count, AMPD_PARTS_MAX);
    bits(v, x->manifests, x->count * sizeof x->manifests[0]);
}

static void epoch_record(struct visit *v, struct ampd_epoch_record *x)
{
    NUMBER(v, x->epoch);
    NUMBER(v, x->parent);
    NUMBER(v, x->base_epoch);
    NUMBER(v, x->base_step);
    TEXT(v, x->reason);
    NUMBER(v, x->at_us);
}

static void epoch(struct visit *v, struct ampd_epoch_message *x)
{
    epoch_record(v, &x->record);
    NUMBER(v, x->created_us);
    NUMBER(v, x->parent_step);
    note(v, &x->note);
}

static void state(struct visit *v, struct ampd_state_message *x)
{
    NUMBER(v, x->sequence);
    CHOICE(v, x->state, AMPD_MODEL_DONE);
    NUMBER(v, x->missing_rank);
    flag(v, &x->frozen);
    flag(v, &x->trouble);
}

/* Whether messages of this type have no content: their envelope says everything. */
static bool is_empty(enum ampd_message_type type)
{
    return type == AMPD_MESSAGE_SYNC || type == AMPD_MESSAGE_HELLO || type == AMPD_MESSAGE_SYNC_DONE ||
           type == AMPD_MESSAGE_DELETE || type == AMPD_MESSAGE_DELETED || type == AMPD_MESSAGE_LEAVE ||
           type == AMPD_MESSAGE_MAY_LEAVE || type == AMPD_MESSAGE_LOAD_GONE;
}

/* The content of messages about a step. False: the message is of another kind. */
static bool step_body(struct visit *v, struct ampd_message *m)
{
    switch (m->type) {
    case AMPD_MESSAGE_OPEN:
        open_step(v, &m->u.open);
        return true;
    case AMPD_MESSAGE_COMPLETE:
        complete(v, &m->u.complete);
        return true;
    case AMPD_MESSAGE_UNFIT:
        unfit(v, &m->u.unfit);
        return true;
    case AMPD_MESSAGE_CLOSE:
        close_step(v, &m->u.close);
        return true;
    case AMPD_MESSAGE_VOTE:
        vote(v, &m->u.vote);
        return true;
    case AMPD_MESSAGE_VERDICT:
        verdict(v, &m->u.verdict);
        return true;
    default:
        return false;
    }
}

static void body(struct visit *v, struct ampd_message *m)
{
    if (step_body(v, m))
        return;
    switch (m->type) {
    case AMPD_MESSAGE_CREATE:
        spec(v, &m->u.spec);
        break;
    case AMPD_MESSAGE_SYNCED:
        synced(v, &m->u.sync);
        break;
    case AMPD_MESSAGE_RESTORE:
    case AMPD_MESSAGE_RESTORED:
    case AMPD_MESSAGE_CUT:
    case AMPD_MESSAGE_PART_DONE:
    case AMPD_MESSAGE_HOLDS:
    case AMPD_MESSAGE_HELD:
        restore(v, &m->u.restore);
        break;
    case AMPD_MESSAGE_ALIVE:
        alive(v, &m->u.alive);
        break;
    case AMPD_MESSAGE_PARTS:
        parts(v, &m->u.parts);
        break;
    case AMPD_MESSAGE_EPOCH:
    case AMPD_MESSAGE_EPOCH_STORED:
        epoch(v, &m->u.epoch);
        break;
    case AMPD_MESSAGE_ACTS:
        NUMBER(v, m->u.acts.step);
        acts(v, &m->u.acts.count, m->u.acts.acts);
        break;
    case AMPD_MESSAGE_LOADED:
    case AMPD_MESSAGE_APPLIED:
        applied(v, &m->u.applied);
        break;
    case AMPD_MESSAGE_STATE:
        state(v, &m->u.state);
        break;
    case AMPD_MESSAGE_LOAD_WANT:
        want(v, &m->u.want);
        break;
    case AMPD_MESSAGE_LOAD_GRANT:
        NUMBER(v, m->u.load);
        break;
    case AMPD_MESSAGE_TOO_LOW:
        fence(v, &m->u.fence);
        break;
    case AMPD_MESSAGE_NOT_CREATED:
        TEXT(v, m->u.why);
        break;
    default:
        v->code = v->code == 0 && !is_empty(m->type) ? AMP_EINVAL : v->code;
        break;
    }
}

int io_peer_body_encode(const struct ampd_message *message, struct amp_buf *out)
{
    /* The visitors take what they could also write; here they only read it. */
    struct visit v = {.out = out};
    body(&v, (struct ampd_message *)(uintptr_t)message);
    return v.code;
}

int io_peer_body_decode(struct ampd_message *message, const uint8_t *data, size_t size, struct amp_error *error)
{
    struct visit v = {.at = data, .end = size > 0 ? data + size : data}; /* an empty content has no address */
    body(&v, message);
    if (v.code == 0 && v.at != v.end)
        v.code = AMP_EINVAL;
    if (v.code == AMP_ENOMEM)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for a message of another shard");
    if (v.code != 0)
        return amp_error_set(
            error, v.code, "INVALID_FIELD",
            "body: these bytes are not a message of type %d in format %d; run the same ampd on all shards",
            (int)message->type, AMPD_PEER_FORMAT);
    return 0;
}

/* ---- items of a store ---- */

static void item(struct visit *v, struct io_peer_item *x)
{
    CHOICE(v, x->kind, IO_ITEM_END);
    if (v->code != 0)
        return;
    switch (x->kind) {
    case IO_ITEM_FENCE:
        bounded(v, &x->shard, AMPD_PARTS_MAX - 1);
        fence(v, &x->fence);
        break;
    case IO_ITEM_MODEL:
        spec(v, &x->spec);
        NUMBER(v, x->created_us);
        flag(v, &x->deleting);
        break;
    case IO_ITEM_EPOCH:
        epoch_record(v, &x->epoch);
        step_row(v, &x->row);
        break;
    case IO_ITEM_ROW:
        step_row(v, &x->row);
        break;
    case IO_ITEM_CHECKPOINT:
        checkpoint(v, &x->checkpoint);
        break;
    case IO_ITEM_END:
        break;
    default:
        v->code = AMP_EINVAL;
        break;
    }
}

int io_peer_item_encode(const struct io_peer_item *x, struct amp_buf *out)
{
    size_t before = out->size;
    uint32_t size = 0;
    struct visit v = {.out = out};
    NUMBER(&v, size);
    item(&v, (struct io_peer_item *)(uintptr_t)x); /* writing only reads it */
    if (v.code != 0) {
        out->size = before;
        return v.code;
    }
    size = (uint32_t)(out->size - before - sizeof size);
    memcpy(out->data + before, &size, sizeof size);
    return 0;
}

int io_peer_item_decode(struct io_peer_item *x, const uint8_t *data, size_t size, size_t *used, struct amp_error *error)
{
    uint32_t length = 0;
    *used = 0;
    if (size < sizeof length)
        return 0;
    memcpy(&length, data, sizeof length);
    bool fits = length <= AMPD_PEER_BODY_MAX;
    if (fits && size - sizeof length < length)
        return 0;
    struct visit v = {.at = data + sizeof length, .end = data + sizeof length + (fits ? length : 0)};
    v.code = fits ? 0 : AMP_EINVAL;
    memset(x, 0, sizeof *x);
    item(&v, x);
    if (v.code == 0 && v.at != v.end)
        v.code = AMP_EINVAL;
    if (v.code == 0) {
        *used = length + sizeof length;
        return 0;
    }
    ampd_model_spec_clear(&x->spec);
    if (v.code == AMP_ENOMEM)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for a record of another shard");
    return amp_error_set(error, v.code, "INVALID_FIELD",
                         "body: these bytes are not a record in format %d; run the same ampd on all shards",
                         AMPD_PEER_FORMAT);
}
