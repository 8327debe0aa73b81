/*
 * Conversion of a model's specification between the message, which tells an absent field from a zero, and the core's
 * struct, in which a zero stands for an absent field. Pure functions.
 */
#ifndef AMPD_IO_CONVERT_SPEC_H
#define AMPD_IO_CONVERT_SPEC_H

#include "amp/scaler.h"
#include "base/err.h"
#include "proto/msg_model.h"
#include "storage/records.h"

/*
 * Checks a specification that a client gave (io_check_spec), fills the schema's defaults into *message, so that a zero
 * that was given stays one, and converts it. On success *spec owns its parameters (ampd_model_spec_clear). 0;
 * AMP_EINVAL and AMP_EUNIMPLEMENTED, as io_check_spec has them; AMP_ENOMEM.
 */
int io_spec_from_msg(struct ampd_msg_model_spec *message, struct ampd_model_spec *spec, struct amp_error *error);

/*
 * Converts the specification of a scaler, which io_check_scaler or io_check_spec has passed. Absent fields become 0;
 * amp_scaler_config_defaults fills them in.
 */
struct amp_scaler_config io_scaler_from_msg(const struct ampd_msg_scaler_spec *message);

/*
 * Converts the core's specification to a message, as answers have it: with all defaults, but without the fields that
 * its optimizer or schedule does not use. The caller frees it with ampd_msg_model_spec_free. 0 or AMP_ENOMEM.
 */
int io_spec_to_msg(const struct ampd_model_spec *spec, struct ampd_msg_model_spec *message);

#endif
