/* Messages between shards as bytes: nothing is left out, nothing that is wrong gets in. */
#include "server/io/base/peer_bytes.h"

#include "base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARAMETERS  2
#define SUBTREES    3
#define CHECKPOINTS 2

/* What a message has, and how many of its bytes are padding: bytes that no field has. Those between the fields of a specification are counted apart. */
struct kind {
    enum ampd_message_type type;
    size_t size, padding;
};

/* Of a specification, between the fields of proto/spec_fields.def. */
#define AMPD_SPEC_NUMBER(part, field, name, kind, presence, ...)                                                       \
    +sizeof(AMPD_SPEC_TYPE_##kind) AMPD_SPEC_IF_SET_##presence(+sizeof(bool))
#define AMPD_SPEC_CHOICE(part, field, name, msg, core, ...) +sizeof(enum core)
static const size_t fields_size = 0
#define AMPD_SPEC_PARTS AMPD_SPEC_ALL
#include "proto/spec_fields.def"
    ;
#define SPEC_FIELDS (sizeof(struct ampd_model_spec) - offsetof(struct ampd_model_spec, optimizer))

#define MEMBER(member) sizeof(((struct ampd_message *)0)->u.member)

static const struct kind kinds[] = {
    {AMPD_MESSAGE_CREATE, MEMBER(spec), 184},
    {AMPD_MESSAGE_LOADED, MEMBER(applied), 260},
    {AMPD_MESSAGE_SYNC, 0, 0},
    {AMPD_MESSAGE_SYNCED, MEMBER(sync), 2573},
    {AMPD_MESSAGE_RESTORE, MEMBER(restore), 13},
    {AMPD_MESSAGE_RESTORED, MEMBER(restore), 13},
    {AMPD_MESSAGE_EPOCH, MEMBER(epoch), 7},
    {AMPD_MESSAGE_EPOCH_STORED, MEMBER(epoch), 7},
    {AMPD_MESSAGE_OPEN, MEMBER(open), 1031},
    {AMPD_MESSAGE_COMPLETE, MEMBER(complete), 12},
    {AMPD_MESSAGE_CLOSE, MEMBER(close), 2051},
    {AMPD_MESSAGE_VOTE, MEMBER(vote), 296},
    {AMPD_MESSAGE_VERDICT, MEMBER(verdict), 2681},
    {AMPD_MESSAGE_APPLIED, MEMBER(applied), 260},
    {AMPD_MESSAGE_CUT, MEMBER(restore), 13},
    {AMPD_MESSAGE_PART_DONE, MEMBER(restore), 13},
    {AMPD_MESSAGE_STATE, MEMBER(state), 6},
    {AMPD_MESSAGE_HELLO, 0, 0},
    {AMPD_MESSAGE_SYNC_DONE, 0, 0},
    {AMPD_MESSAGE_LOAD_WANT, MEMBER(want), 8},
    {AMPD_MESSAGE_LOAD_GRANT, MEMBER(load), 0},
    {AMPD_MESSAGE_LOAD_GONE, 0, 0},
    {AMPD_MESSAGE_UNFIT, MEMBER(unfit), 12},
    {AMPD_MESSAGE_TOO_LOW, MEMBER(fence), 0},
    {AMPD_MESSAGE_HOLDS, MEMBER(restore), 13},
    {AMPD_MESSAGE_HELD, MEMBER(restore), 13},
    {AMPD_MESSAGE_DELETE, 0, 0},
    {AMPD_MESSAGE_DELETED, 0, 0},
    {AMPD_MESSAGE_LEAVE, 0, 0},
    {AMPD_MESSAGE_MAY_LEAVE, 0, 0},
    {AMPD_MESSAGE_NOT_CREATED, MEMBER(why), 0},
    {AMPD_MESSAGE_PARTS, MEMBER(parts), 4},
    {AMPD_MESSAGE_ACTS, MEMBER(acts), 56},
    {AMPD_MESSAGE_ALIVE, MEMBER(alive), 1028},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

static void fill_text(char *text, size_t room)
{
    memset(text, 'a', room - 1);
    text[room - 1] = 0;
}

static void fill_spec(struct ampd_model_spec *spec)
{
    fill_text(spec->name, sizeof spec->name);
    spec->parameters_count = PARAMETERS;
    spec->parameters = calloc(PARAMETERS, sizeof *spec->parameters);
    assert_non_null(spec->parameters);
    for (int i = 0; i < PARAMETERS; i++)
        fill_text(spec->parameters[i].name, sizeof spec->parameters[i].name);
    spec->groups_count = AMPD_GROUPS_MAX;
    for (int i = 0; i < AMPD_GROUPS_MAX; i++)
        fill_text(spec->groups[i].name, sizeof spec->groups[i].name);
}

static void fill_note(struct ampd_note *note)
{
    fill_text(note->actor, sizeof note->actor);
    fill_text(note->words, sizeof note->words);
    fill_text(note->request_id, sizeof note->request_id);
}

static void fill_metrics(struct ampd_metrics *metrics)
{
    metrics->loss = 0.1f;
    metrics->loss_workers = AMPD_WORLD_MAX;
    metrics->count = AMPD_METRICS_MAX;
    for (int i = 0; i < AMPD_METRICS_MAX; i++) {
        fill_text(metrics->items[i].name, sizeof metrics->items[i].name);
        metrics->items[i].value = -0.5f;
        metrics->items[i].workers = AMPD_WORLD_MAX;
    }
}

static void fill_row(struct ampd_step_row *row)
{
    fill_note(&row->note);
    row->contributors_count = AMPD_WORLD_MAX;
    row->clips_count = AMPD_GROUPS_MAX;
    row->rows_count = AMPD_OVERFLOW_ROWS_MAX;
    fill_metrics(&row->metrics);
}

static void fill_sync(struct ampd_sync_state *sync)
{
    fill_spec(&sync->spec);
    fill_row(&sync->last);
    sync->checkpoints_count = CHECKPOINTS;
    sync->checkpoints = calloc(CHECKPOINTS, sizeof *sync->checkpoints);
    assert_non_null(sync->checkpoints);
}

/* A message in which every list is as long as it can be and every text fills its room. */
static struct ampd_message *full(enum ampd_message_type type)
{
    struct ampd_message *m = ampd_message_new(type);
    assert_non_null(m);
    switch (type) {
    case AMPD_MESSAGE_CREATE:
        fill_spec(&m->u.spec);
        break;
    case AMPD_MESSAGE_SYNCED:
        fill_sync(&m->u.sync);
        break;
    case AMPD_MESSAGE_EPOCH:
    case AMPD_MESSAGE_EPOCH_STORED:
        fill_text(m->u.epoch.record.reason, sizeof m->u.epoch.record.reason);
        fill_note(&m->u.epoch.note);
        break;
    case AMPD_MESSAGE_NOT_CREATED:
        fill_text(m->u.why, sizeof m->u.why);
        break;
    case AMPD_MESSAGE_PARTS:
        m->u.parts.count = AMPD_PARTS_MAX;
        break;
    case AMPD_MESSAGE_ALIVE:
        m->u.alive.count = AMPD_WORLD_MAX;
        break;
    case AMPD_MESSAGE_OPEN:
        m->u.open.expected_count = AMPD_WORLD_MAX;
        break;
    case AMPD_MESSAGE_CLOSE:
        m->u.close.contributors_count = AMPD_WORLD_MAX;
        break;
    case AMPD_MESSAGE_VOTE:
        m->u.vote.rows_count = AMPD_OVERFLOW_ROWS_MAX;
        m->u.vote.subtrees_count = SUBTREES;
        m->u.vote.subtrees = calloc(SUBTREES, sizeof(struct ampd_subtree));
        assert_non_null(m->u.vote.subtrees);
        m->u.vote.shared_count = AMPD_SHARED_ROWS_MAX;
        m->u.vote.shared = calloc(AMPD_SHARED_ROWS_MAX, sizeof(struct ampd_overflow_row));
        assert_non_null(m->u.vote.shared);
        fill_metrics(&m->u.vote.metrics);
        break;
    case AMPD_MESSAGE_VERDICT:
        fill_row(&m->u.verdict.row);
        m->u.verdict.range_count = AMPD_OVERFLOW_ROWS_MAX;
        m->u.verdict.acts_count = AMPD_ACTIONS_WAIT_MAX;
        for (int i = 0; i < AMPD_ACTIONS_WAIT_MAX; i++)
            fill_note(&m->u.verdict.acts[i].note);
        break;
    case AMPD_MESSAGE_ACTS:
        m->u.acts.count = AMPD_ACTIONS_WAIT_MAX;
        for (int i = 0; i < AMPD_ACTIONS_WAIT_MAX; i++)
            fill_note(&m->u.acts.acts[i].note);
        break;
    case AMPD_MESSAGE_LOADED:
    case AMPD_MESSAGE_APPLIED:
        m->u.applied.range_count = AMPD_OVERFLOW_ROWS_MAX;
        break;
    default:
        break;
    }
    return m;
}

static struct amp_buf encoded(const struct ampd_message *message)
{
    struct amp_buf buf;
    amp_buf_init(&buf, AMPD_PEER_BODY_MAX);
    assert_int_equal(io_peer_body_encode(message, &buf), 0);
    return buf;
}

static int decoded(enum ampd_message_type type, const struct amp_buf *buf, size_t size, struct ampd_message **out)
{
    struct amp_error error = {0};
    /* So that tools see a read behind the end; an empty content has no address, as the decoder gives it. */
    uint8_t *exact = size > 0 ? malloc(size) : NULL;
    assert_true(exact != NULL || size == 0);
    if (size > 0)
        memcpy(exact, buf->data, size);
    *out = ampd_message_new(type);
    assert_non_null(*out);
    int rc = io_peer_body_decode(*out, exact, size, &error);
    assert_true(rc == 0 || error.text[0] != 0);
    free(exact);
    return rc;
}

static void every_message_comes_back_as_it_was(void **state)
{
    (void)state;
    for (size_t i = 0; i < KINDS; i++) {
        struct ampd_message *message = full(kinds[i].type), *got;
        struct amp_buf first = encoded(message);
        assert_int_equal(decoded(kinds[i].type, &first, first.size, &got), 0);
        struct amp_buf second = encoded(got);
        assert_int_equal(first.size, second.size);
        if (first.size > 0)
            assert_memory_equal(first.data, second.data, first.size);
        amp_buf_close(&first);
        amp_buf_close(&second);
        ampd_message_free(message);
        ampd_message_free(got);
    }
}

/* Whether a byte of the message lies in a pointer to what it owns. */
static bool in_pointer(const struct ampd_message *m, size_t at)
{
    const void *const *places[3] = {0};
    if (m->type == AMPD_MESSAGE_CREATE)
        places[0] = (const void *const *)&m->u.spec.parameters;
    if (m->type == AMPD_MESSAGE_VOTE) {
        places[0] = (const void *const *)&m->u.vote.subtrees;
        places[1] = (const void *const *)&m->u.vote.shared;
    }
    if (m->type == AMPD_MESSAGE_SYNCED) {
        places[0] = (const void *const *)&m->u.sync.checkpoints;
        places[1] = (const void *const *)&m->u.sync.spec.parameters;
    }
    for (int i = 0; i < 2; i++) {
        const uint8_t *begin = (const uint8_t *)places[i];
        const uint8_t *byte = (const uint8_t *)&m->u + at;
        if (begin != NULL && byte >= begin && byte < begin + sizeof(void *))
            return true;
    }
    return false;
}

/* Whether the content, written to `now`, differs or cannot be written when one byte of the struct differs. */
static bool matters(struct ampd_message *message, size_t at, const struct amp_buf *before, struct amp_buf *now)
{
    uint8_t *byte = (uint8_t *)&message->u + at;
    now->size = 0;
    *byte ^= 1;
    int rc = io_peer_body_encode(message, now);
    *byte ^= 1;
    return rc != 0 || now->size != before->size || memcmp(now->data, before->data, now->size) != 0;
}

/* Counts are left alone: a smaller one is seen by the length, a larger one would reach beyond what the message owns. */
static bool is_owned_count(const struct ampd_message *m, size_t at)
{
    const uint8_t *byte = (const uint8_t *)&m->u + at;
#define IN(field) (byte >= (const uint8_t *)&(field) && byte < (const uint8_t *)&(field) + sizeof(field))
    if (m->type == AMPD_MESSAGE_CREATE)
        return IN(m->u.spec.parameters_count);
    if (m->type == AMPD_MESSAGE_VOTE)
        return IN(m->u.vote.subtrees_count) || IN(m->u.vote.shared_count);
    return m->type == AMPD_MESSAGE_SYNCED && (IN(m->u.sync.checkpoints_count) || IN(m->u.sync.spec.parameters_count));
}

/* All actions of a list are written alike: the first and the last stand for them, or the test would take too long. */
static bool in_middle_action(const struct ampd_message *m, size_t at)
{
    const struct ampd_action *acts = m->type == AMPD_MESSAGE_ACTS      ? m->u.acts.acts
                                     : m->type == AMPD_MESSAGE_VERDICT ? m->u.verdict.acts
                                                                       : NULL;
    const uint8_t *byte = (const uint8_t *)&m->u + at;
    return acts != NULL && byte >= (const uint8_t *)&acts[1] &&
           byte < (const uint8_t *)&acts[AMPD_ACTIONS_WAIT_MAX - 1];
}

/* A field that somebody adds to a struct and not to peer_bytes.c is one more byte that does not matter. */
static void every_byte_of_every_field_travels(void **state)
{
    (void)state;
    bool ok = true;
    struct amp_buf now;
    amp_buf_init(&now, AMPD_PEER_BODY_MAX);
    for (size_t i = 0; i < KINDS; i++) {
        struct ampd_message *message = full(kinds[i].type);
        struct amp_buf before = encoded(message);
        size_t idle = 0;
        for (size_t at = 0; at < kinds[i].size; at++)
            if (!in_pointer(message, at) && !is_owned_count(message, at) && !in_middle_action(message, at) &&
                !matters(message, at, &before, &now))
                idle++;
        size_t between = kinds[i].type == AMPD_MESSAGE_CREATE || kinds[i].type == AMPD_MESSAGE_SYNCED
                             ? SPEC_FIELDS - fields_size
                             : 0;
        if (idle != kinds[i].padding + between) {
            (void)printf(
                "type %d: %zu bytes do not travel, %zu are padding: a new field needs its line in peer_bytes.c\n",
                (int)kinds[i].type, idle, kinds[i].padding + between);
            ok = false;
        }
        amp_buf_close(&before);
        ampd_message_free(message);
    }
    amp_buf_close(&now);
    assert_true(ok);
}

static void a_content_that_is_cut_off_or_too_long_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < KINDS; i++) {
        struct ampd_message *message = full(kinds[i].type), *got;
        struct amp_buf buf = encoded(message);
        for (size_t size = 0; size < buf.size; size += size < 300 || size + 300 > buf.size ? 1 : 97) {
            assert_int_equal(decoded(kinds[i].type, &buf, size, &got), AMP_EINVAL);
            ampd_message_free(got);
        }
        assert_int_equal(amp_buf_append(&buf, "x", 1), 0);
        assert_int_equal(decoded(kinds[i].type, &buf, buf.size, &got), AMP_EINVAL);
        ampd_message_free(got);
        amp_buf_close(&buf);
        ampd_message_free(message);
    }
}

static void bytes_of_chance_are_refused_or_within_every_bound(void **state)
{
    (void)state;
    struct amp_random random;
    amp_random_init(&random, 20261121);
    for (int round = 0; round < 4000; round++) {
        const struct kind *kind = &kinds[amp_random_next(&random) % KINDS];
        struct ampd_message *message = full(kind->type), *got;
        struct amp_buf buf = encoded(message);
        for (int flips = 0; buf.size > 0 && flips < 1 + round % 3; flips++)
            buf.data[amp_random_next(&random) % buf.size] = (uint8_t)amp_random_next(&random);
        if (decoded(kind->type, &buf, buf.size, &got) == 0) {
            struct amp_buf again = encoded(got); /* what was taken can be said again: it is within the bounds */
            assert_int_equal(again.size, buf.size);
            amp_buf_close(&again);
        }
        ampd_message_free(got);
        amp_buf_close(&buf);
        ampd_message_free(message);
    }
}

/* By the largest specification and as many checkpoints as are named: nothing that a shard holds is too much for a message. */
static void the_longest_content_fits(void **state)
{
    (void)state;
    struct ampd_message *message = full(AMPD_MESSAGE_SYNCED), *got;
    struct ampd_sync_state *sync = &message->u.sync;
    free(sync->spec.parameters);
    free(sync->checkpoints);
    sync->spec.parameters_count = AMPD_PARAMETERS_MAX;
    sync->spec.parameters = calloc(AMPD_PARAMETERS_MAX, sizeof *sync->spec.parameters);
    sync->checkpoints_count = AMPD_SYNC_CHECKPOINTS_MAX;
    sync->checkpoints = calloc(AMPD_SYNC_CHECKPOINTS_MAX, sizeof *sync->checkpoints);
    assert_true(sync->spec.parameters != NULL && sync->checkpoints != NULL);
    for (uint32_t i = 0; i < AMPD_PARAMETERS_MAX; i++)
        fill_text(sync->spec.parameters[i].name, sizeof sync->spec.parameters[i].name);
    for (uint32_t i = 0; i < AMPD_SYNC_CHECKPOINTS_MAX; i++) {
        fill_text(sync->checkpoints[i].file, sizeof sync->checkpoints[i].file);
        sync->checkpoints[i].parts_count = AMPD_PARTS_MAX;
    }
    struct amp_buf buf = encoded(message);
    assert_true(buf.size < AMPD_PEER_BODY_MAX);
    assert_int_equal(decoded(AMPD_MESSAGE_SYNCED, &buf, buf.size, &got), 0);
    assert_int_equal(got->u.sync.checkpoints_count, AMPD_SYNC_CHECKPOINTS_MAX);
    amp_buf_close(&buf);
    ampd_message_free(message);
    ampd_message_free(got);
}

static void a_type_that_does_not_exist_is_refused(void **state)
{
    (void)state;
    struct amp_buf buf, none = {0};
    amp_buf_init(&buf, AMPD_PEER_BODY_MAX);
    struct ampd_message *message = ampd_message_new(AMPD_MESSAGE_HELLO), *got;
    assert_non_null(message);
    message->type = (enum ampd_message_type)99;
    assert_int_equal(io_peer_body_encode(message, &buf), AMP_EINVAL);
    assert_int_equal(decoded((enum ampd_message_type)99, &none, 0, &got), AMP_EINVAL);
    ampd_message_free(message);
    ampd_message_free(got);
    amp_buf_close(&buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_comes_back_as_it_was),
        cmocka_unit_test(every_byte_of_every_field_travels),
        cmocka_unit_test(a_content_that_is_cut_off_or_too_long_is_refused),
        cmocka_unit_test(bytes_of_chance_are_refused_or_within_every_bound),
        cmocka_unit_test(the_longest_content_fits),
        cmocka_unit_test(a_type_that_does_not_exist_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
