/* The test of the kernels on each processor of the machine, at the start. */
#ifndef AMPD_IO_VERIFY_H
#define AMPD_IO_VERIFY_H

#include "amp/kernels.h"
#include "base/err.h"

/*
 * Runs amp_kernels_verify on each processor that this process may use, one after the other, in a thread of its own:
 * about half a millisecond for each. 0, or AMP_EINTERNAL with a text that names the first processor with wrong results,
 * or says that all have them, and the remedy.
 */
int io_verify_kernels(const struct amp_kernels *kernels, struct amp_error *error);

#endif
