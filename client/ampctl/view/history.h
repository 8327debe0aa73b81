/* Rows of the history, for `backup`. */
#ifndef AMPCTL_HISTORY_H
#define AMPCTL_HISTORY_H

#include "client/ampctl/ctl.h"

/*
 * Writes the rows of the history, or of the overflows, up to a step as one JSON object, with those that were rolled
 * back. `ctl` is open. 0, or an exit code; of a failed `out` nothing has been said.
 */
int ampctl_history_write(struct ampctl *ctl, const char model[128], uint64_t to_step, bool overflows, FILE *out);

#endif
