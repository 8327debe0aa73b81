/* A buffer for one message of ampd.v1. */
#ifndef AMPD_IO_MESSAGE_BUF_H
#define AMPD_IO_MESSAGE_BUF_H

#include "base/buf.h"

/* Empty; it grows to the longest message. */
struct amp_buf io_message_buf(void);

#endif
