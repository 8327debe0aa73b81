/* A host of the worker's machine for unit tests: it keeps the outputs, and the test answers the calls. */
#ifndef CLIENT_CORE_FIXTURE_H
#define CLIENT_CORE_FIXTURE_H

#include "client/core/client_core.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OUTPUTS_MAX 64
#define BLOCK       64

static struct ampclient_core *core;
static uint64_t now_ms;
static struct ampclient_output outputs[OUTPUTS_MAX];
static uint32_t absent[4], absent_count;
static unsigned count;

/* ---- host ---- */

static inline void drain(void)
{
    struct ampclient_output output;
    while (ampclient_core_next(core, &output)) {
        assert_true(count < OUTPUTS_MAX);
        if (output.type == AMPCLIENT_OUT_PUSH_END) {
            absent_count = output.u.end.absent_count;
            memcpy(absent, output.u.end.absent, absent_count * sizeof *absent);
        }
        outputs[count++] = output;
        /* One output each, so that tests can name them one by one. */
        for (uint64_t more = 1; output.type == AMPCLIENT_OUT_PUSH_BLOCKS && more < output.u.blocks.count; more++) {
            assert_true(count < OUTPUTS_MAX);
            outputs[count] = output;
            outputs[count++].u.blocks.first += more;
        }
    }
}

static inline void send(struct ampclient_event *event)
{
    ampclient_core_step(core, now_ms, event);
    drain();
}

static inline void request(enum ampclient_event_type type)
{
    struct ampclient_event event = {.type = type};
    send(&event);
}

/* The oldest output of a kind, taken off the list; ends the test if there is none. */
static inline struct ampclient_output take(enum ampclient_output_type type)
{
    for (unsigned i = 0; i < count; i++) {
        if (outputs[i].type != type)
            continue;
        struct ampclient_output found = outputs[i];
        count--;
        memmove(&outputs[i], &outputs[i + 1], (count - i) * sizeof outputs[0]);
        return found;
    }
    fail_msg("no output of kind %d", (int)type);
    return outputs[0];
}

static inline unsigned have(enum ampclient_output_type type)
{
    unsigned found = 0;
    for (unsigned i = 0; i < count; i++)
        found += outputs[i].type == type ? 1 : 0;
    return found;
}

static inline void end_with(uint64_t call, struct ampclient_ended ended)
{
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_ENDED, .call = call, .u.ended = ended};
    send(&event);
}

static inline void fail_call(uint64_t call, int code, const char *reason, uint64_t epoch, uint64_t step)
{
    struct ampclient_ended ended = {.code = code, .reason = reason, .text = "text", .epoch = epoch, .step = step};
    end_with(call, ended);
}

static inline void tick(uint64_t ms)
{
    now_ms += ms;
    request(AMPCLIENT_EVENT_TICK);
}

/* Two parameters of 100 and 10 elements: blocks 0 and 1 hold the first, block 2 the second. */
static inline void answer_join_on(uint32_t shards, uint64_t epoch, uint64_t step, uint64_t incarnation)
{
    static const uint64_t elements[] = {100, 10};
    struct ampclient_ended ended = {0};
    ended.u.join = (struct ampclient_join_answer){.rank = 1,
                                                  .world_size = 2,
                                                  .shards = shards,
                                                  .incarnation = {.fence = 1, .counter = incarnation},
                                                  .epoch = epoch,
                                                  .step = step,
                                                  .lease_ms = 30000,
                                                  .parameters_count = 2,
                                                  .elements = elements,
                                                  .block_elements = BLOCK,
                                                  .cast = AMP_F16};
    end_with(take(AMPCLIENT_OUT_JOIN).call, ended);
}

static uint32_t shards; /* that the core began with */

static inline void answer_join(uint64_t epoch, uint64_t step, uint64_t incarnation)
{
    answer_join_on(shards, epoch, step, incarnation);
}

static inline void answer_pull(uint64_t epoch, uint64_t step, uint64_t version)
{
    struct ampclient_output pull = take(AMPCLIENT_OUT_PULL);
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_PULL_HEADER, .call = pull.call};
    event.u.header = (struct ampclient_pull_header){epoch, step, version, 5, 1024, NULL};
    send(&event);
    bool same = pull.u.pull.have_epoch == epoch && pull.u.pull.have_version == version;
    for (uint64_t b = 0; !same && b < 3; b++) {
        memset(pull.u.pull.memory + b * pull.u.pull.stride, (int)version, pull.u.pull.stride);
        event = (struct ampclient_event){.type = AMPCLIENT_EVENT_PULL_BLOCK, .call = pull.call, .u.block = b};
        send(&event);
    }
    end_with(pull.call, (struct ampclient_ended){0});
}

static inline void answer_keep_alive(uint64_t epoch, bool valid, const char *taken_by)
{
    struct ampclient_ended ended = {.u.keep_alive = {.epoch = epoch, .valid = valid, .taken_by = taken_by}};
    end_with(take(AMPCLIENT_OUT_KEEP_ALIVE).call, ended);
}

static inline struct ampclient_user_done done(enum ampclient_event_type type, int code)
{
    struct ampclient_output output = take(AMPCLIENT_OUT_USER_DONE);
    assert_int_equal(type, output.u.done.request);
    assert_int_equal(code, output.u.done.code);
    return output.u.done;
}

static inline void begin(uint64_t epoch, uint64_t step)
{
    request(AMPCLIENT_EVENT_STEP_BEGIN);
    answer_pull(epoch, step, step - 1);
    assert_int_equal(step, done(AMPCLIENT_EVENT_STEP_BEGIN, 0).step.step);
}

static inline void make_with(struct ampclient_core_config config)
{
    now_ms = 1000;
    count = 0;
    shards = config.shards > 0 ? config.shards : 1;
    assert_int_equal(0, ampclient_core_new(&config, &core));
    request(AMPCLIENT_EVENT_JOIN);
    answer_join(1, 1, 1);
    (void)done(AMPCLIENT_EVENT_JOIN, 0);
}

static inline void make(uint32_t accumulate)
{
    make_with((struct ampclient_core_config){
        .model = "m", .worker = "w", .rank = 1, .world_size = 2, .accumulate = accumulate});
}

static inline int setup(void **state)
{
    (void)state;
    make(1);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    ampclient_core_free(core);
    return 0;
}

static uint16_t second[10];

static inline void push(uint32_t parameter, const void *gradient)
{
    struct amp_error error = {0};
    assert_int_equal(0, ampclient_core_push(core, now_ms, parameter, gradient, AMP_F16, &error));
    drain();
}

static inline void answer_push(uint64_t call, uint64_t epoch, uint64_t step)
{
    struct ampclient_ended ended = {0};
    ended.u.push = (struct ampclient_core_result){.epoch = epoch, .step = step, .verdict = AMPCLIENT_CORE_APPLIED};
    end_with(call, ended);
}

#endif
