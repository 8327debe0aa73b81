#include "tests/kernels/inputs.h"

#include "amp/cpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Around each of these something changes: zero, denormals, normals, f16's and bf16's limits, ties, 2^63, Inf, NaN. */
static const uint32_t edges[] = {
    0x00000000u, 0x00000001u, 0x007fffffu, 0x00800000u, 0x33000000u, 0x33800000u, 0x387fc000u, 0x387fe000u, 0x38800000u,
    0x3f800000u, 0x3f801000u, 0x3f803000u, 0x3f808000u, 0x3f818000u, 0x477fe000u, 0x477ff000u, 0x47800000u, 0x5f000000u,
    0x7f7f0000u, 0x7f7f8000u, 0x7f7fffffu, 0x7f800000u, 0x7f800001u, 0x7fbfffffu, 0x7fc00000u, 0x7fffffffu};
#define EDGES (sizeof edges / sizeof edges[0])

static float of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

float input_any(struct amp_random *random)
{
    uint64_t r = amp_random_next(random);
    uint32_t sign = (uint32_t)(r >> 63) << 31;
    if ((r & 1) == 0)
        return of_bits((uint32_t)(r >> 16));
    uint32_t edge = edges[(r >> 8) % EDGES];
    uint32_t near = (uint32_t)(r >> 20 & 3);
    if (near == 1 && edge != 0)
        edge--;
    if (near == 2)
        edge++;
    return of_bits(sign | edge);
}

float input_spread(struct amp_random *random, int low, int high)
{
    int exponent = low + (int)amp_random_below(random, (uint64_t)(high - low));
    float mantissa = 1 + (float)(amp_random_next(random) >> 41) * 0x1p-23f;
    return ldexpf(amp_random_next(random) & 1 ? -mantissa : mantissa, exponent);
}

void input_fill(struct amp_random *random, void *data, enum amp_dtype dtype, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float x = input_any(random);
        if (dtype == AMP_F32)
            memcpy((char *)data + 4 * i, &x, 4);
        else
            (void)amp_kernels_ref.store[dtype]((char *)data + 2 * i, &x, 1);
        /* NaN with payload, which no store makes. */
        if (dtype != AMP_F32 && (amp_random_next(random) & 31) == 0) {
            uint16_t h = (uint16_t)amp_random_next(random);
            memcpy((char *)data + 2 * i, &h, 2);
        }
    }
}

#ifdef AMP_KERNELS_AVX512_IN_C /* where kernels_emulated is linked */
extern const struct amp_kernels amp_kernels_avx512_in_c;
#endif
#ifdef AMP_KERNELS_AVX2_OTHER_CORE /* where kernels_other_core is */
extern const struct amp_kernels amp_kernels_avx2_other_core;
#endif

const struct amp_kernels *input_variant(int argc, char **argv)
{
#ifdef AMP_KERNELS_AVX512_IN_C
    if (argc > 1 && strcmp(argv[1], "avx512-in-c") == 0)
        return &amp_kernels_avx512_in_c;
#endif
    const char *isa = argc > 1 ? argv[1] : NULL;
    bool other_core = isa != NULL && strcmp(isa, "avx2-other-core") == 0;
    const struct amp_kernels *kernels;
    struct amp_error error;
    int code = amp_cpu_select(other_core ? "avx2" : isa, &kernels, &error);
#ifdef AMP_KERNELS_AVX2_OTHER_CORE
    if (code == 0 && other_core)
        return &amp_kernels_avx2_other_core;
#endif
    if (code == 0)
        return kernels;
    if (code != AMP_EUNIMPLEMENTED) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    printf("SKIPPED: %s: %s\n", argv[1], error.text);
    exit(77);
}
