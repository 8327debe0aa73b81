/* What kernels (amp/kernels.h) take and give beside elements: an optimizer's scalars, and what a finite test found. */
#ifndef AMP_KERNEL_VALUES_H
#define AMP_KERNEL_VALUES_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a finite test found; starts as AMP_CHECK_INIT and is added to. */
struct amp_check {
    uint64_t inf_count;
    uint64_t nan_count;
    uint64_t first; /* index of the first that is not finite; UINT64_MAX: none */
    float largest;  /* largest finite magnitude; 0 if there is none */
};

#define AMP_CHECK_INIT ((struct amp_check){.first = UINT64_MAX})

/*
 * Scalars of an optimizer in the form that the kernels take; made by amp_apply_prepare alone. docs/numerics.md names
 * each by the same word.
 */
struct amp_apply_scalars {
    float clip; /* clip coefficient */
    bool nesterov;
    bool first_step;
    bool centered;
    /* SGD, in double; RMSProp and Lion too; Adagrad: after its decay; LAMB: times the trust ratio */
    double lr;
    double weight_decay;
    double momentum;
    double keep; /* 1 - dampening */
    /* Adam and AdamW, in double, for elements whose update is not small against the master; the others for all */
    double beta1;
    double rest1; /* 1 - beta1 */
    double beta2; /* RMSProp: alpha */
    double rest2; /* 1 - beta2 */
    double eps;   /* Adam, AdamW, LAMB: eps * sqrt(bias2) */
    double rate;  /* lr * sqrt(bias2) / bias1; LAMB: without lr */
    double decay; /* lr * weight_decay where it is decoupled (AdamW, Lion), else 0 */
    /* the same, each rounded once, for all others */
    float beta1_f;
    float rest1_f;
    float beta2_f;
    float rest2_f;
    float eps_f;
    float rate_f;
    float decay_f;
    float guard_rate; /* AdamW: fp32(10 * rate); Adam: fp32(12 * rate) */
    float guard_keep; /* fp32(1 - 10 * decay); 0 where every element needs double */
};

/*
 * In the guard of Adam and AdamW: products below this are too near to denormals for single precision to be exact
 * enough.
 */
#define AMP_ADAMW_GUARD_MIN 0x1p-100f

#ifdef __cplusplus
}
#endif

#endif
