/* What a scaler's fields are called where its caller filled them in, for the texts of errors. Not installed. */
#ifndef AMP_SCALER_FIELDS_H
#define AMP_SCALER_FIELDS_H

#include "amp/scaler.h"

struct amp_scaler_fields {
    const char *init_scale;
    const char *min_scale;
    const char *max_scale;
    const char *growth_factor;
    const char *backoff_factor;
    const char *growth_interval;
};

/* amp_scaler_config_check, whose texts name a field as `fields` does. The config is not NULL. */
int amp_scaler_config_check_as(const struct amp_scaler_config *config, const struct amp_scaler_fields *fields,
                               struct amp_error *error);

#endif
