/* All that is known of one decided step, for ExplainStep and for the page at the HTTP port. */
#ifndef AMPD_IO_EXPLAIN_H
#define AMPD_IO_EXPLAIN_H

#include "proto/msg.h"
#include "server/io/base/server.h"
#include "storage/store.h"

/*
 * Reads the row of a step: that of one epoch, or, with epoch 0, the one that was not rolled back. On the reader's
 * thread. 0; AMP_ERANGE: the step has not been decided (STEP_NOT_DECIDED), or its row was removed (HISTORY_GONE);
 * AMP_ENOTFOUND (STEP_NOT_FOUND): that epoch has no such step; or an error of the store.
 */
int io_explain_read(struct ampd_store *reader, const struct ampd_model_spec *spec, uint64_t epoch, uint64_t step,
                    struct ampd_step_row *row, struct amp_error *error);

/*
 * Fills in the answer about a row: contributors, overflow rows with the names of their workers, and sentences. `spec`
 * is the model's when the row was read; names are left out if the model has been deleted since. On the loop. 0 or
 * AMP_ENOMEM; in either case the caller frees *response (ampd_msg_explain_step_response_free).
 */
int io_explain_fill(const struct ampd_server *server, uint32_t model, const struct ampd_model_spec *spec,
                    const struct ampd_step_row *row, struct ampd_msg_explain_step_response *response);

#endif
