/*
 * Specifications of models: checking, comparing. A specification is whole: what the user left out has its default
 * (proto/spec_defaults.c).
 *
 * Every text of a refusal names the field and the remedy, since it goes to the user as it is.
 */
#ifndef AMPD_SPEC_H
#define AMPD_SPEC_H

#include "amp/optim.h"
#include "base/err.h"
#include "storage/records.h"

/*
 * Weights of pushes, apart from 0 (docs/step-protocol.md section 4). With the scales that ampd_spec_check lets pass, f
 * = 1 / (scale * sum) is a normal number for every sum of them: neither 0, which would apply nothing, nor Inf.
 */
#define AMPD_WEIGHT_MIN 0x1p-60f
#define AMPD_WEIGHT_MAX 0x1p24f

/*
 * 0, or why the specification cannot be: AMP_EINVAL (a field out of its range), AMP_EUNIMPLEMENTED (a value
 * that is reserved), AMP_EEXHAUSTED (a bound). Any thread.
 */
int ampd_spec_check(const struct ampd_model_spec *spec, struct amp_error *error);

/*
 * 0 if both are the same, else AMP_EEXIST (reason MODEL_EXISTS) with a text that names the first field that
 * differs and both values. Any thread.
 */
int ampd_spec_compare(const struct ampd_model_spec *have, const struct ampd_model_spec *want, struct amp_error *error);

/* Whether a worker may name this learning rate (schedule WORKER): 0 or more, and finite as a float, too. */
bool ampd_spec_takes_lr(double lr);

/* Whether a model of this checked specification can have this loss-scale record and rate. Pure; any thread. */
bool ampd_spec_takes_carry(const struct ampd_model_spec *spec, const struct ampd_carry *carry);

/* The optimizer's values and the schedule in the form that amp takes. Pure; any thread. */
struct amp_optim_config ampd_spec_optim(const struct ampd_model_spec *spec);
struct amp_schedule ampd_spec_schedule(const struct ampd_model_spec *spec);

/* The base rate that the schedule begins from: the one that an operator has set, or else the specification's. */
double ampd_spec_base_lr(const struct ampd_model_spec *spec, const struct ampd_carry *carry);

/* Copies a specification with its parameters; *to is the caller's (ampd_spec_clear). AMP_ENOMEM: *to is empty. */
int ampd_spec_copy(struct ampd_model_spec *to, const struct ampd_model_spec *from);

/* Frees what a specification owns and makes it empty. */
void ampd_spec_clear(struct ampd_model_spec *spec);

#endif
