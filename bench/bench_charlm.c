/*
 * Training steps of examples/charlm without a server, with its default sizes and on one thread:
 *
 *   bench_charlm TEXT f32|bf16|f16
 *
 * Prints "ready", and then for each line on stdin makes one step and prints its seconds. bench/charlm_rows.py compares
 * it with PyTorch, and its precisions with each other.
 */
#include "amp/cpu.h"
#include "bench/measure.h"
#include "examples/charlm/charlm.h"

#include <stdio.h>
#include <string.h>

static enum amp_autocast_mode mode_of(const char *precision)
{
    if (strcmp(precision, "f32") == 0)
        return AMP_AUTOCAST_NONE;
    if (strcmp(precision, "bf16") == 0)
        return AMP_AUTOCAST_BF16;
    if (strcmp(precision, "f16") != 0)
        bench_fail("the precision is not one of f32, bf16, f16");
    return AMP_AUTOCAST_FP16;
}

int main(int argc, char **argv)
{
    const struct amp_kernels *kernels;
    struct charlm_text text;
    struct charlm_local local;
    if (argc != 3)
        bench_fail("usage: bench_charlm TEXT f32|bf16|f16");
    const struct charlm_options options = {
        .shape = CHARLM_SHAPE_DEFAULT, .mode = mode_of(argv[2]), .seed = 1, .world = 1, .quiet = true};
    if (amp_cpu_select(NULL, &kernels, NULL) != 0 || charlm_text_open(&text, argv[1], options.shape.context) != 0 ||
        charlm_local_open(&local, &options, kernels, &text) != 0)
        bench_fail("cannot start");
    (void)puts("ready");
    (void)fflush(stdout);
    for (int character; (character = getchar()) != EOF;) {
        double begin_s = bench_now_s(), loss;
        bool skipped;
        if (character != '\n')
            continue;
        if (charlm_local_step(&local, &loss, &skipped) != 0)
            bench_fail("a step failed");
        (void)printf("%.9f\n", bench_now_s() - begin_s);
        (void)fflush(stdout);
    }
    charlm_local_close(&local);
    charlm_text_close(&text);
    return 0;
}
