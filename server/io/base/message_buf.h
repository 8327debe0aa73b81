/* A buffer for one encoded message of the package ampd.v1. */
#ifndef AMPD_IO_MESSAGE_BUF_H
#define AMPD_IO_MESSAGE_BUF_H

#include "base/buf.h"

/* An empty buffer that grows up to the longest message (AMPD_MSG_SIZE_MAX). The caller closes it (amp_buf_close). */
struct amp_buf io_message_buf(void);

#endif
