/* What a specification on the wire may say, where its absent fields still differ from zeros. */
#ifndef AMPD_IO_CHECK_SPEC_H
#define AMPD_IO_CHECK_SPEC_H

#include "proto/msg_model.h"

/*
 * Checks a specification before its defaults are filled in. The core's form of it has zero for absent, so what only the
 * wire can tell is told here: a zero that was given, a number that no enum has. AMP_EINVAL (INVALID_SPEC);
 * AMP_EUNIMPLEMENTED (RESERVED_VALUE): the schema has it, this version does not. All other ranges are the core's.
 */
int io_check_spec(const struct ampd_msg_model_spec *spec, struct amp_error *error);

/* The same for a scaler alone: what enums and zeros only the wire can tell. AMP_EINVAL (INVALID_SPEC). */
int io_check_scaler(const struct ampd_msg_scaler_spec *scaler, struct amp_error *error);

#endif
