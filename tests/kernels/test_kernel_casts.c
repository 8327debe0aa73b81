/*
 * The casts of binary32 to f16 and bf16 against oracles that share nothing with the kernels: f16 by rounding a quotient
 * of doubles to an integer, bf16 by comparing the lower half with a half. Without arguments a sixteenth of all inputs,
 * in pieces from everywhere; with "full" all 2^32. Every variant that this processor has.
 */
#include "amp/cpu.h"
#include "amp/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Inputs at a time: 2^20 consecutive patterns have one sign and few exponents. */
#define CHUNK    0x100000u
#define CHUNKS   0x1000u
#define SAMPLE   16 /* of so many pieces of a chunk, one is taken without "full" */
#define VARIANTS 4

static bool full;

/* A power of two: normal doubles have the exponent's bits to themselves. */
static double power_of_two(int e)
{
    uint64_t bits = (uint64_t)(1023 + e) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/*
 * The multiple of the spacing of f16 around |x| that is nearest, ties to even by rint; beyond 65504 there is only Inf.
 */
static uint16_t f16_oracle(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double a = fabs((double)x);
    if (!(a == a))
        return 0x7e00;
    if (a >= 65520)
        return sign | 0x7c00;
    int e = a < 0x1p-14 ? -14 : (int)(bits >> 23 & 0xff) - 127;
    double units = rint(a / power_of_two(e - 10)); /* 0 to 2048 of the spacing 2^(e - 10) */
    return (uint16_t)(sign + (unsigned)(e + 14) * 1024 + (unsigned)units);
}

static uint16_t bf16_oracle(uint32_t bits)
{
    uint32_t upper = bits >> 16, lower = bits & 0xffff;
    if ((bits & 0x7fffffff) > 0x7f800000)
        return 0x7fc0;
    bool up = lower > 0x8000 || (lower == 0x8000 && upper % 2 == 1);
    return (uint16_t)(upper + (up ? 1 : 0));
}

static const struct amp_kernels *variants[VARIANTS];
static size_t variants_count;

static void find_variants(void)
{
    for (size_t i = 0; amp_cpu_isa(i) != NULL; i++)
        if (amp_cpu_select(amp_cpu_isa(i), &variants[variants_count], NULL) == 0)
            variants_count++;
}

static void compare(enum amp_dtype dtype, const float *in, const uint16_t *expected, uint32_t first, size_t n)
{
    static uint16_t got[CHUNK];
    for (size_t v = 0; v < variants_count; v++) {
        (void)variants[v]->store[dtype](got, in, n);
        if (memcmp(got, expected, n * sizeof got[0]) == 0)
            continue;
        for (size_t i = 0; i < n; i++)
            if (got[i] != expected[i]) {
                print_message("%s to %s: 0x%08x gives 0x%04x, expected 0x%04x\n", variants[v]->isa,
                              amp_dtype_name(dtype), (unsigned)(first + i), (unsigned)got[i], (unsigned)expected[i]);
                break;
            }
        fail();
    }
}

static void check_casts(enum amp_dtype dtype, uint16_t (*oracle)(uint32_t bits))
{
    static float in[CHUNK];
    static uint16_t expected[CHUNK];
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++) {
        size_t n = full ? CHUNK : CHUNK / SAMPLE;
        uint32_t first = chunk * CHUNK + (full ? 0 : chunk * 7 % SAMPLE * (CHUNK / SAMPLE));
        for (size_t i = 0; i < n; i++) {
            uint32_t bits = first + (uint32_t)i;
            memcpy(&in[i], &bits, sizeof in[i]);
            expected[i] = oracle(bits);
        }
        compare(dtype, in, expected, first, n);
    }
}

static void casts_to_f16_agree_with_an_oracle_in_double(void **state)
{
    check_casts(AMP_F16, f16_oracle);
}

static void casts_to_bf16_agree_with_an_oracle_in_integers(void **state)
{
    check_casts(AMP_BF16, bf16_oracle);
}

int main(int argc, char **argv)
{
    full = argc > 1 && strcmp(argv[1], "full") == 0;
    find_variants();
    print_message("%s inputs, %zu variants\n", full ? "2^32" : "2^28", variants_count);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(casts_to_f16_agree_with_an_oracle_in_double),
        cmocka_unit_test(casts_to_bf16_agree_with_an_oracle_in_integers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
