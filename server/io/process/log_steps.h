/* Log lines about decided steps. On the loop. */
#ifndef AMPD_IO_LOG_STEPS_H
#define AMPD_IO_LOG_STEPS_H

#include "storage/records.h"

#include <stdint.h>

struct ampd_server;

/*
 * Logs that a row of a model was stored, or, with row NULL, that the model is done. A skipped step is logged with the
 * first parameter, rank and worker that overflowed: one line in 10 s for each model, which also counts the skipped
 * steps since the line before.
 */
void io_log_steps_row(struct ampd_server *server, uint32_t model, const struct ampd_step_row *row);

#endif
