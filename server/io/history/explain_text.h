/* What happened in a step, in words. Pure. */
#ifndef AMPD_IO_EXPLAIN_TEXT_H
#define AMPD_IO_EXPLAIN_TEXT_H

#include "proto/msg.h"
#include "storage/records.h"

/*
 * Writes some sentences (truncated to `size` bytes with the final zero) about a row of kind STEP: whose gradient had
 * which values where, why the scale shrank, grew or stayed, and what is to be done. `overflows` are its `count`
 * overflow rows as messages, with the workers' names.
 */
void io_explain_step(const struct ampd_model_spec *spec, const struct ampd_step_row *row,
                     const struct ampd_msg_overflow_row *overflows, size_t count, char *text, size_t size);

#endif
