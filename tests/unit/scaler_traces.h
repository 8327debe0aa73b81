/* A golden trace of each loss-scale policy. */
#ifndef TESTS_UNIT_SCALER_TRACES_H
#define TESTS_UNIT_SCALER_TRACES_H

#include "amp/scaler.h"

/*
 * One trace for all policies, as the originals run: start 1024, interval 4, hysteresis 2; the scale after each step.
 * '.' is a clean step, 'X' an overflow.
 */
#define TRACE       "......XXX..X........."
#define TRACE_STEPS (sizeof TRACE - 1)

struct golden {
    enum amp_scaler_policy policy;
    float scales[TRACE_STEPS];
};

static const struct golden golden_traces[] = {
    {AMP_SCALER_DYNAMIC,
     {1024, 1024, 1024, 2048, 2048, 2048, 1024, 512, 256, 256, 256, 128, 128, 128, 128, 256, 256, 256, 256, 512, 512}},
    {AMP_SCALER_STATIC, {1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024,
                         1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024}},
    {AMP_SCALER_MEGATRON, {1024, 1024, 1024, 2048, 2048, 2048, 2048, 1024, 512,  512, 512,
                           256,  256,  256,  256,  512,  512,  512,  512,  1024, 1024}},
    {AMP_SCALER_DEEPSPEED, {1024, 1024, 1024, 1024, 2048, 2048, 2048, 1024, 512, 512, 512,
                            256,  256,  256,  256,  256,  512,  512,  512,  512, 1024}},
    {AMP_SCALER_DEEPSPEED_CONSECUTIVE, {1024, 1024, 1024, 1024, 2048, 2048, 2048, 1024, 512,  512, 512,
                                        512,  512,  512,  512,  512,  1024, 1024, 1024, 1024, 2048}},
    {AMP_SCALER_APEX_HYSTERESIS, {1024, 1024, 1024, 2048, 2048, 2048, 2048, 1024, 512,  512, 512,
                                  512,  512,  512,  512,  1024, 1024, 1024, 1024, 2048, 2048}},
    {AMP_SCALER_PADDLE, {1024, 1024, 1024, 2048, 2048, 2048, 2048, 1024, 1024, 1024, 1024,
                         1024, 1024, 1024, 1024, 2048, 2048, 2048, 2048, 4096, 4096}},
};
#define GOLDEN_TRACES (sizeof golden_traces / sizeof golden_traces[0])

#endif
