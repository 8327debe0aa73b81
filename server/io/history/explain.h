/* One step with all that is known of it: ExplainStep, and the page. */
#ifndef AMPD_IO_EXPLAIN_H
#define AMPD_IO_EXPLAIN_H

#include "proto/msg.h"
#include "server/io/base/server.h"
#include "storage/store.h"

/*
 * The row of a step: of an epoch, or (0) of the one in which it stands. On the reader thread. AMP_ERANGE: not decided;
 * AMP_ENOTFOUND.
 */
int io_explain_read(struct ampd_store *reader, const struct ampd_model_spec *spec, uint64_t epoch, uint64_t step,
                    struct ampd_step_row *row, struct amp_error *error);

/* The answer about it, to be freed in any case. On the loop. AMP_ENOMEM. */
int io_explain_fill(const struct ampd_server *server, uint32_t model, const struct ampd_model_spec *spec,
                    const struct ampd_step_row *row, struct ampd_msg_explain_step_response *response);

#endif
