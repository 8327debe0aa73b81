#include "server/io/base/message_buf.h"

#include "proto/msg_common.h"

struct amp_buf io_message_buf(void)
{
    struct amp_buf buf;
    amp_buf_init(&buf, AMPD_MSG_SIZE_MAX);
    return buf;
}
