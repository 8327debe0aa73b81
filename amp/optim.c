/*
 * The scalars of a step. Everything is double, computed once, in the order that docs/numerics.md gives; nothing calls
 * libm but sqrt, since glibc's transcendentals differ between processors.
 */
#include "amp/optim.h"

#include "amp/given.h"

#include <float.h>
#include <math.h>

/* What an optimizer keeps and needs, by its number. */
struct optimizer_row {
    const char *name;
    unsigned moments; /* SGD and RMSProp: with momentum */
    bool squares;
};

static const struct optimizer_row rows[AMP_OPTIMIZERS] = {
    [AMP_OPT_UNSET] = {"unset", 0, false},    [AMP_OPT_SGD] = {"sgd", 1, false},
    [AMP_OPT_ADAMW] = {"adamw", 2, true},     [AMP_OPT_ADAM] = {"adam", 2, true},
    [AMP_OPT_ADAGRAD] = {"adagrad", 1, true}, [AMP_OPT_RMSPROP] = {"rmsprop", 2, true},
    [AMP_OPT_LION] = {"lion", 1, false},      [AMP_OPT_LAMB] = {"lamb", 2, true},
};

static const struct optimizer_row *row_of(enum amp_optimizer optimizer)
{
    return (unsigned)optimizer < AMP_OPTIMIZERS ? &rows[optimizer] : &rows[AMP_OPT_UNSET];
}

static int bad(struct amp_error *error, const char *field, double value, const char *range)
{
    return amp_error_set(error, AMP_EINVAL, NULL, "%s is %g, must be %s", field, value, range);
}

static int check_sgd(const struct amp_optim_config *c, struct amp_error *error)
{
    if (!(c->momentum >= 0 && c->momentum < 1))
        return bad(error, "momentum", c->momentum, "in [0, 1)");
    if (!(c->dampening >= 0 && c->dampening <= 1))
        return bad(error, "dampening", c->dampening, "in [0, 1]");
    if (c->nesterov && !(c->momentum > 0 && c->dampening == 0))
        return amp_error_set(error, AMP_EINVAL, NULL, "nesterov needs momentum above 0 and dampening 0");
    return 0;
}

static int check_betas(const struct amp_optim_config *c, struct amp_error *error)
{
    if (!(c->beta1 >= 0 && c->beta1 < 1))
        return bad(error, "beta1", c->beta1, "in [0, 1)");
    if (!(c->beta2 >= 0 && c->beta2 < 1))
        return bad(error, "beta2", c->beta2, "in [0, 1)");
    return 0;
}

static int check_eps(const struct amp_optim_config *c, struct amp_error *error)
{
    if (!(c->eps >= AMP_EPS_MIN && c->eps <= 1))
        return bad(error, "eps", c->eps, "in [2^-100, 1]");
    return 0;
}

static int check_adam(const struct amp_optim_config *c, struct amp_error *error)
{
    int rc = check_betas(c, error);
    return rc != 0 ? rc : check_eps(c, error);
}

static int check_adagrad(const struct amp_optim_config *c, struct amp_error *error)
{
    if (!(c->lr_decay >= 0 && isfinite(c->lr_decay)))
        return bad(error, "lr_decay", c->lr_decay, "finite and at least 0");
    return check_eps(c, error);
}

static int check_rmsprop(const struct amp_optim_config *c, struct amp_error *error)
{
    if (!(c->alpha >= 0 && c->alpha < 1))
        return bad(error, "alpha", c->alpha, "in [0, 1)");
    if (!(c->momentum >= 0 && c->momentum < 1))
        return bad(error, "momentum", c->momentum, "in [0, 1)");
    if (c->centered && c->momentum > 0)
        return amp_error_set(error, AMP_EUNIMPLEMENTED, NULL,
                             "rmsprop with both momentum and centered is not implemented: choose one");
    return check_eps(c, error);
}

typedef int check_fn(const struct amp_optim_config *config, struct amp_error *error);

static check_fn *const checks[AMP_OPTIMIZERS] = {
    [AMP_OPT_SGD] = check_sgd,         [AMP_OPT_ADAMW] = check_adam,      [AMP_OPT_ADAM] = check_adam,
    [AMP_OPT_ADAGRAD] = check_adagrad, [AMP_OPT_RMSPROP] = check_rmsprop, [AMP_OPT_LION] = check_betas,
    [AMP_OPT_LAMB] = check_adam,
};

void amp_optim_defaults(enum amp_optimizer optimizer, struct amp_optim_config *config)
{
    static const struct amp_optim_config defaults[AMP_OPTIMIZERS] = {
        [AMP_OPT_SGD] = {.lr = 1e-3},
        [AMP_OPT_ADAMW] = {.lr = 1e-3, .weight_decay = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
        [AMP_OPT_ADAM] = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
        [AMP_OPT_ADAGRAD] = {.lr = 1e-2, .eps = 1e-10},
        [AMP_OPT_RMSPROP] = {.lr = 1e-2, .alpha = 0.99, .eps = 1e-8},
        [AMP_OPT_LION] = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.99},
        [AMP_OPT_LAMB] = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-6},
    };
    bool known = (unsigned)optimizer < AMP_OPTIMIZERS;
    *config = known ? defaults[optimizer] : defaults[AMP_OPT_UNSET];
    config->optimizer = known ? optimizer : AMP_OPT_UNSET;
}

int amp_optim_check(const struct amp_optim_config *c, struct amp_error *error)
{
    int rc = amp_given(c, "config", error);
    if (rc != 0)
        return rc;
    if ((unsigned)c->optimizer >= AMP_OPTIMIZERS || c->optimizer == AMP_OPT_UNSET)
        return amp_error_set(error, AMP_EINVAL, NULL, "optimizer %d is unknown: use %s to %s (1 to %d)",
                             (int)c->optimizer, rows[AMP_OPT_SGD].name, rows[AMP_OPTIMIZERS - 1].name,
                             AMP_OPTIMIZERS - 1);
    if (!(c->lr >= 0 && isfinite(c->lr)))
        return bad(error, "lr", c->lr, "finite and at least 0");
    if (!(c->weight_decay >= 0 && isfinite(c->weight_decay)))
        return bad(error, "weight_decay", c->weight_decay, "finite and at least 0");
    return checks[c->optimizer](c, error);
}

void amp_optim_scalars(const struct amp_optim_config *config, uint64_t t, double lr, float clip,
                       struct amp_apply *apply)
{
    *apply = (struct amp_apply){
        .optimizer = config->optimizer,
        .nesterov = config->nesterov,
        .clip = clip,
        .lr = lr,
        .weight_decay = config->weight_decay,
        .momentum = config->momentum,
        .dampening = config->dampening,
        .beta1 = config->beta1,
        .beta2 = config->beta2,
        .eps = config->eps,
        .bias1 = amp_bias_correction(config->beta1, t),
        .bias2 = amp_bias_correction(config->beta2, t),
        .alpha = config->alpha,
        .centered = config->centered,
        .trust = 1,
    };
    if (config->optimizer == AMP_OPT_ADAGRAD)
        apply->lr = lr / (1 + (double)(t - 1) * config->lr_decay);
}

unsigned amp_optim_moments(enum amp_optimizer optimizer, double momentum)
{
    bool buffered = optimizer == AMP_OPT_SGD || optimizer == AMP_OPT_RMSPROP;
    return row_of(optimizer)->moments - (buffered && momentum == 0 ? 1 : 0);
}

unsigned amp_optim_config_moments(const struct amp_optim_config *config)
{
    if (config->optimizer == AMP_OPT_RMSPROP && config->centered)
        return 2;
    return amp_optim_moments(config->optimizer, config->momentum);
}

bool amp_optim_squares(enum amp_optimizer optimizer)
{
    return row_of(optimizer)->squares;
}

const char *amp_optim_name(enum amp_optimizer optimizer)
{
    return row_of(optimizer)->name;
}

float amp_coefficient(float scale, double sum_of_weights)
{
    return (float)(1 / ((double)scale * sum_of_weights));
}

float amp_clip_coefficient(double max_norm, double norm)
{
    double ratio = max_norm / (norm + 1e-6);
    if (ratio >= 1)
        return 1;
    return ratio > 0 ? (float)ratio : 0;
}

double amp_lamb_trust(double master_squares, double update_squares)
{
    if (!(master_squares > 0 && update_squares > 0))
        return 1;
    return sqrt(master_squares) / sqrt(update_squares);
}

double amp_power(double base, uint64_t exponent)
{
    double result = 1;
    for (; exponent != 0; exponent >>= 1) {
        if (exponent & 1)
            result = result * base;
        base = base * base;
    }
    return result;
}

double amp_bias_correction(double beta, uint64_t t)
{
    return 1 - amp_power(beta, t);
}

/* Taylor series of cosine and sine by Horner; at |y| <= pi/4 the first term left out is below 1e-16. */
static double cos_small(double y)
{
    static const double c[] = {1.0 / 20922789888000,
                               -1.0 / 87178291200,
                               1.0 / 479001600,
                               -1.0 / 3628800,
                               1.0 / 40320,
                               -1.0 / 720,
                               1.0 / 24,
                               -1.0 / 2,
                               1.0};
    double z = y * y;
    double sum = c[0];
    for (unsigned i = 1; i < sizeof c / sizeof c[0]; i++)
        sum = sum * z + c[i];
    return sum;
}

static double sin_small(double y)
{
    static const double c[] = {-1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880,
                               -1.0 / 5040,          1.0 / 120,        -1.0 / 6,        1.0};
    double z = y * y;
    double sum = c[0];
    for (unsigned i = 1; i < sizeof c / sizeof c[0]; i++)
        sum = sum * z + c[i];
    return sum * y;
}

double amp_cos_pi(double x)
{
    const double pi = 0x1.921fb54442d18p+1;
    if (x > 0.5)
        return -amp_cos_pi(1 - x);
    return x <= 0.25 ? cos_small(pi * x) : sin_small(pi * (0.5 - x));
}

int amp_schedule_check(const struct amp_schedule *s, struct amp_error *error)
{
    int rc = amp_given(s, "schedule", error);
    if (rc != 0)
        return rc;
    switch (s->kind) {
    case AMP_SCHEDULE_UNSET:
    case AMP_SCHEDULE_CONSTANT:
        return 0;
    case AMP_SCHEDULE_WORKER:
        if (s->warmup_steps != 0)
            return amp_error_set(error, AMP_EINVAL, NULL,
                                 "schedule.warmup_steps is %llu, must be 0: a worker's rate is used as it is",
                                 (unsigned long long)s->warmup_steps);
        return 0;
    case AMP_SCHEDULE_LINEAR_WARMUP:
        if (s->warmup_steps == 0)
            return amp_error_set(error, AMP_EINVAL, NULL, "schedule.warmup_steps is 0, must be at least 1");
        return 0;
    case AMP_SCHEDULE_STEP:
        if (s->step_size == 0)
            return amp_error_set(error, AMP_EINVAL, NULL, "schedule.step_size is 0, must be at least 1");
        if (!(s->gamma > 0 && isfinite(s->gamma)))
            return bad(error, "schedule.gamma", s->gamma, "finite and above 0");
        return 0;
    case AMP_SCHEDULE_COSINE:
        if (s->total_steps <= s->warmup_steps)
            return amp_error_set(error, AMP_EINVAL, NULL,
                                 "schedule.total_steps is %llu, must be above schedule.warmup_steps",
                                 (unsigned long long)s->total_steps);
        if (!(s->min_lr >= 0 && isfinite(s->min_lr)))
            return bad(error, "schedule.min_lr", s->min_lr, "finite and at least 0");
        return 0;
    }
    return amp_error_set(error, AMP_EINVAL, NULL, "schedule.kind %d is unknown: use constant to worker (1 to %d)",
                         (int)s->kind, (int)AMP_SCHEDULE_WORKER);
}

double amp_schedule_lr(const struct amp_schedule *s, double base_lr, uint64_t applied)
{
    if (s->kind == AMP_SCHEDULE_WORKER)
        return base_lr;
    if (applied < s->warmup_steps)
        return base_lr * (double)(applied + 1) / (double)s->warmup_steps;
    uint64_t k = applied - s->warmup_steps;
    if (s->kind == AMP_SCHEDULE_STEP)
        return fmin(base_lr * fmin(amp_power(s->gamma, k / s->step_size), (double)FLT_MAX), (double)FLT_MAX);
    if (s->kind != AMP_SCHEDULE_COSINE)
        return base_lr;
    uint64_t span = s->total_steps - s->warmup_steps;
    double x = k >= span ? 1 : (double)k / (double)span;
    return s->min_lr + (base_lr - s->min_lr) * (0.5 * (1 + amp_cos_pi(x)));
}
