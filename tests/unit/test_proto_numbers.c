/*
 * The numbers of the wire are those of the rooms that may not see the schema: servers and clients convert by a cast.
 */
#include "amp/dtype.h"
#include "amp/optim.h"
#include "amp/scaler.h"
#include "proto/block.h"
#include "proto/msg.h"
#include "storage/records.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

struct pair {
    const char *name;
    int wire;
    int other;
};

#define PAIR(wire, other)                                                                                              \
    {                                                                                                                  \
#wire, (int)AMPD_MSG_##wire, (int)other                                                                        \
    }

static const struct pair pairs[] = {
    PAIR(DTYPE_UNSPECIFIED, AMP_DTYPE_NONE),
    PAIR(DTYPE_F32, AMP_F32),
    PAIR(DTYPE_F16, AMP_F16),
    PAIR(DTYPE_BF16, AMP_BF16),
    PAIR(SCALER_POLICY_UNSPECIFIED, AMP_SCALER_POLICY_UNSET),
    PAIR(SCALER_POLICY_DYNAMIC, AMP_SCALER_DYNAMIC),
    PAIR(SCALER_POLICY_STATIC, AMP_SCALER_STATIC),
    PAIR(SCALER_POLICY_NONE, AMP_SCALER_NONE),
    PAIR(SCALER_POLICY_MEGATRON, AMP_SCALER_MEGATRON),
    PAIR(SCALER_POLICY_DEEPSPEED, AMP_SCALER_DEEPSPEED),
    PAIR(SCALER_POLICY_DEEPSPEED_CONSECUTIVE, AMP_SCALER_DEEPSPEED_CONSECUTIVE),
    PAIR(SCALER_POLICY_APEX_HYSTERESIS, AMP_SCALER_APEX_HYSTERESIS),
    PAIR(SCALER_POLICY_PADDLE, AMP_SCALER_PADDLE),
    PAIR(OPTIMIZER_KIND_UNSPECIFIED, AMP_OPT_UNSET),
    PAIR(OPTIMIZER_KIND_SGD, AMP_OPT_SGD),
    PAIR(OPTIMIZER_KIND_ADAMW, AMP_OPT_ADAMW),
    PAIR(OPTIMIZER_KIND_SGD, AMPD_OPTIMIZER_SGD),
    PAIR(OPTIMIZER_KIND_ADAMW, AMPD_OPTIMIZER_ADAMW),
    PAIR(SCHEDULE_KIND_CONSTANT, AMP_SCHEDULE_CONSTANT),
    PAIR(SCHEDULE_KIND_LINEAR_WARMUP, AMP_SCHEDULE_LINEAR_WARMUP),
    PAIR(SCHEDULE_KIND_STEP, AMP_SCHEDULE_STEP),
    PAIR(SCHEDULE_KIND_COSINE, AMP_SCHEDULE_COSINE),
    PAIR(SCHEDULE_KIND_WORKER, AMP_SCHEDULE_WORKER),
    PAIR(SCHEDULE_KIND_CONSTANT, AMPD_SCHEDULE_CONSTANT),
    PAIR(SCHEDULE_KIND_LINEAR_WARMUP, AMPD_SCHEDULE_LINEAR_WARMUP),
    PAIR(SCHEDULE_KIND_STEP, AMPD_SCHEDULE_STEP),
    PAIR(SCHEDULE_KIND_COSINE, AMPD_SCHEDULE_COSINE),
    PAIR(SCHEDULE_KIND_WORKER, AMPD_SCHEDULE_WORKER),
    PAIR(SYNC_MODE_SYNC, AMPD_SYNC_ALL),
    PAIR(SYNC_MODE_QUORUM, AMPD_SYNC_QUORUM),
    PAIR(ON_LOSS_WAIT, AMPD_ON_LOSS_WAIT),
    PAIR(ON_LOSS_SHRINK, AMPD_ON_LOSS_SHRINK),
    PAIR(WEIGHTING_EQUAL, AMPD_WEIGHTING_EQUAL),
    PAIR(WEIGHTING_PUSHED, AMPD_WEIGHTING_PUSHED),
    PAIR(CAST_OVERFLOW_REPORT, AMPD_CAST_REPORT),
    PAIR(CAST_OVERFLOW_SATURATE, AMPD_CAST_SATURATE),
    PAIR(FLOOR_POLICY_CLAMP, AMPD_FLOOR_CLAMP),
    PAIR(FLOOR_POLICY_FREEZE, AMPD_FLOOR_FREEZE),
    PAIR(FLOOR_POLICY_FAIL, AMPD_FLOOR_FAIL),
    PAIR(DURABILITY_CHECKPOINT, AMPD_DURABILITY_CHECKPOINT),
    PAIR(DURABILITY_STEP, AMPD_DURABILITY_STEP),
    PAIR(VERDICT_APPLIED, AMPD_VERDICT_APPLIED),
    PAIR(VERDICT_SKIPPED_OVERFLOW, AMPD_VERDICT_SKIPPED_OVERFLOW),
    PAIR(VERDICT_SKIPPED_EMPTY, AMPD_VERDICT_SKIPPED_EMPTY),
    PAIR(VERDICT_LATE, AMPD_VERDICT_LATE),
    PAIR(MODEL_STATE_CREATED, AMPD_MODEL_CREATED),
    PAIR(MODEL_STATE_LOADING, AMPD_MODEL_LOADING),
    PAIR(MODEL_STATE_WAITING, AMPD_MODEL_WAITING),
    PAIR(MODEL_STATE_RUNNING, AMPD_MODEL_RUNNING),
    PAIR(MODEL_STATE_STALLED, AMPD_MODEL_STALLED),
    PAIR(MODEL_STATE_DONE, AMPD_MODEL_DONE),
    PAIR(HISTORY_KIND_STEP, AMPD_ROW_STEP),
    PAIR(HISTORY_KIND_EPOCH, AMPD_ROW_EPOCH),
    PAIR(HISTORY_KIND_SCALE_SET, AMPD_ROW_SET),
    PAIR(HISTORY_KIND_SCALE_RESET, AMPD_ROW_RESET),
    PAIR(HISTORY_KIND_EVICTED, AMPD_ROW_EVICT),
    PAIR(HISTORY_KIND_LEARNING_RATE_SET, AMPD_ROW_LR),
};

static void wire_numbers_are_those_of_the_other_rooms(void **state)
{
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (pairs[i].wire != pairs[i].other)
            fail_msg("%s is %d on the wire and %d elsewhere", pairs[i].name, pairs[i].wire, pairs[i].other);
    }
}

static void wire_bounds_hold_what_the_other_rooms_hold(void **state)
{
    assert_int_equal(AMPD_MSG_PARAMETERS_MAX, AMPD_PARAMETERS_MAX);
    assert_int_equal(AMPD_MSG_GROUPS_MAX, AMPD_GROUPS_MAX);
    assert_int_equal(AMPD_MSG_WORKERS_MAX, AMPD_WORLD_MAX);
    assert_int_equal(AMPD_MSG_USER_STATE_MAX, AMPD_USER_STATE_MAX);
    assert_int_equal(AMPD_MSG_STEP_ROWS_MAX, AMPD_OVERFLOW_ROWS_MAX);
    assert_int_equal(sizeof(((struct ampd_msg_parameter_spec *)0)->name), AMPD_NAME_MAX);
    assert_int_equal(sizeof(((struct ampd_msg_parameter_spec *)0)->shape), AMPD_DIMENSIONS_MAX * sizeof(uint64_t));
    assert_int_equal(sizeof(((struct ampd_msg_model_spec *)0)->name), AMPD_NAME_MAX);
    assert_int_equal(sizeof(((struct ampd_msg_join_request *)0)->worker_name), AMPD_NAME_MAX);
    assert_true(AMPD_BLOCK_DATA_MAX < AMPD_MSG_SIZE_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wire_numbers_are_those_of_the_other_rooms),
        cmocka_unit_test(wire_bounds_hold_what_the_other_rooms_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
