/*
 * A specification in the store, and on its way to other shards: what older ampd has written, and shards of the same
 * format send, must be read as it was meant. New rows of proto/spec_fields.def come at the end of the shards' bytes,
 * and under keys of their own.
 */
#include "server/io/base/peer_bytes.h"
#include "storage/spec_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How many rows there were when the texts below were written; what came later is 0 in this test. */
#define ROWS_THEN 45

struct row {
    const char *key; /* in the store */
    size_t size;     /* to other shards */
};

#define KEY_OPTIMIZER(field, name)                          #name
#define KEY_SCHEDULE(field, name)                           #name
#define KEY_CLIP(field, name)                               #name
#define KEY_SCALER(field, name)                             "scaler_" #field
#define KEY_MODEL(field, name)                              #name
#define AMPD_SPEC_NUMBER(part, field, name, kind, ...)      {KEY_##part(field, name), sizeof(AMPD_SPEC_TYPE_##kind)},
#define AMPD_SPEC_CHOICE(part, field, name, msg, core, ...) {KEY_##part(field, name), sizeof(enum core)},
static const struct row rows[] = {
#define AMPD_SPEC_PARTS AMPD_SPEC_ALL
#include "proto/spec_fields.def"
};
#define ROWS (sizeof rows / sizeof *rows)

/* No two numbers are the same, and none is its default. */
static struct ampd_model_spec full_spec(struct ampd_parameter_spec *parameter)
{
    *parameter = (struct ampd_parameter_spec){.name = "w", .dimensions = 2, .shape = {3, 5}, .group = 1};
    struct ampd_model_spec spec = {.name = "m", .parameters_count = 1, .parameters = parameter, .groups_count = 2};
    spec.groups[0] = (struct ampd_group_spec){.name = "a", .lr_scale = 0.25};
    spec.groups[1] = (struct ampd_group_spec){
        .name = "b", .lr_scale = 0.5, .weight_decay_set = true, .weight_decay = 0.75, .clip_max_norm = 1.25f};
    spec.optimizer = AMPD_OPTIMIZER_RMSPROP;
    spec.lr = 0.1;
    spec.beta1 = 0.2;
    spec.beta2 = 0.3;
    spec.eps = 0.4;
    spec.weight_decay = 0.5;
    spec.weight_decay_set = true;
    spec.momentum = 0.6;
    spec.dampening = 0.7;
    spec.nesterov = true;
    spec.alpha = 0.8;
    spec.centered = true;
    spec.lr_decay = 0.9;
    spec.schedule = AMPD_SCHEDULE_COSINE;
    spec.warmup_steps = 11;
    spec.total_steps = 12;
    spec.step_every = 13;
    spec.step_factor = 1.4;
    spec.lr_min = 1.5;
    spec.clip_value = 1.625f;
    spec.clip_max_norm = 1.75f;
    spec.clip_scope = AMPD_CLIP_GROUP;
    spec.world_size = 18;
    spec.sync = AMPD_SYNC_QUORUM;
    spec.quorum = 17;
    spec.on_loss = AMPD_ON_LOSS_SHRINK;
    spec.loss_timeout_ms = 19;
    spec.min_workers = 16;
    spec.weighting = AMPD_WEIGHTING_PUSHED;
    spec.cast = AMP_BF16;
    spec.cast_overflow = AMPD_CAST_SATURATE;
    spec.scaler = (struct amp_scaler_config){AMP_SCALER_PADDLE, 2.5f, 2.625f, 0.375f, 21, 22, 2.125f, 2.875f};
    spec.floor_policy = AMPD_FLOOR_FAIL;
    spec.max_consecutive_overflows = 23;
    spec.max_steps = 24;
    spec.checkpoint_every = 25;
    spec.keep_every = 26;
    spec.keep_last = 27;
    spec.durability = AMPD_DURABILITY_STEP;
    return spec;
}

static const char stored[] =
    "{\"alpha\":0.80000000000000004,\"beta1\":0.20000000000000001,\"beta2\":0.29999999999999999,\"cast\":3,"
    "\"cast_overflow\":2,\"centered\":true,\"checkpoint_every\":25,\"clip_max_norm\":1.75,\"clip_scope\":2,"
    "\"clip_value\":1.625,\"dampening\":0.69999999999999996,\"durability\":2,\"eps\":0.40000000000000002,"
    "\"floor_policy\":3,\"groups\":[{\"clip_max_norm\":0.0,\"lr_scale\":0.25,\"name\":\"a\",\"weight_decay\":0.0,"
    "\"weight_decay_set\":false},{\"clip_max_norm\":1.25,\"lr_scale\":0.5,\"name\":\"b\",\"weight_decay\":0.75,"
    "\"weight_decay_set\":true}],\"keep_every\":26,\"keep_last\":27,\"loss_timeout_ms\":19,"
    "\"lr\":0.10000000000000001,\"lr_decay\":0.90000000000000002,\"lr_min\":1.5,\"max_consecutive_overflows\":23,"
    "\"max_steps\":24,\"min_workers\":16,\"momentum\":0.59999999999999998,\"nesterov\":true,\"on_loss\":2,"
    "\"optimizer\":5,\"quorum\":17,\"scaler_backoff_factor\":0.375,\"scaler_growth_factor\":2.625,"
    "\"scaler_growth_interval\":21,\"scaler_hysteresis\":22,\"scaler_init_scale\":2.5,\"scaler_max_scale\":2.875,"
    "\"scaler_min_scale\":2.125,\"scaler_policy\":8,\"schedule\":4,\"step_every\":13,"
    "\"step_factor\":1.3999999999999999,\"sync\":2,\"total_steps\":12,\"warmup_steps\":11,\"weight_decay\":0.5,"
    "\"weight_decay_set\":true,\"weighting\":2,\"world_size\":18}";
static const char sent[] =
    "010000006d010000000000000001000000770200000003000000000000000500000000000000000000000000000000000000000000000000"
    "00000000000000000000000000000000000000000000000000000000000001000000020000000100000061000000000000d03f0000000000"
    "00000000000000000100000062000000000000e03f01000000000000e83f0000a03f050000009a9999999999b93f9a9999999999c93f3333"
    "33333333d33f9a9999999999d93f000000000000e03f01333333333333e33f666666666666e63f019a9999999999e93f01cdccccccccccec"
    "3f040000000b000000000000000c000000000000000d00000000000000666666666666f63f000000000000f83f0000d03f0000e03f020000"
    "00120000000200000011000000020000001300000000000000100000000200000003000000020000000800000000002040000028400000c0"
    "3e150000001600000000000840000038400300000017000000180000000000000019000000000000001b0000001a00000000000000020000"
    "00";

/* Takes a key and its value out of a text. */
static void take_out(char *text, const char *key)
{
    char quoted[96];
    (void)snprintf(quoted, sizeof quoted, "\"%s\":", key);
    char *at = strstr(text, quoted);
    assert_non_null(at);
    char *end = at + strcspn(at, ",}");
    if (*end == ',')
        end++;
    else
        at--; /* the last one: with the comma before it */
    memmove(at, end, strlen(end) + 1);
}

static void the_store_has_the_text_of_before(void **state)
{
    struct ampd_parameter_spec parameter;
    struct ampd_model_spec spec = full_spec(&parameter);
    char *text;
    assert_int_equal(ampd_spec_to_json(&spec, &text), 0);
    for (size_t i = ROWS_THEN; i < ROWS; i++)
        take_out(text, rows[i].key);
    assert_string_equal(text, stored);
    free(text);
}

/* Rows that are LATER. The text has none of those that came after ROWS_THEN, either. */
static void keys_that_came_later_may_be_absent(void **state)
{
    static const char *const later[] = {"alpha", "centered", "clip_scope", "keep_every", "lr_decay"};
    char old[sizeof stored];
    memcpy(old, stored, sizeof stored);
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        take_out(old, later[i]);
    struct ampd_model_spec spec = {.centered = true, .alpha = 1, .lr_decay = 1, .keep_every = 1};
    assert_int_equal(ampd_spec_from_json(old, &spec), 0);
    assert_true(spec.alpha == 0 && !spec.centered && spec.lr_decay == 0 && spec.keep_every == 0);
    assert_int_equal(spec.clip_scope, AMPD_CLIP_GLOBAL);
    assert_true(spec.momentum == 0.6 && spec.keep_last == 27);
}

static void shards_get_the_bytes_of_before(void **state)
{
    struct ampd_parameter_spec parameter;
    static struct ampd_message message;
    message.type = AMPD_MESSAGE_CREATE;
    message.u.spec = full_spec(&parameter);
    struct amp_buf out;
    amp_buf_init(&out, AMPD_PEER_BODY_MAX);
    assert_int_equal(io_peer_body_encode(&message, &out), 0);
    char *text = calloc(2, out.size + 1);
    assert_non_null(text);
    for (size_t i = 0; i < out.size; i++)
        (void)sprintf(text + 2 * i, "%02x", out.data[i]);
    size_t later = 0;
    for (size_t i = ROWS_THEN; i < ROWS; i++)
        later += rows[i].size;
    assert_int_equal(2 * (out.size - later), sizeof sent - 1);
    assert_memory_equal(text, sent, sizeof sent - 1);
    free(text);
    amp_buf_close(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_store_has_the_text_of_before),
        cmocka_unit_test(keys_that_came_later_may_be_absent),
        cmocka_unit_test(shards_get_the_bytes_of_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
