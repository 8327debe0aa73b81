/* What the log is told of decided steps. On the loop. */
#ifndef AMPD_IO_LOG_STEPS_H
#define AMPD_IO_LOG_STEPS_H

#include "storage/records.h"

#include <stdint.h>

struct ampd_server;

/*
 * A row of a model was stored, or (NULL) the model is done. Skips are told with who is to blame, those of one model in
 * one line each 10 s; what is left out is counted in the next line.
 */
void io_log_steps_row(struct ampd_server *server, uint32_t model, const struct ampd_step_row *row);

#endif
