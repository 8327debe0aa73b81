/* The callbacks that carry out what the core asks for (core_event.h): replies, writes, messages, jobs. On the loop. */
#ifndef AMPD_IO_CORE_OUTPUTS_H
#define AMPD_IO_CORE_OUTPUTS_H

struct io_core_ops;

extern const struct io_core_ops io_core_outputs_ops;

#endif
