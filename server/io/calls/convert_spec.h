/* Between a specification as ampd.v1 writes it and as the core has it. Pure. */
#ifndef AMPD_IO_CONVERT_SPEC_H
#define AMPD_IO_CONVERT_SPEC_H

#include "amp/scaler.h"
#include "base/err.h"
#include "proto/msg_model.h"
#include "storage/records.h"

/*
 * A specification as given, with absent fields filled in as the schema says, so that an explicit zero stays one. On
 * success *spec owns its parameters (ampd_model_spec_clear). AMP_EUNIMPLEMENTED: a field that has no counterpart yet;
 * AMP_ENOMEM. *message is filled in too.
 */
int io_spec_from_msg(struct ampd_msg_model_spec *message, struct ampd_model_spec *spec, struct amp_error *error);

/*
 * A scaler as it is given: absent fields are zero, for amp_scaler_config_defaults. Pure; io_check_scaler comes first.
 */
struct amp_scaler_config io_scaler_from_msg(const struct ampd_msg_scaler_spec *message);

/* The reverse; freed by ampd_msg_model_spec_free. AMP_ENOMEM. */
int io_spec_to_msg(const struct ampd_model_spec *spec, struct ampd_msg_model_spec *message);

#endif
