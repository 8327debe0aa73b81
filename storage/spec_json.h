/*
 * A model's specification as JSON text, in the form that the SQLite store keeps. Name and parameters are not in it: the
 * store has them in columns and in rows of their own. Any thread.
 */
#ifndef AMPD_SPEC_JSON_H
#define AMPD_SPEC_JSON_H

#include "storage/records.h"

/*
 * Writes all of a specification except its name and parameters as JSON, sorted by key. On success *text is the caller's
 * (free). AMP_EINVAL: a value is not finite; AMP_ENOMEM.
 */
int ampd_spec_to_json(const struct ampd_model_spec *spec, char **text);

/*
 * Fills a specification from such a text; its name and parameters stay as they are. AMP_EDATALOSS: the text is not one
 * that ampd_spec_to_json writes; AMP_ENOMEM.
 */
int ampd_spec_from_json(const char *text, struct ampd_model_spec *spec);

/*
 * Writes a parameter's shape as text, "[64,512]", and fills dimensions and shape from such a text (AMP_EDATALOSS: it is
 * none; AMP_ENOMEM).
 */
#define AMPD_SHAPE_TEXT_MAX (AMPD_DIMENSIONS_MAX * 21 + 3)
void ampd_shape_to_text(const struct ampd_parameter_spec *parameter, char text[AMPD_SHAPE_TEXT_MAX]);
int ampd_shape_from_text(const char *text, struct ampd_parameter_spec *parameter);

#endif
