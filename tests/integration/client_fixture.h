/* A fake ampd, a client of it, and a model of 5 parameters in 4 blocks that both know. */
#ifndef CLIENT_FIXTURE_H
#define CLIENT_FIXTURE_H

#include "client/ampclient.h"
#include "tests/integration/fake_ampd.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL      "m"
#define PARAMETERS 5
/* Blocks 0 and 1 lie in "large" alone, block 2 spans all the others, block 3 is short. */
static const uint64_t fixture_sizes[PARAMETERS] = {150000, 7, 1, 64, 60000};
static const char *const fixture_names[PARAMETERS] = {"large", "seven", "scalar", "line", "tail"};

struct fixture {
    struct fake *fake;
    struct ampclient *client;
    struct ampclient_model *model;
    float *values[PARAMETERS];    /* first values */
    float *gradients[PARAMETERS]; /* of a step, on the heap so that tools see a late use */
    struct ampclient_step step;
    struct ampclient_result result;
};

static void fixture_ok(const struct fixture *fixture, int rc)
{
    if (rc != 0)
        fail_msg("code %d: %s", rc, ampclient_error_text(fixture->client));
}

static inline int fixture_create(struct fixture *fixture, uint64_t max_steps, bool *existed)
{
    struct ampclient_parameter_spec parameters[PARAMETERS];
    for (int i = 0; i < PARAMETERS; i++)
        parameters[i] = (struct ampclient_parameter_spec){
            .name = fixture_names[i], .dimensions = i == 2 ? 0 : 1, .shape = {i == 2 ? 0 : fixture_sizes[i]}};
    struct ampclient_spec spec = AMPCLIENT_SPEC_INIT;
    spec.name = MODEL;
    spec.parameters = parameters;
    spec.parameters_count = PARAMETERS;
    spec.world_size = 1;
    spec.cast = AMP_F32;
    spec.init_scale = 1024;
    spec.max_steps = max_steps;
    return ampclient_create(fixture->client, &spec, existed);
}

static inline int fixture_load(struct fixture *fixture, bool *already)
{
    return ampclient_load(fixture->client, MODEL, (const float *const *)fixture->values, PARAMETERS, already);
}

static inline void fixture_connect(struct fixture *fixture)
{
    struct ampclient_options options = AMPCLIENT_OPTIONS_INIT;
    options.reconnect_timeout_ms = 60000;
    options.call_timeout_ms = 60000;
    options.step_timeout_ms = 60000;
    struct amp_error error = {0};
    int rc = ampclient_connect(fake_endpoint(fixture->fake), &options, &fixture->client, &error);
    if (rc != 0)
        fail_msg("code %d: %s", rc, error.text);
}

static inline int fixture_setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->fake = fake_new();
    if (fixture->fake == NULL)
        return -1;
    for (int i = 0; i < PARAMETERS; i++) {
        fixture->values[i] = calloc(fixture_sizes[i], sizeof(float));
        fixture->gradients[i] = calloc(fixture_sizes[i], sizeof(float));
        for (uint64_t e = 0; e < fixture_sizes[i]; e++)
            fixture->values[i][e] = (float)(i + 1) + (float)(e % 1000) / 1024;
    }
    fixture->step = (struct ampclient_step)AMPCLIENT_STEP_INIT;
    fixture->result = (struct ampclient_result)AMPCLIENT_RESULT_INIT;
    fixture_connect(fixture);
    *state = fixture;
    return 0;
}

/* The model is created, loaded and joined, too. */
static inline int fixture_setup_joined(void **state)
{
    if (fixture_setup(state) != 0)
        return -1;
    struct fixture *fixture = *state;
    fixture_ok(fixture, fixture_create(fixture, 0, NULL));
    fixture_ok(fixture, fixture_load(fixture, NULL));
    struct ampclient_join_options join = AMPCLIENT_JOIN_OPTIONS_INIT;
    join.rank = 0;
    fixture_ok(fixture, ampclient_join(fixture->client, MODEL, &join, &fixture->model));
    return 0;
}

static inline int fixture_teardown(void **state)
{
    struct fixture *fixture = *state;
    ampclient_close(fixture->client);
    fake_free(fixture->fake);
    for (int i = 0; i < PARAMETERS; i++) {
        free(fixture->values[i]);
        free(fixture->gradients[i]);
    }
    free(fixture);
    return 0;
}

/* Element e of every gradient is scale * (e % 3 + 1), which moves values by half of e % 3 + 1. */
static inline void fixture_fill(struct fixture *fixture, float scale)
{
    for (int i = 0; i < PARAMETERS; i++)
        for (uint64_t e = 0; e < fixture_sizes[i]; e++)
            fixture->gradients[i][e] = scale * (float)(e % 3 + 1);
}

static inline void fixture_begin(struct fixture *fixture)
{
    fixture_ok(fixture, ampclient_step_begin(fixture->model, &fixture->step));
    fixture_fill(fixture, fixture->step.scale);
}

static inline void fixture_push(struct fixture *fixture)
{
    for (uint32_t i = PARAMETERS; i-- > 0;)
        fixture_ok(fixture, ampclient_push(fixture->model, i, fixture->gradients[i], AMP_F32));
}

static inline void fixture_end(struct fixture *fixture)
{
    fixture_ok(fixture, ampclient_step_end(fixture->model, &fixture->result));
}

/* The pulled values are the first ones, moved by so many steps. */
static inline void fixture_check(struct fixture *fixture, unsigned steps)
{
    for (uint32_t i = 0; i < PARAMETERS; i++) {
        struct ampclient_tensor tensor;
        fixture_ok(fixture, ampclient_parameter(fixture->model, i, &tensor));
        assert_string_equal(tensor.name, fixture_names[i]);
        assert_int_equal(tensor.elements, fixture_sizes[i]);
        assert_int_equal(tensor.dtype, AMP_F32);
        const float *data = tensor.data;
        for (uint64_t e = 0; e < fixture_sizes[i]; e++) {
            float expected = fixture->values[i][e];
            for (unsigned s = 0; s < steps; s++)
                expected -= 0.5f * (float)(e % 3 + 1);
            if (memcmp(&data[e], &expected, sizeof expected) != 0)
                fail_msg("%s[%llu] is %g, not %g", tensor.name, (unsigned long long)e, (double)data[e],
                         (double)expected);
        }
    }
}

#endif
