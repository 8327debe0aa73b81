/* A model specification as JSON text: how the SQLite store keeps it. Parameters are rows of their own. */
#ifndef AMPD_SPEC_JSON_H
#define AMPD_SPEC_JSON_H

#include "storage/records.h"

/*
 * The text of everything in the spec but name and parameters, sorted by key; the caller frees it with free().
 * AMP_EINVAL: a value that is not finite; AMP_ENOMEM.
 */
int ampd_spec_to_json(const struct ampd_model_spec *spec, char **text);

/* The reverse; leaves name and parameters alone. AMP_EDATALOSS: not such a text; AMP_ENOMEM. */
int ampd_spec_from_json(const char *text, struct ampd_model_spec *spec);

/* The shape of a parameter as "[64,512]" into a text, and back (AMP_EDATALOSS, AMP_ENOMEM). */
#define AMPD_SHAPE_TEXT_MAX (AMPD_DIMENSIONS_MAX * 21 + 3)
void ampd_shape_to_text(const struct ampd_parameter_spec *parameter, char text[AMPD_SHAPE_TEXT_MAX]);
int ampd_shape_from_text(const char *text, struct ampd_parameter_spec *parameter);

#endif
