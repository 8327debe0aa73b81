/* The reference's conversions against definitions that share nothing with it: exhaustive where 16 bits are involved. */
#include "amp/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float widen(enum amp_dtype dtype, uint16_t h)
{
    float x;
    amp_kernels_ref.load[dtype](&x, &h, 1);
    return x;
}

static uint16_t narrow(enum amp_dtype dtype, float x)
{
    uint16_t h;
    (void)amp_kernels_ref.store[dtype](&h, &x, 1);
    return h;
}

static void every_f16_widens_to_the_value_of_its_definition(void **state)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        uint32_t exponent = h >> 10 & 31;
        uint32_t fraction = h & 1023;
        double value = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, (int)exponent - 25);
        if (exponent == 31 && fraction != 0) {
            assert_int_equal(bits_of(widen(AMP_F16, (uint16_t)h)), AMP_F32_NAN);
            continue;
        }
        if (exponent == 31)
            value = INFINITY;
        float expected = (float)(h & 0x8000 ? -value : value);
        assert_int_equal(bits_of(widen(AMP_F16, (uint16_t)h)), bits_of(expected));
    }
}

static void every_bf16_widens_to_its_upper_half(void **state)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        uint32_t expected = (h & 0x7fff) > 0x7f80 ? AMP_F32_NAN : h << 16;
        assert_int_equal(bits_of(widen(AMP_BF16, (uint16_t)h)), expected);
    }
}

static void check_round_trip(enum amp_dtype dtype, uint16_t infinity, uint16_t nan)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        uint16_t expected = (h & 0x7fff) > infinity ? nan : (uint16_t)h;
        assert_int_equal(narrow(dtype, widen(dtype, (uint16_t)h)), expected);
    }
}

static void every_16_bit_value_survives_widening_and_narrowing(void **state)
{
    check_round_trip(AMP_F16, 0x7c00, AMP_F16_NAN);
    check_round_trip(AMP_BF16, 0x7f80, AMP_BF16_NAN);
}

/* Between two neighbours: the middle goes to the even one, and one bit off the middle to the nearer one. */
static void check_ties(enum amp_dtype dtype, uint16_t infinity)
{
    for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
        for (uint32_t h = 0; h + 1 < infinity; h++) {
            uint16_t low = (uint16_t)(sign | h);
            uint16_t high = (uint16_t)(sign | (h + 1));
            double middle = ((double)widen(dtype, low) + (double)widen(dtype, high)) / 2;
            uint32_t tie = bits_of((float)middle);
            assert_true((double)of_bits(tie) == middle);
            assert_int_equal(narrow(dtype, of_bits(tie)), h & 1 ? high : low);
            assert_int_equal(narrow(dtype, of_bits(tie - 1)), low);
            assert_int_equal(narrow(dtype, of_bits(tie + 1)), high);
        }
    }
}

static void every_tie_rounds_to_even_and_its_neighbours_to_the_nearest(void **state)
{
    check_ties(AMP_F16, 0x7c00);
    check_ties(AMP_BF16, 0x7f80);
}

static void what_is_beyond_the_range_overflows_to_infinity(void **state)
{
    assert_int_equal(narrow(AMP_F16, 65504), 0x7bff);
    assert_int_equal(narrow(AMP_F16, of_bits(bits_of(65520) - 1)), 0x7bff);
    assert_int_equal(narrow(AMP_F16, 65520), 0x7c00);
    assert_int_equal(narrow(AMP_F16, -3e38f), 0xfc00);
    assert_int_equal(narrow(AMP_BF16, of_bits(0x7f7f7fff)), 0x7f7f);
    assert_int_equal(narrow(AMP_BF16, of_bits(0x7f7f8000)), 0x7f80);
    assert_int_equal(narrow(AMP_BF16, -INFINITY), 0xff80);
}

static void nan_is_canonical_whatever_its_sign_and_payload(void **state)
{
    static const uint32_t nans[] = {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffc00000u, 0xffffffffu};
    for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++) {
        float x = of_bits(nans[i]);
        float copy;
        assert_int_equal(narrow(AMP_F16, x), 0x7e00);
        assert_int_equal(narrow(AMP_BF16, x), 0x7fc0);
        (void)amp_kernels_ref.store[AMP_F32](&copy, &x, 1);
        assert_int_equal(bits_of(copy), 0x7fc00000);
        amp_kernels_ref.load[AMP_F32](&copy, &x, 1);
        assert_int_equal(bits_of(copy), 0x7fc00000);
    }
}

static void denormals_are_kept(void **state)
{
    assert_int_equal(narrow(AMP_F16, 0x1p-24f), 1);
    assert_int_equal(narrow(AMP_F16, 0x1p-25f), 0);
    assert_int_equal(narrow(AMP_F16, 0x1.000002p-25f), 1);
    assert_int_equal(narrow(AMP_BF16, 0x1p-133f), 1);
    assert_int_equal(bits_of(widen(AMP_BF16, 1)), 0x00010000);
    float tiny = 0x1p-149f;
    float scaled;
    assert_int_equal(amp_kernels_ref.scale(&scaled, &tiny, 2.0f, 1), 2);
    assert_int_equal(bits_of(scaled), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_f16_widens_to_the_value_of_its_definition),
        cmocka_unit_test(every_bf16_widens_to_its_upper_half),
        cmocka_unit_test(every_16_bit_value_survives_widening_and_narrowing),
        cmocka_unit_test(every_tie_rounds_to_even_and_its_neighbours_to_the_nearest),
        cmocka_unit_test(what_is_beyond_the_range_overflows_to_infinity),
        cmocka_unit_test(nan_is_canonical_whatever_its_sign_and_payload),
        cmocka_unit_test(denormals_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
