/* The end of the process at once, where nothing that it might still say is worth anything. */
#ifndef AMPD_IO_FATAL_H
#define AMPD_IO_FATAL_H

#include "base/err.h"
#include "base/log.h"

/*
 * Ends the process: what the disk holds is not known, or a rule is broken. `what` and the error are for the log. Any
 * thread.
 */
_Noreturn void io_fatal(const struct amp_log *log, const char *what, const struct amp_error *error);

#endif
