/* Structs of the kernels (amp/kernels.h): the result of a test for Inf and NaN, and an optimizer's scalars. */
#ifndef AMP_KERNEL_VALUES_H
#define AMP_KERNEL_VALUES_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The result of a test for Inf and NaN. It begins as AMP_CHECK_INIT, and each call of amp_check_fn adds to it. */
struct amp_check {
    uint64_t inf_count;
    uint64_t nan_count;
    uint64_t first; /* index of the first element that is Inf or NaN; UINT64_MAX: there is none */
    float largest;  /* largest finite magnitude; 0 if there is none */
};

#define AMP_CHECK_INIT ((struct amp_check){.first = UINT64_MAX})

/*
 * The scalars of an optimizer's step as the kernels take them, made only by amp_apply_prepare (amp/pass.h). Their names
 * are those of docs/numerics.md, section 6.
 */
struct amp_apply_scalars {
    float clip; /* clip coefficient */
    bool nesterov;
    bool first_step;
    bool centered;
    /* In double, for SGD; lr also for RMSProp and Lion, for Adagrad after its decay, for LAMB times the trust ratio. */
    double lr;
    double weight_decay;
    double momentum;
    double keep; /* 1 - dampening */
    /* In double. Adam and AdamW use them for elements whose update is not small against the master, others for all. */
    double beta1;
    double rest1; /* 1 - beta1 */
    double beta2; /* RMSProp: alpha */
    double rest2; /* 1 - beta2 */
    double eps;   /* Adam, AdamW, LAMB: eps * sqrt(bias2) */
    double rate;  /* lr * sqrt(bias2) / bias1; LAMB: without lr */
    double decay; /* lr * weight_decay where it is decoupled (AdamW, Lion), else 0 */
    /* Rounded once to fp32, for the other elements of Adam and AdamW. */
    float beta1_f;
    float rest1_f;
    float beta2_f;
    float rest2_f;
    float eps_f;
    float rate_f;
    float decay_f;
    /* For the test whether an element is computed in single precision or in double: docs/numerics.md section 6. */
    float guard_fresh;
    float guard_keep; /* 0 where every element needs double */
};

/*
 * A term in the test by which Adam and AdamW choose single precision (docs/numerics.md section 6): products below it
 * are too close to denormals for single precision to be accurate enough.
 */
#define AMP_ADAMW_GUARD_MIN 0x1p-100f

#ifdef __cplusplus
}
#endif

#endif
