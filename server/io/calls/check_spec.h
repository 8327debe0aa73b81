/*
 * Checks of a specification as it came in a message, before its defaults are filled in. The core keeps 0 for a field
 * that is absent, so what only the message shows is checked here: a zero that was given, a number that an enum does not
 * have, and one that the core's form cannot hold. The core checks all other bounds (server/core/model/spec.h). Pure
 * functions.
 */
#ifndef AMPD_IO_CHECK_SPEC_H
#define AMPD_IO_CHECK_SPEC_H

#include "proto/msg_model.h"

/*
 * Checks a whole specification. 0; AMP_EINVAL (INVALID_SPEC); AMP_EUNIMPLEMENTED (RESERVED_VALUE): a value that the
 * schema reserves or allows, but that this version does not have. *error names the field and the remedy.
 */
int io_check_spec(const struct ampd_msg_model_spec *spec, struct amp_error *error);

/* Checks the specification of a scaler alone, for ReplayPolicy. 0, or AMP_EINVAL (INVALID_SPEC). */
int io_check_scaler(const struct ampd_msg_scaler_spec *scaler, struct amp_error *error);

#endif
