/* Ends the process at once, where it must not answer or store anything any more. */
#ifndef AMPD_IO_FATAL_H
#define AMPD_IO_FATAL_H

#include "base/err.h"
#include "base/log.h"

/*
 * Logs `what` and the error, and ends the process without cleaning up: it is not known what the disk holds, or a rule
 * is broken. Exit code AMPD_EXIT_DATA_DIR for AMP_EDATALOSS, which the next start would find again; else
 * AMPD_EXIT_FAILED. Any thread.
 */
_Noreturn void io_fatal(const struct amp_log *log, const char *what, const struct amp_error *error);

#endif
