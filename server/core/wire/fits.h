/*
 * Whether what another shard says can be about this model: its parameters, ranks, blocks and numbers (fits.c). On the
 * core's thread. Private to server/core.
 */
#ifndef AMPD_CORE_FITS_H
#define AMPD_CORE_FITS_H

#include <stdbool.h>

struct ampd_message;
struct ampd_model;
struct ampd_step_row;

/* Whether a message can be about the model that it names: then its numbers may be used as indexes. */
bool ampd_message_fits(const struct ampd_model *model, const struct ampd_message *message);

/* Whether a step's row can be about the model. */
bool ampd_row_fits(const struct ampd_model *model, const struct ampd_step_row *row);

/* Whether a message cannot be about the model, which the log says then. */
bool ampd_fits_not(struct ampd_model *model, const struct ampd_message *message);

#endif
