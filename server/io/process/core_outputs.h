/* How outputs of the core become replies, writes, messages and jobs (core_event.h). */
#ifndef AMPD_IO_CORE_OUTPUTS_H
#define AMPD_IO_CORE_OUTPUTS_H

struct io_core_ops;

extern const struct io_core_ops io_core_outputs_ops;

#endif
