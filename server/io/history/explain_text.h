/* What happened in a step, in sentences. A pure function; any thread. */
#ifndef AMPD_IO_EXPLAIN_TEXT_H
#define AMPD_IO_EXPLAIN_TEXT_H

#include "proto/msg.h"
#include "storage/records.h"

/*
 * Writes sentences about a row of kind STEP, truncated to `size` bytes with the final zero: which worker's gradient had
 * Inf or NaN in which parameter, why the scale shrank, grew or stayed, and what can be done. `overflows` are the
 * `count` overflow rows of the step as messages, with the workers' names filled in.
 */
void io_explain_step(const struct ampd_model_spec *spec, const struct ampd_step_row *row,
                     const struct ampd_msg_overflow_row *overflows, size_t count, char *text, size_t size);

/* Of a step that was skipped for a loss that is no finite number: the sentence, without the full stop; else NULL. */
const char *io_explain_loss(const struct ampd_step_row *row);

#endif
