/* Whether a message is of the model that it names (fits.c). Private to server/core. */
#ifndef AMPD_CORE_FITS_H
#define AMPD_CORE_FITS_H

#include <stdbool.h>

struct ampd_message;
struct ampd_model;
struct ampd_step_row;

/* Whether the parameters, ranks and blocks of a message are the model's. */
bool ampd_message_fits(const struct ampd_model *model, const struct ampd_message *message);
/* Likewise of a step's row. */
bool ampd_row_fits(const struct ampd_model *model, const struct ampd_step_row *row);
/* Whether a message does not fit the model; then the log says so. */
bool ampd_fits_not(struct ampd_model *model, const struct ampd_message *message);

#endif
