/*
 * Optimizers and the scalars of a step, in double. Each shard computes them from the row of the step's verdict.
 *
 * Nothing here calls libm but sqrt: powers are by repeated squaring, the cosine is a polynomial of our own, so that
 * every machine gets the same bits (docs/numerics.md). All functions are pure; any thread.
 */
#ifndef AMP_OPTIM_H
#define AMP_OPTIM_H

#include "amp/dtype.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers are part of the wire and file formats: never reuse one. */
enum amp_optimizer {
    AMP_OPT_UNSET = 0,
    AMP_OPT_SGD = 1,   /* momentum, dampening, Nesterov, weight decay (coupled) */
    AMP_OPT_ADAMW = 2, /* weight decay decoupled */
    AMP_OPT_ADAM = 3,  /* weight decay coupled */
    AMP_OPT_ADAGRAD = 4,
    AMP_OPT_RMSPROP = 5, /* momentum, or centered */
    AMP_OPT_LION = 6,
    AMP_OPT_LAMB = 7, /* its apply needs a trust ratio: see amp_pass_lamb */
};
#define AMP_OPTIMIZERS 8

/* The values a user chooses for an optimizer; torch's names. */
struct amp_optim_config {
    enum amp_optimizer optimizer;
    double lr;           /* finite, >= 0 */
    double weight_decay; /* finite, >= 0; default 0 (SGD), 0.01 (AdamW) is the caller's to fill in */
    double momentum;     /* SGD, RMSProp: [0, 1) */
    double dampening;    /* SGD: [0, 1] */
    bool nesterov;       /* SGD: needs momentum > 0 and dampening 0 */
    double beta1;        /* Adam, AdamW, Lion, LAMB: [0, 1) */
    double beta2;        /* Adam, AdamW, Lion, LAMB: [0, 1) */
    double eps;          /* all but SGD and Lion: [AMP_EPS_MIN, 1] */
    double alpha;        /* RMSProp: [0, 1) */
    bool centered;       /* RMSProp: needs momentum 0 */
    double lr_decay;     /* Adagrad: finite, >= 0 */
};

/* Smallest eps: 1 / eps must be a normal binary32, since the kernels divide by it in single precision. */
#define AMP_EPS_MIN 0x1p-100

/*
 * All that one apply pass needs besides the data. Scalars are doubles as the coordinator computed them; they travel as
 * bits, and nothing derives them a second time from other sources.
 */
struct amp_apply {
    enum amp_optimizer optimizer;
    enum amp_dtype cast; /* dtype of the next copy */
    bool saturate;       /* a finite master beyond the cast's range becomes its largest finite value, not Inf */
    bool nesterov;
    bool first_step; /* SGD: the momentum buffer of this parameter has no value yet */
    float clip;      /* clip coefficient in [0, 1]; 1: none */
    double lr;
    double weight_decay;
    double momentum;
    double dampening;
    double beta1;
    double beta2;
    double eps;
    double bias1; /* 1 - beta1^t, t = applied count of this step, from 1 */
    double bias2; /* 1 - beta2^t */
    double alpha; /* RMSProp */
    bool centered;
    double trust; /* LAMB: amp_lamb_trust of this parameter; finite, > 0. amp_optim_scalars sets 1 */
};

/*
 * Torch's defaults of an optimizer, all other fields zero; Lion's are its paper's, LAMB's its paper's with apex's eps.
 * An unknown optimizer gives all zeros.
 */
void amp_optim_defaults(enum amp_optimizer optimizer, struct amp_optim_config *config);

/*
 * 0, AMP_EINVAL with a text that names the field and its range, or AMP_EUNIMPLEMENTED for RMSProp with both momentum
 * and centered.
 */
int amp_optim_check(const struct amp_optim_config *config, struct amp_error *error);

/*
 * The scalars of applied step t (from 1): bias corrections and the optimizer's values, with the learning rate of this
 * step (Adagrad's lr_decay is applied to it here) and the clip coefficient. `cast`, `saturate` and `first_step` are
 * left zero for the caller to set.
 */
void amp_optim_scalars(const struct amp_optim_config *config, uint64_t t, double lr, float clip,
                       struct amp_apply *apply);

/*
 * Moments kept per element: 0 (SGD without momentum), 1 (m) or 2 (m and v). Those of Adagrad (the sum of squares) and
 * of RMSProp (m: mean of squares; v: with momentum its buffer) are named in docs/numerics.md. Not for centered RMSProp.
 */
unsigned amp_optim_moments(enum amp_optimizer optimizer, double momentum);

/* Moments kept per element by a whole configuration, centered RMSProp included (v: the mean of gradients). */
unsigned amp_optim_config_moments(const struct amp_optim_config *config);

/* Whether the optimizer keeps a moment of squared gradients, so that the range test |g| < 2^63 applies. */
bool amp_optim_squares(enum amp_optimizer optimizer);

/* "sgd", "adamw", ...; "unset" otherwise. */
const char *amp_optim_name(enum amp_optimizer optimizer);

/* f = fp32(1 / (scale * sum_of_weights)); both > 0. The caller sums weights in double, in rank order. */
float amp_coefficient(float scale, double sum_of_weights);

/* fp32(min(1, max_norm / (norm + 1e-6))); max_norm >= 0. A NaN norm gives 0: such a step is never applied. */
float amp_clip_coefficient(double max_norm, double norm);

/*
 * LAMB's trust ratio of one parameter, from the sums of squares of its master and of its update: the quotient of the
 * two norms, or 1 where either is 0.
 */
double amp_lamb_trust(double master_squares, double update_squares);

/* base^exponent by repeated squaring, in the order that docs/numerics.md fixes. */
double amp_power(double base, uint64_t exponent);

/* 1 - beta^t. */
double amp_bias_correction(double beta, uint64_t t);

/* cos(pi * x) for x in [0, 1], by polynomial; error below 1e-15. */
double amp_cos_pi(double x);

enum amp_schedule_kind {
    AMP_SCHEDULE_UNSET = 0, /* read as constant */
    AMP_SCHEDULE_CONSTANT = 1,
    AMP_SCHEDULE_LINEAR_WARMUP = 2, /* up over warmup_steps, then constant */
    AMP_SCHEDULE_STEP = 3,          /* times gamma every step_size applied steps */
    AMP_SCHEDULE_COSINE = 4,        /* from base to min_lr at total_steps */
    AMP_SCHEDULE_WORKER = 5,        /* the value that a worker sent, as it is: no warm-up */
};

/* A learning-rate schedule over the applied count; a warm-up may precede each kind but WORKER. */
struct amp_schedule {
    enum amp_schedule_kind kind;
    uint64_t warmup_steps; /* 0: none; step k (from 0) of them has base * (k + 1) / warmup_steps */
    uint64_t total_steps;  /* cosine: > warmup_steps */
    uint64_t step_size;    /* step: >= 1 */
    double gamma;          /* step: finite, > 0 */
    double min_lr;         /* cosine: finite, >= 0 */
};

/* 0, or AMP_EINVAL with a text that names the field and its range. */
int amp_schedule_check(const struct amp_schedule *schedule, struct amp_error *error);

/* The learning rate of the step that follows `applied` applied ones. Of WORKER, base_lr is what the worker sent. */
double amp_schedule_lr(const struct amp_schedule *schedule, double base_lr, uint64_t applied);

#ifdef __cplusplus
}
#endif

#endif
