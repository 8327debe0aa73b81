/* Processor features decide which kernel tables may run; the floating-point environment is tested by what it does. */
#include "amp/cpu.h"

#include "amp/fp_env.h"
#include "amp/given.h"

#include <float.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The remedy where denormals are flushed. */
#define UNLOAD ": load no library that was built with -ffast-math, or call fesetenv(FE_DFL_ENV)"

#ifdef AMP_KERNELS_X86 /* set by the build where it compiles kernels/avx2.c and kernels/avx512.c */
#include <cpuid.h>

/* F16C, which neither compiler's __builtin_cpu_supports names in all the versions we build with: leaf 1, ECX bit 29. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1) != 0;
}

/* The builtin also asks the operating system whether it keeps the wide registers. */
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           has_f16c();
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

static bool always(void)
{
    return true;
}

/* Fastest first. */
static const struct variant {
    const char *isa;
    const struct amp_kernels *kernels; /* NULL: not compiled for this processor family */
    bool (*present)(void);
} variants[] = {
#ifdef AMP_KERNELS_NEON /* set where the build compiles kernels/neon.c: every AArch64 processor has it */
    {"neon", &amp_kernels_neon, always},
#else
    {"neon", NULL, NULL},
#endif
#ifdef AMP_KERNELS_X86
    {"avx512", &amp_kernels_avx512, has_avx512},
    {"avx2", &amp_kernels_avx2, has_avx2},
#else
    {"avx512", NULL, NULL},
    {"avx2", NULL, NULL},
#endif
    {"ref", &amp_kernels_ref, always},
};
#define VARIANTS (sizeof variants / sizeof variants[0])

static bool usable(const struct variant *variant)
{
    return variant->kernels != NULL && variant->present();
}

/* "avx2, ref": what this processor has, for the text of an error. */
static void list_usable(char *text, size_t size)
{
    text[0] = '\0';
    for (size_t i = 0; i < VARIANTS; i++) {
        if (!usable(&variants[i]))
            continue;
        size_t used = strlen(text);
        (void)snprintf(text + used, size - used, "%s%s", used ? ", " : "", variants[i].isa);
    }
}

int amp_cpu_select(const char *isa, const struct amp_kernels **out, struct amp_error *error)
{
    bool best = isa == NULL || isa[0] == '\0';
    char list[64];
    if (out == NULL)
        return amp_given(out, "out", error);
    for (size_t i = 0; i < VARIANTS; i++) {
        if (!best && strcmp(isa, variants[i].isa) != 0)
            continue;
        if (usable(&variants[i])) {
            *out = variants[i].kernels;
            return 0;
        }
        if (!best) {
            list_usable(list, sizeof list);
            return amp_error_set(error, AMP_EUNIMPLEMENTED, NULL, "this processor has no %s kernels: it has %s", isa,
                                 list);
        }
    }
    list_usable(list, sizeof list);
    return amp_error_set(error, AMP_EINVAL, NULL, "unknown instruction set \"%.32s\": this processor has %s", isa,
                         list);
}

const char *amp_cpu_isa(size_t i)
{
    return i < VARIANTS ? variants[i].isa : NULL;
}

int amp_fp_env_check(struct amp_error *error)
{
    /* volatile: the operations happen here and now, not in the compiler. */
    volatile float smallest_normal = FLT_MIN;
    volatile float half = 0.5f;
    volatile float denormal = 0x1p-140f;
    volatile float large = 0x1p20f;
    volatile double one = 1;
    volatile double tie = 0x1p-53;
    volatile double above_tie = 0x1.8p-53;
    /* First, since a comparison with zero reads its operand as zero too. */
    if (denormal * large == 0)
        return amp_error_set(error, AMP_ESTATE, NULL, "this thread reads denormals as zero (DAZ is on)" UNLOAD);
    if (smallest_normal * half == 0)
        return amp_error_set(error, AMP_ESTATE, NULL, "this thread flushes denormals to zero (FTZ is on)" UNLOAD);
    if (one + tie != 1 || one + above_tie == 1 || -one - above_tie == -1)
        return amp_error_set(error, AMP_ESTATE, NULL,
                             "this thread does not round to nearest: call fesetround(FE_TONEAREST)");
    return 0;
}

int amp_fp_env_set(struct amp_fp_env *env, struct amp_error *error)
{
    env->changed = amp_fp_env_check(NULL) != 0;
    if (!env->changed)
        return 0;
    (void)fegetenv(&env->saved); /* these two fail nowhere that has an environment to set: the check says */
    (void)fesetenv(FE_DFL_ENV);
    int rc = amp_fp_env_check(error);
    if (rc != 0)
        amp_fp_env_restore(env);
    return rc;
}

void amp_fp_env_restore(const struct amp_fp_env *env)
{
    if (env->changed)
        (void)fesetenv(&env->saved);
}
